//! The terms that readers must agree on to have one hold together: plain values.

use std::time::Duration;

use crate::api::options::Replication;
use crate::observe::group::Group;

/// A reader's request to join a hold, for an owner that has nothing yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRequest {
    pub(crate) terms: ReaderClass,
    pub(crate) group: Group,
}

/// The terms that are equal for all readers of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderClass {
    /// The lease, which is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}
