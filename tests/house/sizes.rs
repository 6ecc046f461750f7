//! Nothing is longer than a reader can hold in mind.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{Module, OTHERS, library, modules};

/// Lines of code: neither blank nor a comment, nor of the tests in the file.
const FILE_MAX: usize = 400;
const FUNCTION_MAX: usize = 70;

/// The library as a whole. A change that needs more says why; one that needs less lowers them.
const LIBRARY_FILES_MAX: usize = 152;
const LIBRARY_LINES_MAX: usize = 27_790;

/// The lines on which the tokens stand.
fn lines_of(tokens: &[TokenTree], found: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                found.insert(group.span_open().start().line);
                found.insert(group.span_close().end().line);
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                lines_of(&inside, found);
            }
            // A text over several lines.
            other => found.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

/// The name and the number of lines of each function with a body.
fn functions(tokens: &[TokenTree], found: &mut Vec<(String, usize)>) {
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            let inside: Vec<TokenTree> = group.stream().into_iter().collect();
            functions(&inside, found);
        }
        let (TokenTree::Ident(word), Some(TokenTree::Ident(name))) = (token, tokens.get(at + 1))
        else {
            continue;
        };
        if word != "fn" {
            continue;
        }
        let end = tokens[at..].iter().position(|token| match token {
            TokenTree::Group(body) => body.delimiter() == Delimiter::Brace,
            TokenTree::Punct(sign) => sign.as_char() == ';',
            _ => false,
        });
        if let Some(end) = end {
            let mut lines = BTreeSet::new();
            lines_of(&tokens[at..=at + end], &mut lines);
            found.push((name.to_string(), lines.len()));
        }
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    let mut seen = 0;
    let other = OTHERS.map(|root| (root, modules(root)));
    let all = [("src", library())].into_iter().chain(other);
    let files = all.flat_map(|(root, files)| {
        let named = files.into_values();
        named.map(move |file| (root, file))
    });
    for (root, Module { file, tokens, .. }) in files {
        let file = format!("{root}: {}", file.display());
        let tokens = &tokens;
        let mut lines = BTreeSet::new();
        lines_of(tokens, &mut lines);
        if lines.len() > FILE_MAX {
            long.push(format!("{file}: {} lines of code", lines.len()));
        }
        let mut all = Vec::new();
        functions(tokens, &mut all);
        seen += all.len();
        let over = all.into_iter().filter(|(_, lines)| *lines > FUNCTION_MAX);
        long.extend(over.map(|(name, lines)| format!("{file}: {name}: {lines} lines of code")));
    }
    assert!(seen > 500, "functions were found: {seen}");
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_library_does_not_grow_unnoticed() {
    let files = library();
    let lines = files.values().map(|module| {
        let mut lines = BTreeSet::new();
        lines_of(&module.tokens, &mut lines);
        lines.len()
    });
    let (files, lines) = (files.len(), lines.sum::<usize>());
    println!("{files} files, {lines} lines of code");
    assert!(files <= LIBRARY_FILES_MAX, "{files} files");
    assert!(lines <= LIBRARY_LINES_MAX, "{lines} lines of code");
    let unused = LIBRARY_LINES_MAX - lines;
    assert!(
        unused < LIBRARY_LINES_MAX / 30,
        "the bound is {unused} lines too high"
    );
}
