//! The expansions of functions of all shapes, as files to read: `tests/expansions/NAME.rs` has the function and
//! below it what is made of it.
//!
//! After a change: `LOCKSET_WRITE_EXPANSIONS=1 cargo test -p lockset-macros expansions`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proc_macro2::TokenStream;

use super::parts;
use crate::expand::try_locked;

/// Between the two.
const BELOW: &str = "\n// Becomes:\n\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expansions")
}

/// Without what belongs to the layout.
fn tokens(source: &str) -> String {
    let tokens: TokenStream = source.parse().expect("Rust");
    tokens.to_string().replace([' ', ',', '{', '}', ';'], "")
}

fn formatted(source: &str) -> String {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config", "max_width=110"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rustfmt");
    let mut input = rustfmt.stdin.take().expect("a pipe");
    input.write_all(source.as_bytes()).expect("rustfmt reads");
    drop(input);
    let output = rustfmt.wait_with_output().expect("rustfmt ends");
    assert!(output.status.success(), "rustfmt: {source}");
    String::from_utf8(output.stdout).expect("a text")
}

#[test]
fn expansions_are_what_the_files_say() {
    let write = std::env::var_os("LOCKSET_WRITE_EXPANSIONS").is_some();
    let mut seen = 0;
    for entry in fs::read_dir(folder()).expect("the folder") {
        let file = entry.expect("a file").path();
        let page = fs::read_to_string(&file).expect("a text");
        let (source, below) = page.split_once(BELOW).unwrap_or((&page, ""));
        let (options, item) = parts(source);
        let made = try_locked(options, item).unwrap_or_else(|error| panic!("{source}: {error}"));
        if write {
            let made = formatted(&made.to_string());
            let page = format!("{}\n{BELOW}{made}", source.trim_end());
            fs::write(&file, page).expect("the file is written");
        } else {
            assert_eq!(
                tokens(&made.to_string()),
                tokens(below),
                "{}: see the head of this test",
                file.display()
            );
        }
        seen += 1;
    }
    assert!(seen >= 10, "expansions were found: {seen}");
}
