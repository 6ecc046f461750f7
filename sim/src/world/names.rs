//! The names of the locks of a world.

use super::plan::Kind;

/// The names of what one call asks for, as its servers know them.
pub(super) fn names(kind: Kind, lock: usize) -> Vec<String> {
    match kind {
        Kind::Reentrant => vec![format!("plain:{lock}")],
        Kind::Fair => vec![format!("fair:{lock}")],
        Kind::Read | Kind::Write => vec![format!("rw:{lock}")],
        Kind::Multi => vec![
            "plain:0".to_owned(),
            format!("fair:{lock}"),
            "rw:1".to_owned(),
        ],
        Kind::Redlock => vec![format!("redlock:{lock}")],
        Kind::Once => vec![format!("once:{lock}")],
    }
}

/// The names of all locks of a world, as servers know them.
pub(super) fn lock_names() -> impl Iterator<Item = String> {
    let kinds = [Kind::Reentrant, Kind::Fair, Kind::Write, Kind::Once];
    kinds
        .into_iter()
        .flat_map(|kind| (0..2).flat_map(move |lock| names(kind, lock)))
}
