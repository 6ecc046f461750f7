//! The order of the house: what a reader is told about the tree is true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules each top-level module names, outside comments and tests.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(&source).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap();
        let module = module.trim_end_matches(".rs").to_owned();
        let is_test = inside
            .with_extension("")
            .iter()
            .any(|part| part == "tests" || part == "contract");
        if is_test || module == "lib" || module == "testing" {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for (at, _) in line.match_indices("crate::") {
                let name: String = line[at + "crate::".len()..]
                    .chars()
                    .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                    .collect();
                if !name.is_empty() && name != module && name != "testing" {
                    imports.entry(module.clone()).or_default().insert(name);
                }
            }
        }
    }
    imports
}

#[test]
fn imports_go_one_way() {
    let mut imports = imports();
    assert!(imports["acquire"].contains("hold"), "it reads something");
    // Takes away whatever names nothing that is left; a circle never gets there.
    while let Some(leaf) = imports
        .iter()
        .find(|(_, names)| !names.iter().any(|name| imports.contains_key(name)))
        .map(|(module, _)| module.clone())
    {
        imports.remove(&leaf);
    }
    assert!(imports.is_empty(), "a circle among {imports:?}");
}

/// The modules in the order in which the map of ARCHITECTURE.md names them. What a line says of a module
/// begins after two spaces; what is inside a module is indented further.
fn stated_order() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let map = page.split("```").nth(1).expect("the map").to_owned();
    let rows = map.lines().filter(|row| !row.contains('/'));
    rows.filter_map(|row| row.strip_prefix("  -> ").or(Some(row)))
        .filter(|row| row.starts_with(|c: char| c.is_ascii_lowercase()))
        .flat_map(|row| row.split("  ").next().unwrap().split(' '))
        .map(str::to_owned)
        .collect()
}

#[test]
fn imports_go_the_way_the_map_says() {
    let order = stated_order();
    let place = |module: &str| {
        let place = order.iter().position(|stated| stated == module);
        place.unwrap_or_else(|| panic!("{module} is not on the map of ARCHITECTURE.md: {order:?}"))
    };
    let mut wrong = Vec::new();
    for (module, names) in imports() {
        let here = place(&module);
        // What the crate root re-exports is no module.
        for name in names.iter().filter(|name| order.contains(name)) {
            if place(name) <= here {
                wrong.push(format!("{module} imports {name}, which stands before it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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

#[test]
fn every_file_says_what_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches", "examples", "testkit/src"] {
        rust_files(&root.join(folder), &mut files);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{}", file.display());
    }
}
