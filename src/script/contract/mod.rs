//! The contract of every Lua file: its header lists what its body reads, it names the pieces that it uses, it loads,
//! and it replies as its header says.

mod barrier;
mod cost;
mod election;
mod fair;
mod fair_ends;
mod fair_handover;
mod fair_names;
mod fixture;
mod keep;
mod latch;
mod multi;
mod plain_semaphore;
mod purge;
mod recall;
mod reentrant;
mod rw;
mod rw_limits;
mod semaphore;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::catalog;
use crate::engine::hold::bound::Timing;

/// The comment at the start of a file, and the rest.
fn header_and_body(text: &str) -> (&str, &str) {
    let start = text.find("--[[").expect("a header");
    let end = text.find("]]\n").expect("the end of the header");
    (&text[start..end], &text[end + 3..])
}

/// The places `KEYS[..]` and `ARGV[..]` named in a text. An index that is not a number belongs to a loop and is shown
/// as `i`.
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
        // A loop over a whole table reads all of it.
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

/// The code of a file, without comments and strings, where a word means something else.
fn code(file: &str) -> String {
    let file = file.split_once("]]\n").map_or(file, |(_, body)| body);
    let lines = file.lines().map(|line| {
        let line: String = line.split('\'').step_by(2).collect();
        line.split("--").next().unwrap_or_default().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether some code uses this name as a whole word, and not as a field.
fn names(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    code.match_indices(name).any(|(at, _)| {
        let rest = &code[at + name.len()..];
        !code[..at].ends_with(is_part) && !rest.starts_with(is_part)
    })
}

fn piece(name: &str) -> &'static str {
    let found = catalog::PIECES.iter().find(|(piece, _)| *piece == name);
    found
        .unwrap_or_else(|| panic!("no piece is called {name}"))
        .1
}

fn files_of(folder: &str) -> BTreeSet<String> {
    std::fs::read_dir(format!("{}/{folder}", env!("CARGO_MANIFEST_DIR")))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".lua").map(str::to_owned)
        })
        .collect()
}

#[test]
fn every_header_names_what_its_body_reads() {
    for (name, script) in catalog::ALL {
        let (header, body) = header_and_body(script.text());
        assert!(header.contains(&format!("\n  {name}: ")), "{name}: no name");
        assert!(header.contains("\n  Reply "), "{name}: no reply");
        assert_eq!(places(header), places(body), "{name}: they differ");
    }
}

#[test]
fn every_file_is_in_the_catalog() {
    let scripts = catalog::ALL.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(files_of("lua"), scripts.collect());
    let pieces = catalog::PIECES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(files_of("lua/includes"), pieces.collect());
}

#[test]
fn every_file_names_the_pieces_it_uses_and_no_others() {
    let scripts = catalog::ALL
        .iter()
        .map(|(name, _)| (*name, file(&format!("{name}.lua"))));
    let pieces = catalog::PIECES
        .iter()
        .map(|(name, piece)| (*name, (*piece).to_owned()));
    for (name, file) in scripts.chain(pieces) {
        let named: Vec<&str> = catalog::uses(&file).collect();
        let code = code(&file);
        let is_used = |piece: &&str| *piece != name && names(&code, piece);
        let used = catalog::PIECES
            .iter()
            .map(|(piece, _)| *piece)
            .filter(is_used);
        let used: BTreeSet<&str> = used.collect();
        assert_eq!(
            named.iter().copied().collect::<BTreeSet<_>>(),
            used,
            "{name}"
        );
        assert_eq!(named.len(), used.len(), "{name} names a piece twice");
    }
}

/// Also checks that no pieces use each other in a circle: one of them would precede a piece that it uses.
#[test]
fn every_piece_stands_once_and_behind_what_it_uses() {
    for (name, script) in catalog::ALL {
        let text = script.text();
        let mut rest = text.to_owned();
        for (used, piece) in catalog::PIECES {
            let places: Vec<usize> = text.match_indices(piece).map(|(at, _)| at).collect();
            let Some(place) = places.first() else {
                continue;
            };
            assert_eq!(places.len(), 1, "{name}: {used}");
            for before in catalog::uses(piece) {
                let at = text.find(self::piece(before));
                assert!(
                    at.is_some_and(|at| at < *place),
                    "{name}: {before} before {used}"
                );
            }
            rest = rest.replacen(piece, "", 1);
        }
        assert_eq!(rest, file(&format!("{name}.lua")), "{name}: nothing else");
    }
}

/// The named numbers of all files, with the files that contain each value. A number that two functions need is
/// defined in both, because every call pays for a definition outside of them.
fn numbers() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let scripts = catalog::ALL
        .iter()
        .map(|(name, _)| (*name, file(&format!("{name}.lua"))));
    let pieces = catalog::PIECES
        .iter()
        .map(|(name, piece)| (*name, (*piece).to_owned()));
    let mut numbers: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (name, file) in scripts.chain(pieces) {
        for line in file.lines() {
            let Some((names, values)) = line
                .trim()
                .strip_prefix("local ")
                .and_then(|rest| rest.split_once(" = "))
            else {
                continue;
            };
            for (number, value) in names.split(", ").zip(values.split(", ")) {
                if value
                    .chars()
                    .all(|c| c.is_ascii_digit() || " *".contains(c))
                {
                    let values = numbers.entry(number.to_owned()).or_default();
                    values
                        .entry(value.to_owned())
                        .or_default()
                        .push(name.to_owned());
                }
            }
        }
    }
    numbers
}

#[test]
fn one_name_is_one_number_in_all_files() {
    let numbers = numbers();
    for name in [
        "heartbeat_ms_max",
        "redisson_wait_ms",
        "year_ms",
        "token_step",
        "sweep_fields",
    ] {
        let values = &numbers[name];
        assert_eq!(values.len(), 1, "{name}: {values:?}");
        assert!(
            values.values().all(|files| files.len() > 1),
            "{name}: {values:?}"
        );
    }
}

/// Scripts assume that a longer heartbeat is from before the server's clock was set back.
#[test]
fn the_longest_heartbeat_is_the_one_that_scripts_know() {
    let known = &numbers()["heartbeat_ms_max"];
    let leases = (0..30).map(|doublings| Duration::from_millis(1 << doublings));
    let longest = leases.map(|lease| Timing::of_lease(lease).heartbeat).max();
    let longest = longest.unwrap().as_millis().to_string();
    assert_eq!(known.keys().collect::<Vec<_>>(), [&longest]);
}
