//! The state that callers and the driver of a connection share.
//!
//! Invariant: the bytes of a command and its place among the unanswered are added together, so that both have one
//! order.

use std::task::Waker;

use parking_lot::Mutex;

use super::unanswered::Unanswered;

#[derive(Debug, Default)]
pub(super) struct Shared(pub(super) Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Commands that the driver has not taken yet.
    pub(super) bytes: Vec<u8>,
    pub(super) unanswered: Unanswered,
    /// Woken when there is something to send; `None` once it was woken.
    pub(super) driver: Option<Waker>,
}
