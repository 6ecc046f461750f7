//! Data flows one way: among the files of the library, and as the map of ARCHITECTURE.md says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::source::{OTHERS, imports, library, modules};

/// Maps each file to the files it imports.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Repeatedly removes files that import nothing or are imported by nothing. Only circles, and files
/// between two circles, are left.
fn circles(mut imports: Imports<'_>) -> Imports<'_> {
    loop {
        let imported: BTreeSet<&str> = imports.values().flatten().copied().collect();
        let importing: BTreeSet<&str> = imports.keys().copied().collect();
        let before = imports.len();
        imports.retain(|file, _| imported.contains(file));
        for named in imports.values_mut() {
            named.retain(|file| importing.contains(file));
        }
        imports.retain(|_, named| !named.is_empty());
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn a_circle_is_found() {
    let one_way = [
        ("a", BTreeSet::from(["b", "c"])),
        ("b", BTreeSet::from(["c"])),
        ("c", BTreeSet::new()),
    ];
    assert!(circles(BTreeMap::from(one_way.clone())).is_empty());
    let mut back = BTreeMap::from(one_way);
    back.insert("c", BTreeSet::from(["b"]));
    assert_eq!(circles(back).into_keys().collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn imports_go_one_way() {
    let library = library();
    let imports = imports(&library);
    assert!(
        imports["reentrant"].contains("client"),
        "paths are read: {:?}",
        imports["reentrant"]
    );
    let circles = circles(imports);
    assert!(circles.is_empty(), "a circle among {circles:#?}");
}

#[test]
fn imports_go_one_way_in_the_other_crates() {
    let mut circular = Vec::new();
    for root in OTHERS {
        let files = modules(root);
        assert!(files.len() > 3, "{root} was walked");
        let circles = circles(imports(&files));
        if !circles.is_empty() {
            circular.push(format!("{root}: a circle among {circles:#?}"));
        }
    }
    assert!(circular.is_empty(), "{}", circular.join("\n"));
}

/// Reads the order of the modules from the map in ARCHITECTURE.md. A description starts after two
/// spaces, and the parts of a module are indented further.
fn stated_order() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
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
    // The longest part of a path that is on the map counts: `engine::hold` for `engine::hold::share`.
    let place = |file: &str| {
        let ends = file.match_indices("::").map(|(end, _)| end);
        let parts = ends.chain([file.len()]).map(|end| &file[..end]);
        let places = parts.filter_map(|part| order.iter().position(|stated| stated == part));
        places
            .last()
            .unwrap_or_else(|| panic!("{file} is not on the map of ARCHITECTURE.md: {order:?}"))
    };
    let library = library();
    let mut wrong = Vec::new();
    for (file, named) in imports(&library) {
        // The root and the rooms only declare their files.
        let is_room = |path: &str| ["", "api", "engine", "observe"].contains(&path);
        if is_room(file) {
            continue;
        }
        let others = named.into_iter().filter(|other| !is_room(other));
        for other in others.filter(|other| place(other) < place(file)) {
            wrong.push(format!("{file} imports {other}, which stands before it"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
