//! Every published crate comes with its texts, and is published in an order that works.

use std::fs;
use std::path::{Path, PathBuf};

/// In the order of publishing: each depends only on earlier ones.
const PUBLISHED: [(&str, &str); 5] = [
    ("lockset-macros", "macros"),
    ("lockset", ""),
    ("lockset-operator", "operator"),
    ("lockset-sim", "sim"),
    ("lockset-cli", "cli"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The manifest up to its first table behind `[package]`.
fn package_table(manifest: &str) -> &str {
    let (_, rest) = manifest.split_once("[package]\n").expect("a package");
    rest.split("\n[").next().unwrap()
}

#[test]
fn every_published_crate_has_its_texts() {
    let mut versions = Vec::new();
    for (name, folder) in PUBLISHED {
        let folder = root().join(folder);
        let manifest = read(&folder.join("Cargo.toml"));
        let package = package_table(&manifest);
        assert!(package.contains(&format!("name = \"{name}\"\n")), "{name}");
        for field in [
            "description = ",
            "license.workspace = true",
            "rust-version.workspace = true",
            "repository = ",
            "documentation = ",
            "readme = \"README.md\"",
            "keywords = ",
            "categories = ",
            "include = ",
            "\"/README.md\"",
            "\"/LICENSE-*\"",
        ] {
            assert!(package.contains(field), "{name}: no {field}");
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert_eq!(
                read(&folder.join(licence)),
                read(&root().join(licence)),
                "{name}: {licence}"
            );
        }
        let readme = read(&folder.join("README.md"));
        assert!(readme.starts_with(&format!("# {name}\n")), "{name}");
        let version = package
            .lines()
            .find(|line| line.starts_with("version = "))
            .expect("a version");
        versions.push(version.to_owned());
    }
    versions.dedup();
    assert_eq!(versions.len(), 1, "one version for all: {versions:?}");
}

/// All other crates of the workspace say that they stay here.
#[test]
fn the_order_of_publishing_names_every_published_crate() {
    let members = read(&root().join("Cargo.toml"));
    let members = members.lines().find(|line| line.starts_with("members = "));
    let members: Vec<&str> = members
        .expect("the workspace")
        .split('"')
        .skip(1)
        .step_by(2)
        .collect();
    assert!(members.len() > 4, "members were found: {members:?}");
    for member in members {
        let manifest = read(&root().join(member).join("Cargo.toml"));
        let is_published = PUBLISHED.iter().any(|(_, folder)| *folder == member);
        assert_eq!(
            !manifest.contains("publish = false"),
            is_published,
            "{member}"
        );
    }
    let names = PUBLISHED.map(|(name, _)| format!("-p {name}")).join(" ");
    let page = read(&root().join("RELEASING.md"));
    assert!(
        page.matches(&names).count() >= 2,
        "RELEASING.md: no {names}"
    );
    let makefile = read(&root().join("Makefile"));
    for (name, _) in PUBLISHED {
        assert!(
            makefile.contains(&format!("--package {name}")),
            "make package: no {name}"
        );
    }
}
