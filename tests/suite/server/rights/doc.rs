//! Reads the rights from the page `docs/rights.md`.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../../docs/rights.md");

/// Rules of `ACL SETUSER` that grant something.
pub(crate) type Rights = BTreeSet<String>;

/// The rights granted by each command under a heading.
pub(super) fn commands(heading: &str) -> Vec<Rights> {
    let (_, section) = PAGE
        .split_once(&format!("## {heading}\n"))
        .expect("a heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let rights = |block: &str| {
        let words = block.split_whitespace();
        rights(words.map(|word| word.replace(['\'', '\\'], "")))
    };
    blocks.map(rights).collect()
}

/// The rights in the table row that begins with these words.
pub(crate) fn row(words: &str) -> Rights {
    let begin = format!("| {words} |");
    let row = PAGE.lines().find(|line| line.starts_with(&begin));
    let quoted = row.expect(words).split('`').skip(1).step_by(2);
    // In a table, the vertical bar is escaped.
    rights(quoted.map(|word| word.replace('\\', "")))
}

/// The rights of several rows.
pub(crate) fn rows(words: &[&str]) -> Rights {
    words.iter().flat_map(|words| row(words)).collect()
}

fn rights(words: impl Iterator<Item = String>) -> Rights {
    words
        .filter(|word| word.len() > 1 && word.starts_with(['~', '&', '+']))
        .collect()
}
