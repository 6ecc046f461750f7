//! Reports of a client about itself: events, counts, metrics, spans, and its announcement to operators.
//!
//! Every fact is noted once, by [`Observed::note`](observer::Observed::note). Invariant: nothing here changes what a
//! lock does.

pub(crate) mod announce;
pub(crate) mod call;
pub(crate) mod counts;
pub(crate) mod events;
pub(crate) mod group;
#[cfg(feature = "metrics")]
mod meter;
pub(crate) mod observer;
pub(crate) mod waits;
