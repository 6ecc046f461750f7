//! What readers have to have in common, to have one hold together: plain values.

use std::time::Duration;

use crate::group::Group;
use crate::options::Replication;

/// What a reader that would join wants, for an owner that has nothing yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRequest {
    pub(crate) terms: JoinTerms,
    pub(crate) group: Group,
}

/// What all who join one hold have asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinTerms {
    /// It is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}
