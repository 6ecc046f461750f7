//! A request to confirm holds by replicas, and its verdict.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::oneshot;

use crate::api::holder::HolderId;
use crate::api::options::Replication;
use crate::engine::clock::Tick;
use crate::script::{Failure, Script};

/// One hold to confirm.
#[derive(Debug)]
pub(crate) struct Confirmation {
    /// Renews any number of holds of this kind. See [`RenewalRequest`](crate::watchdog::RenewalRequest).
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: HolderId,
    /// The end of the lease, which the confirmation does not lengthen.
    pub(crate) until: Tick,
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The requested number of replicas has it.
    Confirmed,
    /// The server no longer has it, or is no longer a primary.
    Gone,
    /// Only this number of replicas had it in time.
    TooFew(i64),
    /// The server does not permit this user to run `WAIT`.
    Denied(RedisError),
}

pub(super) type ConfirmOutcome = Result<Verdict, Failure>;

/// Holds in one slot that are confirmed for one caller.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) holds: Vec<Confirmation>,
    pub(super) replication: Replication,
    pub(super) outcome: oneshot::Sender<ConfirmOutcome>,
}
