//! Every file says what it is, and every link leads somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn every_file(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            every_file(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut files = Vec::new();
    every_file(folder, &mut files);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    found.extend(files);
}

/// It is also shown where the files beside it are not.
#[test]
fn every_link_of_the_readme_is_absolute_and_leads_somewhere() {
    const OURS: &str = "https://github.com/lockset-rs/lockset/";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let inline = text.split("](").skip(1);
    let inline = inline.filter_map(|rest| rest.split(')').next());
    let definitions = text.lines().filter(|line| line.starts_with('['));
    let defined = definitions.filter_map(|line| line.split_once("]: "));
    let links: Vec<&str> = inline.chain(defined.map(|(_, link)| link)).collect();
    assert!(links.len() > 10, "it has links: {links:?}");
    for link in links {
        assert!(
            link.starts_with("https://") || link.starts_with('#'),
            "{link}"
        );
        if let Some(inside) = link.strip_prefix(OURS) {
            let path = inside.splitn(3, '/').nth(2).expect("blob/main/path");
            let path = path.split('#').next().unwrap();
            assert!(root.join(path).exists(), "{link}");
        }
    }
}

/// Links to other pages and files, from the folder of the page. Rustdoc checks the links to items (`crate::..`).
#[test]
fn every_link_between_pages_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "RELEASING.md",
        "SECURITY.md",
    ];
    let mut pages = top.map(|page| root.join(page)).to_vec();
    every_file(&root.join("docs"), &mut pages);
    pages.push(root.join("lua/README.md"));
    let mut links = 0;
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|is| is == "md"))
    {
        let text = std::fs::read_to_string(page).unwrap();
        let inline = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let is_path = |link: &&str| !link.contains("::") && !link.starts_with("https://");
        for link in inline.filter(is_path) {
            let path = link.split('#').next().unwrap();
            assert!(
                page.parent().unwrap().join(path).exists(),
                "{}: {link}",
                page.display()
            );
            links += 1;
        }
    }
    assert!(links > 50, "pages have links: {links}");
}

#[test]
fn every_file_says_what_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "tests",
        "benches",
        "checks",
        "demos",
        "examples",
        "testkit/src",
        "macros",
    ] {
        rust_files(&root.join(folder), &mut files);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{}", file.display());
    }
}

/// Of `src`, `lua` and the rest by their paths, or by their names alone.
#[test]
fn every_file_named_by_the_architecture_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let is_of_name = |sign: char| sign.is_ascii_alphanumeric() || "_./".contains(sign);
    let words = page.split(|sign: char| !is_of_name(sign));
    let is_file = |word: &&str| word.ends_with(".rs") || word.ends_with(".lua");
    let named: BTreeSet<&str> = words.filter(is_file).collect();
    assert!(named.len() > 40, "it names files: {named:?}");
    let mut files = Vec::new();
    for folder in [
        "src", "lua", "tests", "checks", "cli", "macros", "sim", "testkit",
    ] {
        every_file(&root.join(folder), &mut files);
    }
    let is_missing = |name: &&&str| !files.iter().any(|file| file.ends_with(name));
    let missing: Vec<_> = named.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
