//! Checks the dependencies of the library against the licences, versions and sources that
//! `deny.toml` allows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn page() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    std::fs::read_to_string(file).unwrap()
}

/// Reads the strings of one list on the page.
fn list(page: &str, key: &str) -> BTreeSet<String> {
    let (_, list) = page.split_once(&format!("\n{key} = [")).expect(key);
    let (list, _) = list.split_once(']').expect("its end");
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Reads `cargo metadata` for this platform. All packages are downloaded already, so it works
/// offline.
fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".to_owned());
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let mut asked = Command::new(cargo);
    asked.current_dir(env!("CARGO_MANIFEST_DIR"));
    asked.args([
        "metadata",
        "--format-version",
        "1",
        "--all-features",
        "--locked",
        "--offline",
    ]);
    let answer = asked
        .args(["--filter-platform", host.expect("a host")])
        .output()
        .unwrap();
    assert!(
        answer.status.success(),
        "{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    serde_json::from_slice(&answer.stdout).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The packages that the library is built with, including itself but not its dev-dependencies.
fn packages(metadata: &Value) -> Vec<&Value> {
    let of = |list: &'static str, key: &'static str| {
        let each = metadata
            .pointer(list)
            .and_then(Value::as_array)
            .expect(list);
        each.iter()
            .map(move |one| (text(one, key), one))
            .collect::<BTreeMap<_, _>>()
    };
    let (packages, nodes) = (of("/packages", "id"), of("/resolve/nodes", "id"));
    let library = packages
        .iter()
        .find(|(_, package)| text(package, "name") == "lockset");
    let mut next = vec![*library.expect("the library").0];
    let mut found = BTreeMap::new();
    while let Some(id) = next.pop() {
        if found.insert(id, packages[id]).is_some() {
            continue;
        }
        for needed in nodes[id]["deps"].as_array().expect("a list") {
            let kinds = needed["dep_kinds"].as_array().expect("a list");
            if kinds.iter().any(|kind| text(kind, "kind") != "dev") {
                next.push(text(needed, "pkg"));
            }
        }
    }
    found.into_values().collect()
}

/// Whether a package is a member of this workspace.
fn is_ours(metadata: &Value, package: &Value) -> bool {
    let members = metadata["workspace_members"].as_array().expect("a list");
    members.contains(&package["id"])
}

/// Whether an SPDX expression can be met with these licences: `OR` binds least, then `AND`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let parts = |at: &str| split(expression, at);
    let expression = expression.trim();
    if let [first, rest @ ..] = &*parts(" OR ")
        && !rest.is_empty()
    {
        return is_allowed(first, allowed) || rest.iter().any(|one| is_allowed(one, allowed));
    }
    if let [first, rest @ ..] = &*parts(" AND ")
        && !rest.is_empty()
    {
        return is_allowed(first, allowed) && rest.iter().all(|one| is_allowed(one, allowed));
    }
    let inside = expression
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    inside.map_or_else(
        || allowed.contains(expression),
        |inside| is_allowed(inside, allowed),
    )
}

/// The parts of `expression` between words that stand outside of parentheses.
fn split<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, sign) in expression.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= from && expression[at..].starts_with(word) => {
                parts.push(&expression[from..at]);
                from = at + word.len();
            }
            _ => (),
        }
    }
    parts.push(&expression[from..]);
    parts
}

#[test]
fn every_dependency_has_a_licence_a_version_and_a_source_that_are_allowed() {
    let page = page();
    let (allowed, skipped) = (list(&page, "allow"), list(&page, "skip"));
    let metadata = metadata();
    let packages = packages(&metadata);
    assert!(packages.len() > 30, "{}", packages.len());
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let licence = text(package, "license")
            .replace(" / ", " OR ")
            .replace('/', " OR ");
        if !is_allowed(&licence, &allowed) {
            wrong.push(format!("{name} {version} has the licence {licence:?}"));
        }
        if !is_ours(&metadata, package) && text(package, "source") != CRATES_IO {
            wrong.push(format!("{name} {version} is not from crates.io"));
        }
        let is_skipped = |skip: &String| {
            skip.split_once('@')
                .is_some_and(|(skip, begin)| skip == name && version.starts_with(begin))
        };
        if !skipped.iter().any(is_skipped) {
            versions.entry(name).or_default().push(version);
        }
    }
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    wrong.extend(several.map(|(name, versions)| format!("{name} is there as {versions:?}")));
    assert!(wrong.is_empty(), "see deny.toml: {wrong:#?}");
}

#[test]
fn a_licence_expression_is_read_as_it_is_meant() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT AND ISC", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(MIT OR GPL-3.0) AND Zlib", false),
        ("MIT AND Zlib OR ISC", true),
        ("MIT OR GPL-3.0 AND Zlib", true),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
