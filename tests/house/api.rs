//! Reads the public API from the sources and compares it with `docs/public-api.txt`, so that a
//! review shows every change to it.
//!
//! The lint `unreachable_pub` guarantees that every `pub` item can be reached, so every `pub` item
//! is listed, including the items that a macro makes for several types.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};

use crate::source::{is, modules};

const WRITE: &str = "LOCKSET_WRITE_API=1 cargo test --test house api";

/// The named items that are not functions.
const KINDS: &[&str] = &["struct", "enum", "trait", "type", "const", "mod"];

/// An item without its attributes and its body.
struct Item {
    attributes: Vec<String>,
    head: Vec<TokenTree>,
    body: Option<Group>,
}

impl Item {
    fn is_public(&self) -> bool {
        let is_group = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Group(_)));
        self.word(0) == "pub" && !is_group(self.head.get(1))
    }

    fn word(&self, at: usize) -> String {
        self.head
            .get(at)
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    fn inside(&self) -> Vec<TokenTree> {
        let body = self.body.as_ref().map(Group::stream);
        body.into_iter().flatten().collect()
    }

    /// The attributes that concern a user, and the head.
    fn shown(&self) -> String {
        let kept = [
            "#[derive",
            "#[non_exhaustive",
            "#[cfg",
            "#[deprecated",
            "#[doc(hidden",
        ];
        let concern = |text: &&String| kept.iter().any(|kept| text.starts_with(kept));
        let attributes: Vec<&str> = self
            .attributes
            .iter()
            .filter(concern)
            .map(|a| &**a)
            .collect();
        let head = tidy(&self.head);
        // The value of a constant may change, and private fields are not part of the API.
        let cut = match &*self.word(1) {
            "const" => head.split(" = ").next(),
            "struct" if !head.contains("(pub ") => head.split('(').next(),
            _ => None,
        };
        [&attributes[..], &[cut.unwrap_or(&head)]]
            .concat()
            .join(" ")
    }
}

/// Splits what is at the top level of a file or of a body into items.
fn items(tokens: Vec<TokenTree>) -> Vec<Item> {
    let mut found = Vec::new();
    let (mut attributes, mut head) = (Vec::new(), Vec::new());
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(sign) if sign.as_char() == '#' && head.is_empty() => {
                tokens.next_if(|token| is(token, '!'));
                let text = tokens.next().map(|attribute| tidy(&[attribute]));
                attributes.push(format!("#{}", text.unwrap_or_default()));
            }
            TokenTree::Punct(end) if end.as_char() == ';' => {
                found.push(Item {
                    attributes: std::mem::take(&mut attributes),
                    head: std::mem::take(&mut head),
                    body: None,
                });
            }
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                found.push(Item {
                    attributes: std::mem::take(&mut attributes),
                    head: std::mem::take(&mut head),
                    body: Some(body),
                });
            }
            other => head.push(other),
        }
    }
    found
}

/// A macro of one rule: what it takes, and what it becomes.
struct Macro {
    takes: Vec<TokenTree>,
    becomes: Vec<TokenTree>,
}

type Bound = BTreeMap<String, TokenTree>;

impl Macro {
    fn of(item: &Item) -> Option<(String, Self)> {
        let mut groups = item.inside().into_iter().filter_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream().into_iter().collect()),
            _ => None,
        });
        let (takes, becomes) = (groups.next()?, groups.next()?);
        (item.word(0) == "macro_rules").then(|| (item.word(2), Self { takes, becomes }))
    }

    fn expand(&self, given: Vec<TokenTree>) -> Vec<TokenTree> {
        let takes = repetition(&self.takes).unwrap_or(self.takes.clone());
        let mut given = given.into_iter().peekable();
        let mut each = Vec::new();
        while given.peek().is_some() && !takes.is_empty() {
            let mut bound = Bound::new();
            let mut takes = takes.clone().into_iter();
            while let Some(token) = takes.next() {
                let one = given.next();
                if is(&token, '$') {
                    let name = takes.next().expect("a name").to_string();
                    // The colon and the kind.
                    takes.by_ref().take(2).for_each(drop);
                    bound.extend(one.map(|one| (name, one)));
                }
            }
            each.push(bound);
        }
        fill(&self.becomes, &each)
    }
}

/// The tokens inside `$( .. )*`, if `tokens` begin with a repetition.
fn repetition(tokens: &[TokenTree]) -> Option<Vec<TokenTree>> {
    match tokens {
        [sign, TokenTree::Group(group), ..] if is(sign, '$') => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}

/// The body of a macro with its arguments.
fn fill(body: &[TokenTree], each: &[Bound]) -> Vec<TokenTree> {
    let mut filled = Vec::new();
    let mut at = 0;
    while at < body.len() {
        match (&body[at], body.get(at + 1)) {
            (sign, Some(TokenTree::Group(_))) if is(sign, '$') => {
                let repeated = repetition(&body[at..]).expect("one");
                let one_each = each.chunks(1).flat_map(|bound| fill(&repeated, bound));
                filled.extend(one_each);
                at += 3;
            }
            (sign, Some(TokenTree::Ident(name))) if is(sign, '$') && name == "crate" => at += 4,
            (sign, Some(TokenTree::Ident(name))) if is(sign, '$') => {
                let bound = each.first().and_then(|bound| bound.get(&name.to_string()));
                filled.extend(bound.cloned());
                at += 2;
            }
            (TokenTree::Group(group), _) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                let inside = fill(&inside, each).into_iter().collect();
                filled.push(Group::new(group.delimiter(), inside).into());
                at += 1;
            }
            (token, _) => {
                filled.push(token.clone());
                at += 1;
            }
        }
    }
    filled
}

/// Formats the tokens on one line.
fn tidy(tokens: &[TokenTree]) -> String {
    let text = tokens.iter().cloned().collect::<TokenStream>().to_string();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let closer = [
        (":: std :: time :: ", ""),
        (":: std :: future :: ", ""),
        (":: std :: ", "std :: "),
        (" ::", "::"),
        (":: ", "::"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :", ":"),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (",)", ")"),
        (" !", "!"),
        ("->(", "-> ("),
    ];
    for (loose, tight) in closer {
        text = text.replace(loose, tight);
    }
    // After the last bound of a `where`.
    text.trim_end_matches(',').to_owned()
}

/// Drops impls for, or with, types and traits that are private among `all`: users cannot see them.
fn without_hidden(all: Vec<Item>) -> Vec<Item> {
    let named = |item: &Item| {
        let is_kind = |token: &TokenTree| KINDS[..3].contains(&&*token.to_string());
        let at = item.head.iter().position(is_kind)?;
        Some(item.word(at + 1))
    };
    let (public, private): (Vec<&Item>, Vec<&Item>) = all.iter().partition(|item| item.is_public());
    let public: BTreeSet<String> = public.into_iter().filter_map(named).collect();
    let private = private.into_iter().filter_map(named);
    let private = private.chain(["sealed".to_owned()]);
    let hidden: BTreeSet<String> = private.filter(|name| !public.contains(name)).collect();
    let is_hidden = |item: &Item| {
        item.word(0) == "impl" && idents(&item.head).iter().any(|word| hidden.contains(word))
    };
    all.into_iter().filter(|item| !is_hidden(item)).collect()
}

/// The items of each file of a crate, by its path.
type Files = BTreeMap<String, Vec<Item>>;

/// The files of a crate without the modules that are hidden from the documentation, and the words of what these
/// re-export. Neither is part of the API.
fn files(root: &str) -> (Files, BTreeSet<String>) {
    let files = modules(root).into_iter();
    let mut files: Files = files
        .map(|(path, module)| (path, items(module.tokens)))
        .collect();
    let is_hidden = |item: &&Item| {
        let hidden = |attribute: &String| attribute.starts_with("#[doc(hidden");
        item.word(1) == "mod" && item.attributes.iter().any(hidden)
    };
    let modules = files[""].iter().filter(is_hidden);
    let modules: Vec<(String, Vec<Item>)> = modules
        .map(|item| (item.word(2), items(item.inside())))
        .collect();
    let used = |items: &[Item]| -> BTreeSet<String> {
        let uses = items
            .iter()
            .filter(|item| item.is_public() && item.word(1) == "use");
        let words = uses.flat_map(|item| last_parts(&[item.head.clone(), item.inside()].concat()));
        words.collect()
    };
    let mut hidden = BTreeSet::new();
    for (name, inline) in modules {
        hidden.extend(used(&files.remove(&name).unwrap_or(inline)));
    }
    let shown = used(&files[""]);
    (files, hidden.difference(&shown).cloned().collect())
}

/// All items of a crate, with macros expanded.
fn all_items(files: Files) -> Vec<Item> {
    let files: Vec<Vec<Item>> = files.into_values().collect();
    let macros = files.iter().flatten().filter_map(Macro::of);
    let macros: BTreeMap<String, Macro> = macros.collect();
    let expanded = |item: Item| {
        let called = macros.get(&item.word(0)).filter(|_| item.word(1) == "!");
        let Some(called) = called else {
            return vec![item];
        };
        let given = match item.head.get(2) {
            Some(TokenTree::Group(given)) => given.stream().into_iter().collect(),
            _ => item.inside(),
        };
        items(called.expand(given))
    };
    // A name that is private in one file may be public in another.
    let of_file = |file: Vec<Item>| without_hidden(file.into_iter().flat_map(expanded).collect());
    without_hidden(files.into_iter().flat_map(of_file).collect())
}

/// The functions beside types, each with its public module, or with its own name if that is at the root.
fn functions(files: &Files, reexported: &BTreeSet<String>) -> Vec<(String, String)> {
    let is_shown = |module: &str| {
        let mut root = files[""].iter();
        root.any(|item| item.is_public() && item.word(1) == "mod" && item.word(2) == module)
    };
    let mut found = Vec::new();
    for (path, items) in files {
        for item in items.iter().filter(|item| item.is_public()) {
            let name = item.head.iter().position(|token| token.to_string() == "fn");
            let name = name.map(|at| item.word(at + 1)).unwrap_or_default();
            if is_shown(path) && !name.is_empty() {
                found.push((path.clone(), item.shown()));
            } else if !name.is_empty() && !reexported.contains(&name) {
                found.push((name, item.shown()));
            }
        }
    }
    found
}

/// Lists the public members of a type or a trait, one per line.
fn members(item: &Item) -> Vec<String> {
    let kind = item.word(1);
    if kind == "enum" || kind == "struct" {
        let inside = item.inside();
        let parts = inside.split(|token| is(token, ','));
        let parts = parts.map(tidy).filter(|part| !part.is_empty());
        return parts
            .filter(|part| kind == "enum" || part.starts_with("pub "))
            .collect();
    }
    let required = items(item.inside()).into_iter();
    required.map(|item| item.shown()).collect()
}

/// The API of a crate, a line for each item; `path` is put in front of the names.
fn public_api(root: &str, path: &str) -> String {
    let (files, reexported) = files(root);
    let functions = functions(&files, &reexported);
    let all = all_items(files);
    let is_shown = |item: &&Item| {
        item.is_public() && KINDS.contains(&&*item.word(1)) && !reexported.contains(&item.word(2))
    };
    let defined = all.iter().filter(is_shown);
    let mut api: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for item in defined {
        let lines = api.entry(item.word(2)).or_default();
        lines.insert(0, item.shown());
        lines.extend(members(item));
    }
    for item in all.iter().filter(|item| item.word(0) == "impl") {
        let words = idents(&item.head);
        let of_trait = words.iter().position(|word| word == "for");
        // The type after `for`, or else the type that the trait itself mentions: `impl
        // From<FencingToken> for u64`.
        let (trait_words, type_words) = words.split_at(of_trait.unwrap_or_default());
        let mut about = type_words.iter().chain(trait_words);
        let Some(name) = about.find(|word| api.contains_key(*word)) else {
            continue;
        };
        let lines = api.get_mut(name).expect("it was looked for");
        if of_trait.is_none() {
            let public = items(item.inside()).into_iter().filter(Item::is_public);
            lines.extend(public.map(|item| item.shown()));
        } else {
            lines.push(item.shown());
        }
    }
    for (module, line) in functions {
        api.entry(module).or_default().push(line);
    }
    let of_one = |(name, mut lines): (String, Vec<String>)| {
        // The definition stays first. The order of the other lines must not depend on which file
        // they are in.
        lines[1..].sort();
        let lines = lines
            .into_iter()
            .map(|line| format!("{path}{name}: {line}\n"));
        lines.collect::<String>()
    };
    api.into_iter().map(of_one).collect()
}

/// The names at the ends of the paths of an import: what it brings in, without the modules that this comes from.
fn last_parts(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(last_parts(&inside));
            }
            TokenTree::Ident(name) if !tokens.get(at + 1).is_some_and(|next| is(next, ':')) => {
                found.push(name.to_string());
            }
            _ => {}
        }
    }
    found
}

fn idents(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(word) => found.push(Ident::to_string(word)),
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(idents(&inside));
            }
            _ => (),
        }
    }
    found
}

#[test]
fn the_public_api_matches_the_snapshot() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/public-api.txt");
    let now =
        public_api("src/lib.rs", "") + &public_api("operator/src/lib.rs", "lockset_operator::");
    if std::env::var_os("LOCKSET_WRITE_API").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let then = std::fs::read_to_string(&file).unwrap_or_default();
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) =
        (then.lines().collect(), now.lines().collect());
    let gone: Vec<&&str> = was.difference(&is).collect();
    let new: Vec<&&str> = is.difference(&was).collect();
    assert!(
        then == now,
        "the API has changed; if it is to: {WRITE}\ngone: {gone:#?}\nnew: {new:#?}"
    );
}
