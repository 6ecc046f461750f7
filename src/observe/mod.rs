//! Reports of a client about itself: events, counts, metrics, spans, and its announcement to operators.
//!
//! Invariant: nothing here changes what a lock does.

pub(crate) mod announce;
pub(crate) mod events;
pub(crate) mod group;
pub(crate) mod long_wait;
pub(crate) mod meter;
pub(crate) mod observer;
pub(crate) mod totals;
pub(crate) mod trace;
pub(crate) mod waits;
