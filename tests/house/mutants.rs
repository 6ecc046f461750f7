//! Checks that each mutant on the list still applies, in exactly one place, and that the files of cargo-mutants exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

fn text<'a>(mutant: &'a Value, key: &str) -> &'a str {
    mutant[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} of {mutant}"))
}

#[test]
fn every_mutant_applies_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = std::fs::read_to_string(root.join("checks/mutants/list.json")).unwrap();
    let list: Vec<Value> = serde_json::from_str(&list).unwrap();
    assert!(list.len() >= 40, "{}", list.len());
    let mut names = BTreeSet::new();
    for mutant in &list {
        let name = text(mutant, "name");
        assert!(names.insert(name), "{name}: twice");
        let source = std::fs::read_to_string(root.join(text(mutant, "file"))).unwrap();
        let (find, replace) = (text(mutant, "find"), text(mutant, "replace"));
        assert_eq!(source.matches(find).count(), 1, "{name}: {find}");
        assert_ne!(find, replace, "{name}");
        let (kind, filter) = text(mutant, "check").split_once(' ').expect("and a filter");
        assert!(
            ["lib", "sim", "suite"].contains(&kind) && !filter.is_empty(),
            "{name}"
        );
    }
}

/// A result recorded before its mutant changed would be misleading.
#[test]
fn every_result_belongs_to_a_listed_mutant() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let list: Vec<Value> = serde_json::from_str(&read("checks/mutants/list.json")).unwrap();
    let results: Value = serde_json::from_str(&read("checks/mutants/results.json")).unwrap();
    for (name, result) in results.as_object().expect("by name") {
        let mutant = list.iter().find(|mutant| text(mutant, "name") == name);
        let mutant = mutant.unwrap_or_else(|| panic!("{name} is on no list"));
        assert_eq!(text(result, "check"), text(mutant, "check"), "{name}");
        assert_eq!(text(result, "outcome"), "killed", "{name}");
    }
}

#[test]
fn every_pure_file_is_where_the_script_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("scripts/mutants-core")).unwrap();
    let groups = script.split_once("GROUPS = {").expect("the groups").1;
    let groups = groups.split_once("\n}\n").expect("their end").0;
    let files = groups.split(|c: char| !(c.is_ascii_lowercase() || "_/".contains(c)));
    let files: Vec<&str> = files.filter(|file| file.contains('/')).collect();
    assert!(files.len() > 30, "{files:?}");
    for file in files {
        let path = root.join("src").join(file).with_extension("rs");
        assert!(path.is_file(), "scripts/mutants-core: {file}");
    }
}
