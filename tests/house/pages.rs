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

/// The anchor that a heading gets on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|sign| match sign {
        ' ' => Some('-'),
        '-' | '_' => Some(sign),
        _ => sign.is_alphanumeric().then(|| sign.to_ascii_lowercase()),
    });
    kept.collect()
}

fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = std::fs::read_to_string(page).unwrap();
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .any(|title| title == wanted)
}

/// Links to other pages, their headings and files, from the folder of the page. Rustdoc checks the links to items
/// (`crate::..`).
#[test]
fn every_link_between_pages_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = [
        "README.md",
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
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            assert!(
                heading.is_empty() || has_heading(&target, heading),
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
        "operator",
    ] {
        rust_files(&root.join(folder), &mut files);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{}", file.display());
    }
}

/// ARCHITECTURE.md and the headers of rooms name files of `src`, `lua` and the rest by their paths, or by their names
/// alone.
#[test]
fn every_file_named_by_the_architecture_and_by_a_room_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src", "lua", "tests", "checks", "cli", "macros", "sim", "testkit", "operator",
    ] {
        every_file(&root.join(folder), &mut files);
    }
    let mut pages = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let rooms = files
        .iter()
        .filter(|file| file.starts_with(root.join("src")) && file.ends_with("mod.rs"));
    for room in rooms {
        let text = std::fs::read_to_string(room).unwrap();
        let header = text.lines().take_while(|line| line.starts_with("//!"));
        pages.extend(header.flat_map(|line| [line, "\n"]));
    }
    let is_of_name = |sign: char| sign.is_ascii_alphanumeric() || "_./".contains(sign);
    let words = pages.split(|sign: char| !is_of_name(sign));
    let is_file = |word: &&str| word.ends_with(".rs") || word.ends_with(".lua");
    let named: BTreeSet<&str> = words.filter(is_file).collect();
    assert!(named.len() > 100, "they name files: {named:?}");
    let is_missing = |name: &&&str| !files.iter().any(|file| file.ends_with(name));
    let missing: Vec<_> = named.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
