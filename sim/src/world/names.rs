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
        Kind::Permits => vec![format!("permits:{lock}")],
        Kind::Lead => vec![format!("leads:{lock}")],
        Kind::Latch => vec![format!("latch:{lock}")],
        Kind::Barrier => vec![format!("barrier:{lock}")],
    }
}

/// The names of all locks of a world, as servers know them.
pub(super) fn lock_names() -> impl Iterator<Item = String> {
    let kinds = [
        Kind::Reentrant,
        Kind::Fair,
        Kind::Write,
        Kind::Once,
        Kind::Lead,
    ];
    kinds
        .into_iter()
        .flat_map(|kind| (0..2).flat_map(move |lock| names(kind, lock)))
}

/// The names of all semaphores of a world, as the server knows them.
pub(super) fn semaphore_names() -> impl Iterator<Item = String> {
    (0..2).flat_map(|lock| names(Kind::Permits, lock))
}
