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

/// Programs of tests that were built before are run without cargo, in the folders of their packages.
#[test]
fn tests_that_are_built_are_run_without_cargo() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("test");
    let package = folder.join("package");
    fs::create_dir_all(&package).unwrap();
    let script = |file: &Path, lines: &str| {
        fs::write(file, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
    };
    let program = folder.join("program");
    script(&program, "echo \"$PWD: $*\"; exit 3");
    let artifact = |kind: &str, name: &str, is_test: bool, executable: &str| {
        format!(
            r#"{{"manifest_path":"{}/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{is_test}}},"features":[],"executable":{executable}}}"#,
            package.display()
        )
    };
    let built = format!("\"{}\"", program.display());
    let artifacts = [
        artifact("test", "suite", true, &built),
        artifact("lib", "lockset", false, "null"),
        artifact("lib", "lockset", true, &built),
        artifact("proc-macro", "lockset_macros", true, &built),
        artifact("bin", "lockset", false, &built),
        artifact("bin", "lockset", true, &built),
    ];
    script(
        &folder.join("cargo"),
        &format!("echo '{}'; echo \"cargo $*\" >&2", artifacts.join("\n")),
    );
    let path = std::env::var("PATH").unwrap();
    let run = |arguments: &[&str]| {
        let mut script = Command::new("scripts/test");
        let script = script.args(arguments).current_dir(root);
        let script = script.env("PATH", format!("{}:{path}", folder.display()));
        let output = script
            .env("LOCKSET_BUILT", folder.join("built.json"))
            .output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
        (output.status.code(), said.concat())
    };
    let all = "--workspace --all-features --no-fail-fast";
    let (status, said) = run(&["--no-run", "--test", "suite"]);
    let format = "--message-format json-render-diagnostics";
    let asked = format!("cargo test {all} --no-run --test suite {format}\n");
    assert_eq!((status, said), (Some(0), asked));
    let (status, said) = run(&["--lib", "--test", "suite", "--", "--skip", "a b"]);
    let once = format!(
        "     Running {}\n{}: --skip a b\n",
        program.display(),
        package.display()
    );
    assert_eq!((status, said), (Some(3), once.repeat(3)));
    // The tests in it, not the program.
    let (status, said) = run(&["--bins", "--", "--skip", "a b"]);
    assert_eq!((status, said), (Some(3), once));
    let (status, said) = run(&["--test", "other"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("test other is not built"), "{said}");
    let (status, said) = run(&["--doc"]);
    assert!(said.contains(&format!("cargo test {all} --doc")), "{said}");
    assert_eq!(status, Some(0));
}

/// Every build of the Makefile that a person waits for goes through the script.
#[test]
fn no_demonstration_builds_in_silence() {
    let makefile = fs::read_to_string("Makefile").unwrap();
    let is_silent = |line: &&str| line.contains("cargo build --quiet");
    assert_eq!(makefile.lines().find(is_silent), None);
    assert!(makefile.matches("scripts/build ").count() >= 5);
}
