//! A guard as the checks know it: whose it is, for how long it may be held, and why it may be lost.

use std::time::Duration;

use lockset::{Loss, LostReason};
use tokio::time::Instant;

use super::plan::Kind;
use crate::deployment::Deployment;

/// A guard as it was given out.
pub(super) struct Grant {
    pub(super) kind: Kind,
    pub(super) process: usize,
    /// One of its process's owners.
    pub(super) owner: Option<usize>,
    /// When its call began.
    pub(super) asked: Instant,
    pub(super) loss: Loss,
    pub(super) token: Option<u64>,
    /// As the server knows it.
    pub(super) holder: String,
    /// The number of replicas that have confirmed it: behind sentinels and in a cluster, all of them.
    pub(super) replicas: u32,
    /// Its lease is not.
    pub(super) is_fixed: bool,
    pub(super) max_hold: Option<Duration>,
}

impl Grant {
    pub(super) fn is_renewed(&self) -> bool {
        !self.is_fixed && self.max_hold.is_none()
    }

    /// Whether these two are of one owner, which may enter again.
    pub(super) fn is_of_owner_of(&self, other: &Self) -> bool {
        let owner = |grant: &Self| grant.owner.map(|owner| (grant.process, owner));
        owner(self).is_some() && owner(self) == owner(other)
    }
}

/// One that is held.
pub(super) struct Held {
    pub(super) number: u64,
    pub(super) since: Instant,
    pub(super) is_shared: bool,
    pub(super) grant: Grant,
}

impl Held {
    pub(super) fn is_valid(&self) -> bool {
        !self.grant.loss.is_lost()
    }

    /// Whether the true primary knows its holder.
    pub(super) fn stands(&self, name: &str, deployment: &Deployment) -> bool {
        deployment.has_holder(name, &self.grant.holder)
    }

    /// Whether both may have the lock.
    pub(super) fn may_share_with(&self, other: &Self) -> bool {
        (self.is_shared && other.is_shared) || self.grant.is_of_owner_of(&other.grant)
    }

    /// Whether it is valid for longer than its handle allows.
    pub(super) fn is_overdue(&self) -> bool {
        let max_hold = self.grant.max_hold;
        max_hold.is_some_and(|most| self.since.elapsed() > most) && self.is_valid()
    }

    /// Whether a guard may be lost for this reason now. `may_fail`: something went wrong that may end any hold.
    pub(super) fn may_be_lost(&self, reason: LostReason, is_closed: bool, may_fail: bool) -> bool {
        match reason {
            // Counted from its grant, which was after its call began.
            LostReason::MaxHold => {
                let most = self.grant.max_hold;
                most.is_some_and(|most| self.grant.asked.elapsed() >= most)
            }
            LostReason::Closed => is_closed,
            LostReason::Expired => self.grant.is_fixed || may_fail,
            _ => may_fail,
        }
    }
}
