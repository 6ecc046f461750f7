//! One lane of a client to one server: its current connection, and what is known of those before.

use std::sync::Arc;
use std::time::Duration;

use lockset::simulated::{Failure, Lane};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The number of a connection in its network.
pub(crate) type WireId = u64;

/// A lane, and the server it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId {
    pub(crate) server: usize,
    pub(crate) lane: Lane,
}

#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) current: Option<WireId>,
    pub(super) dialing: Option<WireId>,
    /// Those before it, which the server has not been told to end.
    pub(super) earlier: Vec<WireId>,
    /// Attempts that have ended, however.
    pub(super) attempts: u64,
    pub(super) failures: u32,
    pub(super) failure: Option<Failure>,
    pub(super) next_dial: Duration,
    pub(super) run: Option<(Arc<str>, Instant)>,
}

/// The state of a request.
pub(crate) enum Submission {
    /// It is on its way.
    Sent(
        WireId,
        oneshot::Receiver<Result<Vec<redis::Value>, Failure>>,
    ),
    /// The caller may try again once this many attempts to connect have ended.
    Wait(u64),
    Failed(Failure),
}
