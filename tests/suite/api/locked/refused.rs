//! Programs that the compiler rejects because of the code that the attribute generates: the
//! message, and where it points.
//!
//! Errors of the attribute itself are tested in the macro crate. Each file in `refused` is a
//! program with one mistake. `// at: ..` is the text that the first error points at, and each `//
//! says: ..` is a part of its message. The first program has no mistake: it identifies the library
//! among the build outputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;

/// The first error of a program.
#[derive(Debug)]
struct Refusal {
    at: String,
    says: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/api/locked/refused")
}

/// The build directory of this test, which has its dependencies.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.parent().expect("a folder").to_owned()
}

/// Compiles without generating code.
fn compile(library: &Path, program: &Path) -> Result<(), Refusal> {
    let out = std::env::temp_dir().join(lockset_testkit::unique_name("lockset-refused"));
    let compiled = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .args(["--error-format", "json"])
        .arg("-o")
        .arg(&out)
        .arg("-L")
        .arg(format!("dependency={}", built().display()))
        .arg("--extern")
        .arg(format!("lockset={}", library.display()))
        .arg(program)
        .output()
        .expect("rustc runs");
    _ = fs::remove_file(out);
    if compiled.status.success() {
        return Ok(());
    }
    let said = String::from_utf8(compiled.stderr).expect("a text");
    let messages = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = messages.filter(|message| message["level"] == "error");
    let first = errors
        .next()
        .unwrap_or_else(|| panic!("no error in {said}"));
    let spans = first["spans"].as_array().expect("a list");
    let place = spans.iter().find(|span| span["is_primary"] == true);
    Err(Refusal {
        at: place.map(pointed_at).unwrap_or_default(),
        says: first["rendered"].as_str().unwrap_or_default().to_owned(),
    })
}

/// The text of a span, if it is on one line.
fn pointed_at(span: &Value) -> String {
    let line = &span["text"][0];
    let at = |key: &str| usize::try_from(line[key].as_u64().unwrap_or(1)).unwrap_or(1) - 1;
    let text: Vec<char> = line["text"].as_str().unwrap_or_default().chars().collect();
    let pointed = text.get(at("highlight_start")..at("highlight_end"));
    pointed.unwrap_or_default().iter().collect()
}

/// The library built for this test: the newest file with which the correct program compiles.
fn library() -> PathBuf {
    let files = fs::read_dir(built()).expect("the folder");
    let files = files.filter_map(|file| file.ok().map(|file| file.path()));
    let is_library = |file: &PathBuf| {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("liblockset-") && name.ends_with(".rlib")
    };
    let mut candidates: Vec<PathBuf> = files.filter(is_library).collect();
    let changed = |file: &PathBuf| {
        let metadata = fs::metadata(file).and_then(|metadata| metadata.modified());
        std::cmp::Reverse(metadata.unwrap_or(SystemTime::UNIX_EPOCH))
    };
    candidates.sort_by_key(changed);
    let right = folder().join("nothing.rs");
    let mut refusals = Vec::new();
    for library in candidates {
        match compile(&library, &right) {
            Ok(()) => return library,
            Err(refusal) => refusals.push(refusal),
        }
    }
    panic!(
        "no library with which {} compiles: {refusals:#?}",
        right.display()
    );
}

#[test]
fn the_first_error_says_what_to_write_and_points_at_it() {
    let library = library();
    let mut seen = 0;
    for file in fs::read_dir(folder()).expect("the folder") {
        let program = file.expect("a file").path();
        let text = fs::read_to_string(&program).expect("a text");
        let lines = |marker: &'static str| text.lines().filter_map(move |l| l.strip_prefix(marker));
        let Some(at) = lines("// at: ").next() else {
            continue;
        };
        let shown = program.display();
        let refusal = compile(&library, &program).expect_err(&shown.to_string());
        for part in lines("// says: ") {
            assert!(
                refusal.says.contains(part),
                "{shown}: {part}\n{}",
                refusal.says
            );
        }
        assert_eq!(refusal.at, at, "{shown}\n{}", refusal.says);
        seen += 1;
    }
    assert!(seen >= 14, "programs were found: {seen}");
}
