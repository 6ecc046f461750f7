//! How Redisson names what belongs to a lock.
//!
//! The only test is whether the name contains `{`. It is not asked whether that begins a hash tag, so
//! some names scatter their keys over a cluster.

/// `prefix:{name}`, or `prefix:name` where the name has a brace of its own.
pub(super) fn prefixed(prefix: &str, name: &str) -> String {
    format!("{prefix}:{}", braced(name))
}

/// `{name}:suffix`, or `name:suffix` where the name has a brace of its own.
pub(super) fn suffixed(name: &str, suffix: &str) -> String {
    format!("{}:{suffix}", braced(name))
}

/// The name as it stands inside other names.
pub(super) fn braced(name: &str) -> String {
    if name.contains('{') {
        name.to_owned()
    } else {
        format!("{{{name}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_go_around_names_without_an_opening_one() {
        for (name, inside) in [
            ("a", "{a}"),
            ("a}b", "{a}b}"),
            ("a{b}c", "a{b}c"),
            ("a{b", "a{b"),
            ("{}a", "{}a"),
        ] {
            assert_eq!(prefixed("p", name), format!("p:{inside}"));
            assert_eq!(suffixed(name, "s"), format!("{inside}:s"));
        }
    }
}
