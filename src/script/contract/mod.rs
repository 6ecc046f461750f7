//! The contract of every Lua file: its header says what its body reads, it is spliced from the
//! pieces it uses, it loads, and it replies as its header says.

mod bench;
mod cost;
mod fair;
mod fair_ends;
mod fair_handed;
mod fair_names;
mod multi;
mod reentrant;
mod rw;
mod rw_limits;

use std::collections::BTreeSet;

use super::catalog;

/// The comment a file starts with, and the rest.
fn header_and_body(text: &str) -> (&str, &str) {
    let start = text.find("--[[").expect("a header");
    let end = text.find("]]\n").expect("the end of the header");
    (&text[start..end], &text[end + 3..])
}

/// The places `KEYS[..]` and `ARGV[..]` named in a text. An index that is not a number belongs to a
/// loop and stands as `i`.
fn places(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in ["KEYS", "ARGV"] {
        for (at, _) in text.match_indices(&format!("{table}[")) {
            let index = &text[at + table.len() + 1..];
            let index = &index[..index.find(']').expect("a closing bracket")];
            let index = if index.parse::<u32>().is_ok() {
                index
            } else {
                "i"
            };
            found.insert(format!("{table}[{index}]"));
        }
        // Walking over a whole table reads all of it.
        if text.contains(&format!("ipairs({table})")) {
            found.insert(format!("{table}[i]"));
        }
    }
    found
}

fn file(name: &str) -> String {
    let path = format!("{}/lua/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_header_names_what_its_body_reads() {
    for (name, script) in catalog::ALL {
        let (header, body) = header_and_body(script.text);
        assert!(
            header.contains(&format!("\n  {name}: ")),
            "{name}: its name"
        );
        assert!(header.contains("\n  Reply "), "{name}: its reply");
        assert_eq!(places(header), places(body), "{name}: said and read");
    }
}

#[test]
fn every_file_is_in_the_catalog_with_the_pieces_it_calls() {
    let folder = |path: &str| -> BTreeSet<String> {
        std::fs::read_dir(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")))
            .unwrap()
            .filter_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                name.strip_suffix(".lua").map(str::to_owned)
            })
            .collect()
    };
    let listed: BTreeSet<_> = catalog::ALL
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(folder("lua"), listed);
    for (name, script) in catalog::ALL {
        assert!(
            script.text.ends_with(&file(&format!("{name}.lua"))),
            "{name}"
        );
        for piece in folder("lua/includes") {
            let spliced = script
                .text
                .matches(&file(&format!("includes/{piece}.lua")))
                .count();
            let named = mentions(script.text, &piece);
            // Where it is spliced, once for its definition.
            let called = named > spliced;
            assert_eq!(spliced, usize::from(called), "{name} and {piece}");
        }
    }
}

/// How often a function is defined, called or handed to another in a text.
fn mentions(text: &str, function: &str) -> usize {
    let found = text.match_indices(function).map(|(at, _)| at);
    found
        .filter(|at| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .filter(|at| {
            let rest = &text[at + function.len()..];
            rest.starts_with('(') || (text[..*at].ends_with('(') && rest.starts_with(','))
        })
        .count()
}
