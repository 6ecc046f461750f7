//! The settings and the state that callers and the driver of a connection share.
//!
//! Invariant: the bytes of a command and its place among the unanswered are added together, so that both have one
//! order.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use redis::ProtocolVersion;

use super::unanswered::Unanswered;
use crate::conn::link::first_bytes::FirstBytes;
use crate::conn::link::shared_tick::SharedTick;
use crate::conn::push::PushState;
use crate::engine::clock::Clock;

/// The settings of a wire.
#[derive(Clone, Debug)]
pub(crate) struct WireParams {
    pub(crate) clock: Clock,
    pub(crate) protocol: ProtocolVersion,
    /// A connection without a reply for this long is silent.
    pub(crate) silence: Duration,
    /// Records when the server last replied to a command.
    pub(crate) last_reply: SharedTick,
    /// Takes what comes without a request.
    pub(crate) push: Arc<PushState>,
    /// Records what the server sends first.
    pub(crate) first_bytes: FirstBytes,
}

#[derive(Debug, Default)]
pub(super) struct Shared(pub(super) Mutex<WireState>);

#[derive(Debug, Default)]
pub(super) struct WireState {
    /// Commands that the driver has not taken yet.
    pub(super) bytes: Vec<u8>,
    pub(super) unanswered: Unanswered,
    /// Woken when there is something to send; `None` once it was woken.
    pub(super) driver: Option<Waker>,
}
