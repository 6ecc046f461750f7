//! What is to be confirmed by replicas, and what became of it.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::oneshot;

use crate::api::holder::HolderId;
use crate::api::options::Replication;
use crate::engine::clock::Tick;
use crate::script::{Failure, Script};

/// One hold to be confirmed.
#[derive(Debug)]
pub(crate) struct Confirmation {
    /// Renews any number of holds of this kind; as of [`RenewalRequest`](crate::watchdog::RenewalRequest).
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: HolderId,
    /// The end of its lease, which is not lengthened.
    pub(crate) until: Tick,
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// As many replicas as were asked for have it.
    Confirmed,
    /// The server does not have it any more, or is no primary any more.
    Gone,
    /// Only as many had it in time.
    TooFew(i64),
    /// The server does not let this user wait.
    Denied(RedisError),
}

pub(super) type Outcome = Result<Verdict, Failure>;

/// Holds in one slot that are confirmed for one caller.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) holds: Vec<Confirmation>,
    pub(super) replication: Replication,
    pub(super) outcome: oneshot::Sender<Outcome>,
}
