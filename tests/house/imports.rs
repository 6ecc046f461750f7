//! Data flows one way, as the map of ARCHITECTURE.md says.

use std::fs;
use std::path::Path;

use crate::source::{imports, library};

/// The modules in the order in which the map of ARCHITECTURE.md names them. What a line says of a module
/// begins after two spaces; what is inside a module is indented further.
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
    let place = |file: &str| {
        let module = file.split("::").next().unwrap();
        let place = order.iter().position(|stated| stated == module);
        place.unwrap_or_else(|| panic!("{module} is not on the map of ARCHITECTURE.md: {order:?}"))
    };
    let library = library();
    let mut wrong = Vec::new();
    for (file, named) in imports(&library) {
        if file.is_empty() {
            continue; // The root names all it has.
        }
        for other in named.into_iter().filter(|other| place(other) < place(file)) {
            wrong.push(format!("{file} imports {other}, which stands before it"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
