//! The numbers of `docs/proof.md` that tests assert, or that lists have.

use std::path::Path;

use serde_json::Value;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The text between two others.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{to}")).0
}

/// The number in front of some words.
fn word_before(text: &str, words: &str) -> usize {
    let (before, _) = text.split_once(words).unwrap_or_else(|| panic!("{words}"));
    let word = before.split_whitespace().next_back().unwrap_or_default();
    number(word).unwrap_or_else(|| panic!("{word}{words}"))
}

/// The rows of the first table behind a heading, without its head.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let behind = page.split_once(heading).expect(heading).1.lines();
    let table = behind.skip_while(|line| !line.starts_with('|'));
    let table = table.take_while(|line| line.starts_with('|'));
    table.skip(2).collect()
}

/// `12_345` at the start of a text.
fn number(text: &str) -> Option<usize> {
    let digits = text.trim_start().chars();
    let digits = digits.take_while(|sign| sign.is_ascii_digit() || *sign == '_');
    let digits: String = digits.filter(|sign| *sign != '_').collect();
    digits.parse().ok()
}

#[test]
fn the_states_of_one_lock_are_those_that_its_tests_assert() {
    let tests = read("src/engine/hold/lock/tests.rs");
    let calls = ["explore(", "(Mode::Exclusive, ", "(Mode::Shared, "];
    let calls = calls.iter().flat_map(|call| tests.split(call).skip(1));
    let mut asserted: Vec<usize> = calls.filter_map(number).collect();
    let page = read("docs/proof.md");
    let rows = rows(&page, "\n## One lock in one client");
    let cells = rows
        .iter()
        .map(|row| row.split('|').nth(2).expect("a number"));
    let numbers = cells.flat_map(|cell| cell.split(';'));
    let mut told: Vec<usize> = numbers
        .map(|number| number.replace(' ', "").parse().expect(number))
        .collect();
    asserted.sort_unstable();
    told.sort_unstable();
    assert!(told.len() > 10, "{told:?}");
    assert_eq!(told, asserted);
}

#[test]
fn the_mistakes_and_defects_are_as_many_as_the_page_says() {
    let page = read("docs/proof.md");
    let list: Vec<Value> = serde_json::from_str(&read("checks/mutants/list.json")).unwrap();
    assert_eq!(word_before(&page, " mistakes in scripts"), list.len());
    let check = "lib hold::lock::tests";
    let explored = list.iter().filter(|mutant| mutant["check"] == check);
    let told = word_before(&page, " mistakes that this exploration");
    assert_eq!(told, explored.count());

    let mutants = read("sim/tests/simulated/mutants.rs");
    let defects = between(&mutants, "const MUTANTS", "\n];");
    let defects = defects.matches("\n    (\n").count();
    assert!(defects > 10, "{defects}");
    assert_eq!(word_before(&page, " defects that are put"), defects);
    let absent = between(&mutants, "const NOT_IN_PAIRS", "\n];");
    let absent = absent.matches("\n    \"").count();
    assert_eq!(word_before(&page, " of them ([which]"), defects - absent);
    let measured = read("docs/proof/measured.md");
    assert_eq!(rows(&measured, "\n## Defects that worlds").len(), defects);
}
