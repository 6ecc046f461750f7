//! Checks that each mutant on the list still applies, in exactly one place, and that the files of cargo-mutants exist.

use std::collections::{BTreeMap, BTreeSet};
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

/// The functions of the files that a kind of check runs, each with its module.
fn functions(kind: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots: &[&str] = match kind {
        "lib" => &["src"],
        "suite" => &["tests/suite"],
        _ => &["sim/tests/simulated", "sim/tests"],
    };
    let mut found = Vec::new();
    for top in roots.iter().map(|folder| root.join(folder)) {
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let module = path.strip_prefix(&top).unwrap().with_extension("");
                let module = module.to_str().unwrap().replace('/', "::");
                let module = module.strip_suffix("mod").unwrap_or(&module);
                let module = module.strip_suffix("::").unwrap_or(module);
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("fn ").skip(1).filter_map(|rest| {
                    let end = rest.find(|sign: char| !(sign.is_alphanumeric() || sign == '_'))?;
                    Some((module.to_owned(), rest[..end].to_owned()))
                });
                found.extend(names);
            }
        }
    }
    found
}

/// Whether a test is where its name says, perhaps in a module inside of the file: `tests`, or the primitive that it was
/// generated for.
fn is_there(functions: &[(String, String)], name: &str) -> bool {
    let (path, function) = name.rsplit_once("::").unwrap_or(("", name));
    functions.iter().any(|(module, each)| {
        let inner = path.strip_prefix(module.as_str());
        each == function && inner.is_some_and(|inner| inner.matches("::").count() <= 1)
    })
}

fn is_run(functions: &[(String, String)], filter: &str) -> bool {
    functions.iter().any(|(module, function)| {
        let names = ["::", "::tests::"].map(|inside| format!("{module}{inside}{function}"));
        names.iter().any(|name| name.contains(filter))
    })
}

/// The tests of a result: at most two, and how many there are besides.
fn tests_of(result: &Value) -> Vec<&str> {
    let by = text(result, "by");
    let by = by.rsplit_once(" and ").map_or(by, |(named, _)| named);
    by.split(", ").collect()
}

/// A result recorded before its mutant changed would be misleading.
#[test]
fn every_result_belongs_to_a_listed_mutant() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let list: Vec<Value> = serde_json::from_str(&read("checks/mutants/list.json")).unwrap();
    let results: Value = serde_json::from_str(&read("checks/mutants/results.json")).unwrap();
    let functions = BTreeMap::from(["lib", "suite", "sim"].map(|kind| (kind, functions(kind))));
    for mutant in &list {
        let (kind, filter) = text(mutant, "check").split_once(' ').expect("and a filter");
        assert!(is_run(&functions[kind], filter), "{mutant}");
    }
    for (name, result) in results.as_object().expect("by name") {
        let mutant = list.iter().find(|mutant| text(mutant, "name") == name);
        let mutant = mutant.unwrap_or_else(|| panic!("{name} is on no list"));
        assert_eq!(text(result, "check"), text(mutant, "check"), "{name}");
        assert_eq!(text(result, "outcome"), "killed", "{name}");
        let (kind, filter) = text(mutant, "check").split_once(' ').expect("and a filter");
        let functions = &functions[kind];
        for test in tests_of(result) {
            assert!(is_there(functions, test), "{name}: no test {test}");
            assert!(
                test.contains(filter),
                "{name}: {filter:?} does not run {test}"
            );
        }
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
