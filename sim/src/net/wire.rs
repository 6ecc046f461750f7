//! One connection, as both of its ends see it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::inbox::Inbox;
use crate::node::ConnectionId;
use crate::words::Words;

/// The number of a connection in its network.
pub(crate) type WireId = u64;

/// Its client's view of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being made.
    Dialing,
    Open,
    /// It was refused, or its client has closed it.
    Over,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) client: usize,
    pub(super) server: usize,
    pub(super) phase: Phase,
    /// Read by its client.
    pub(super) inbox: Arc<Inbox>,
    /// Its number at the server, once that has accepted it.
    pub(super) accepted: Option<ConnectionId>,
    pub(super) waiting: Option<Waiting>,
    /// Commands that wait for it.
    pub(super) behind: VecDeque<Words>,
    /// By direction: until when what was sent before is on its way.
    pub(super) free_at: [Duration; 2],
    /// By direction: nothing that is sent from now on arrives.
    pub(super) is_stalled: [bool; 2],
}

/// A `WAIT` that has not ended.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) replicas: usize,
    pub(super) changes: u64,
}
