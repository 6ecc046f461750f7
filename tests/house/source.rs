//! Reads the sources of a crate as a tree of modules, without test code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One file of a crate.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) tokens: Vec<TokenTree>,
    /// The modules that it declares, each in a file of its own.
    children: BTreeSet<String>,
}

/// Other crates of the workspace; but in the testkit a module and its parts are one.
pub(crate) const OTHERS: [&str; 6] = [
    "cli/src/main.rs",
    "macros/src/lib.rs",
    "checks/model/src/lib.rs",
    "checks/nemesis/src/lib.rs",
    "operator/src/lib.rs",
    "sim/src/lib.rs",
];

/// The files of the library.
pub(crate) fn library() -> BTreeMap<String, Module> {
    let found = modules("src/lib.rs");
    assert!(found.len() > 50, "the tree was walked");
    found
}

/// All files of a crate by their paths: `hold::share`; the crate's root is "".
pub(crate) fn modules(root: &str) -> BTreeMap<String, Module> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let source = root.parent().unwrap().to_owned();
    let mut found = BTreeMap::new();
    let mut next = vec![(String::new(), root)];
    while let Some((path, file)) = next.pop() {
        let text = fs::read_to_string(&file).unwrap();
        let tokens = without_tests(text.parse().expect("Rust"));
        let children = declared(&tokens);
        for child in &children {
            let folder = source.join(path.replace("::", "/"));
            let files = [
                folder.join(format!("{child}.rs")),
                folder.join(child).join("mod.rs"),
            ];
            let file = files.into_iter().find(|file| file.exists());
            let file = file.unwrap_or_else(|| panic!("no file for {path}::{child}"));
            next.push((
                format!("{path}::{child}")
                    .trim_start_matches("::")
                    .to_owned(),
                file,
            ));
        }
        let file = file.strip_prefix(&source).unwrap().to_owned();
        let module = Module {
            file,
            tokens,
            children,
        };
        found.insert(path, module);
    }
    found
}

/// Drops each item under `#[cfg(test)]`, and the documentation of the others.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept: Vec<TokenTree> = Vec::new();
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) if is_test_only(&group) => {
                kept.pop();
                // Skips to the end of the item: its body, or a semicolon.
                for token in tokens.by_ref() {
                    match token {
                        TokenTree::Punct(end) if end.as_char() == ';' => break,
                        TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => break,
                        _ => (),
                    }
                }
            }
            TokenTree::Group(group) if is_doc(&group) => {
                if kept.pop().is_some_and(|sign| is(&sign, '!')) {
                    kept.pop();
                }
            }
            TokenTree::Group(group) => {
                let inside = without_tests(group.stream()).into_iter().collect();
                let mut inner = Group::new(group.delimiter(), inside);
                inner.set_span(group.span());
                kept.push(inner.into());
            }
            other => kept.push(other),
        }
    }
    kept
}

fn is_test_only(attribute: &Group) -> bool {
    attribute.delimiter() == Delimiter::Bracket
        && attribute.to_string().replace(' ', "") == "[cfg(test)]"
}

/// `#[doc = ".."]` is what `///` becomes, `#![doc = ".."]` what `//!` becomes.
fn is_doc(attribute: &Group) -> bool {
    let mut inside = attribute.stream().into_iter();
    attribute.delimiter() == Delimiter::Bracket
        && matches!(inside.next(), Some(TokenTree::Ident(word)) if word == "doc")
        && matches!(inside.next(), Some(sign) if is(&sign, '='))
}

fn declared(tokens: &[TokenTree]) -> BTreeSet<String> {
    let declarations = tokens.windows(3).filter_map(|three| match three {
        [
            TokenTree::Ident(word),
            TokenTree::Ident(name),
            TokenTree::Punct(end),
        ] if word == "mod" && end.as_char() == ';' => Some(name.to_string()),
        _ => None,
    });
    declarations.collect()
}

/// Lists, for each file, the files that it imports or names by a path.
pub(crate) fn imports(library: &BTreeMap<String, Module>) -> BTreeMap<&str, BTreeSet<&str>> {
    let each = library.iter().map(|(path, module)| {
        let mut named = Vec::new();
        let here: Vec<String> = path
            .split("::")
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        paths(&module.tokens, &here, &module.children, &mut named);
        let files = named.iter().map(|named| resolve(library, named));
        let others = files.filter(|file| !file.is_empty() && file != path);
        (path.as_str(), others.collect())
    });
    each.collect()
}

/// Finds the file of `named`: the file of its longest prefix that is a module.
fn resolve<'a>(library: &'a BTreeMap<String, Module>, named: &[String]) -> &'a str {
    let parts = (0..=named.len())
        .rev()
        .map(|parts| named[..parts].join("::"));
    let mut known = parts.filter_map(|path| library.get_key_value(&path));
    known.next().expect("the crate's root").0
}

/// Each path that begins with `crate`, `super`, `self` or a module declared here, from the crate's root.
fn paths(
    tokens: &[TokenTree],
    here: &[String],
    children: &BTreeSet<String>,
    found: &mut Vec<Vec<String>>,
) {
    let mut at = 0;
    while at < tokens.len() {
        let begins = at == 0 || !is_colon(&tokens[at - 1]);
        match &tokens[at] {
            TokenTree::Ident(word) if begins && is_path(&tokens[at + 1..]) => {
                let start = match word.to_string().as_str() {
                    "crate" => Some(Vec::new()),
                    "self" => Some(here.to_vec()),
                    "super" => Some(here[..here.len() - 1].to_vec()),
                    child if children.contains(child) => Some([here, &[child.to_owned()]].concat()),
                    _ => None,
                };
                at += 1;
                if let Some(start) = start {
                    at += follow(&tokens[at..], start, found);
                }
            }
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                paths(&inside, here, children, found);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Reads on behind the beginning of a path; says how many tokens of it there were.
fn follow(tokens: &[TokenTree], mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let mut at = 0;
    while is_path(&tokens[at..]) {
        at += 2;
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) if word == "super" => {
                path.pop();
            }
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inside.split(|token| is(token, ',')) {
                    let Some(first) = branch.first() else {
                        continue;
                    };
                    let branch_path = [path.clone(), vec![first.to_string()]].concat();
                    follow(&branch[1..], branch_path, found);
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
    }
    found.push(path);
    at
}

pub(crate) fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn is_colon(token: &TokenTree) -> bool {
    is(token, ':')
}

/// Whether a path goes on here: `::`.
fn is_path(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, ..] if is_colon(first) && is_colon(second))
}
