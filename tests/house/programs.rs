//! Every program of tests is run by `make test`, `test-nonsense`, `test-alone` or `test-later`, which list them, and
//! every test that draws its input at random by `make properties`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The workspace's folders that have tests of their own.
const FOLDERS: [&str; 7] = [
    "tests",
    "checks/model/tests",
    "checks/nemesis/tests",
    "cli/tests",
    "operator/tests",
    "sim/tests",
    "testkit/tests",
];

/// Those that have a line of their own.
const BESIDES: [&str; 3] = ["nonsense", "simulated", "suite"];

/// The words of a list of the Makefile.
fn listed(makefile: &str, list: &str) -> BTreeSet<String> {
    let (_, listed) = makefile
        .split_once(&format!("\n{list} = "))
        .expect("the list");
    let listed = listed.lines().next().unwrap().split_whitespace();
    listed.map(str::to_owned).collect()
}

fn makefile() -> String {
    fs::read_to_string("Makefile").unwrap().replace("\\\n", " ")
}

#[test]
fn the_makefile_runs_every_program_of_tests() {
    let mut there = BTreeSet::new();
    for folder in FOLDERS {
        let Ok(entries) = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let is_program = path.join("main.rs").exists()
                || path.extension().is_some_and(|extension| extension == "rs");
            if is_program {
                there.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let makefile = makefile();
    let mut run = BTreeSet::new();
    for list in [
        "WITH_LIBS",
        "OF_CLI",
        "OF_VIEWS",
        "OF_NEMESIS",
        "OF_TESTKIT",
        "MODELS",
    ] {
        run.extend(listed(&makefile, list));
    }
    for name in BESIDES {
        assert!(
            makefile.contains(&format!("(WORKSPACE) --test {name}")),
            "{name}"
        );
        run.insert(name.to_owned());
    }
    assert_eq!(run, there);

    // Of the examples, those that have tests: the manifests say so.
    for manifest in ["Cargo.toml", "sim/Cargo.toml"] {
        let manifest = fs::read_to_string(manifest).unwrap();
        for example in manifest.split("[[example]]").skip(1) {
            let example = example.split("\n[").next().unwrap();
            if example.contains("test = true") {
                let name = example.split('"').nth(1).unwrap();
                assert!(makefile.contains(&format!("--example {name} ")), "{name}");
            }
        }
    }
}

#[test]
fn the_makefile_runs_every_test_with_input_at_random() {
    let filters = listed(&makefile(), "PROPERTIES");
    let mut used = BTreeSet::new();
    for source in ["src", "operator/src", "cli/src", "sim/src", "macros/src"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if fs::read_to_string(&path).is_ok_and(|text| text.contains("proptest! {")) {
                    let module = path.strip_prefix(&source).unwrap().with_extension("");
                    let module = module.to_str().unwrap().replace('/', "::") + "::";
                    let filter = filters.iter().find(|filter| module.contains(*filter));
                    used.insert(filter.unwrap_or_else(|| panic!("{module}")).clone());
                }
            }
        }
    }
    assert_eq!(used, filters);
}
