//! Redisson's names for the keys and channels of a lock.
//!
//! Redisson only checks whether the name contains `{`, not whether that begins a hash tag, so the
//! keys of some names are in different slots of a cluster.

/// `prefix:{name}`, or `prefix:name` if the name contains a brace.
pub(super) fn prefixed(prefix: &str, name: &str) -> String {
    format!("{prefix}:{}", braced(name))
}

/// `{name}:suffix`, or `name:suffix` if the name contains a brace.
pub(super) fn suffixed(name: &str, suffix: &str) -> String {
    format!("{}:{suffix}", braced(name))
}

/// The form of the name inside other names.
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
