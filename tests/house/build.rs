//! `scripts/build` shows how far a build is where there is no terminal.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the script with a `cargo` that prints the lines of a build and exits with `status`.
fn build(status: i32) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("build-{status}"));
    fs::create_dir_all(&folder).unwrap();
    let cargo = folder.join("cargo");
    let script = format!(
        "#!/bin/sh\n\
         [ \"$CARGO_TERM_PROGRESS_WHEN\" = always ] || exit 9\n\
         echo \"arguments: $*\" >&2\n\
         printf '   Compiling redis v1.8.1\\n' >&2\n\
         printf '    Building [=>    ] 1/3: redis   \\r' >&2\n\
         printf '    Building [===>  ] 2/3: lockset(bin)   \\r' >&2\n\
         printf 'warning: unused variable\\n    Finished dev\\n' >&2\n\
         exit {status}\n"
    );
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    Command::new("scripts/build")
        .args(["the example", "--example", "seats"])
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("LOCKSET_BUILD_EVERY", "0")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[test]
fn a_build_says_what_it_builds_and_how_far_it_is() {
    let output = build(0);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "building the example: some minutes the first time\n\
         arguments: build --example seats\n\
         building the example: 1/3 crates\n\
         building the example: 2/3 crates\n\
         warning: unused variable\n\
         building the example: done\n"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_build_that_fails_ends_with_the_status_of_cargo() {
    let output = build(101);
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("done"));
}

/// Every build of the Makefile that a person waits for goes through the script.
#[test]
fn no_demonstration_builds_in_silence() {
    let makefile = fs::read_to_string("Makefile").unwrap();
    let is_silent = |line: &&str| line.contains("cargo build --quiet");
    assert_eq!(makefile.lines().find(is_silent), None);
    assert!(makefile.matches("scripts/build ").count() >= 5);
}
