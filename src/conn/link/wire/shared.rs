//! What callers and the driver of a connection share.
//!
//! Invariant: a command's bytes and its place among the unanswered are added together, so that both are in
//! one order.

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
    /// To be woken when there is something to send; `None` if it was.
    pub(super) driver: Option<Waker>,
}
