//! What changes about a hold that goes on: one more share, or another lease.

use std::sync::Arc;
use std::time::Duration;

use super::bound::Bound;
use super::settle::Repair;
use super::{Hold, Phase, Share, ShareLease, local_deadline};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::counts::Mode;
use crate::error::{Error, Kind, Result};
use crate::hold::protocol::AcquireTerms;
use crate::lost::LostReason;
use crate::options::LeasePolicy;
use crate::owner::Owner;
use crate::script::reply::{self, Acquired};
use crate::script::{Call, CallBudget, Executed, millis};

/// For how long one more share is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Asked(LeasePolicy),
    /// Those of a guard that there is: one that is fixed ends when that does.
    Like(ShareLease),
}

impl Entry {
    fn lease(self) -> Duration {
        match self {
            Self::Asked(policy) => policy.lease(),
            Self::Like(ShareLease::Renewed(lease)) => lease,
            // A fixed lease is not lengthened by entering again.
            Self::Like(ShareLease::Until(_)) => Duration::from_millis(1),
        }
    }

    fn share_lease(self, sent: Tick) -> ShareLease {
        match self {
            Self::Asked(LeasePolicy::Renewed(lease)) => ShareLease::Renewed(lease),
            Self::Asked(LeasePolicy::Fixed(lease)) => {
                ShareLease::Until(local_deadline(sent, lease))
            }
            Self::Like(share_lease) => share_lease,
        }
    }
}

impl Hold {
    /// One more share for its owner. `None`: the hold is lost or gone, or somebody else's by now, and
    /// the caller is a newcomer.
    pub(crate) async fn reenter(
        self: &Arc<Self>,
        owner: &Owner,
        mode: Mode,
        entry: Entry,
        fenced: bool,
        operation: &'static str,
        bound: Option<&Bound>,
    ) -> Result<Option<Share>> {
        let alive = self.core.ensure_alive(operation);
        alive.map_err(|error| error.of_lock(self.name()))?;
        let budget = self.call_budget_of(bound);
        let _one_at_a_time = self.one_at_a_time(budget, operation).await?;
        if self.expire_if_due().is_some() {
            return Ok(None);
        }
        let (target, known, terms, was_late, late) = {
            let mut state = self.state.lock();
            // It may have passed to another task since the caller looked.
            if state.phase != Phase::Held || state.owner != *owner {
                return Ok(None);
            }
            let wanted = state.wanted();
            if mode == Mode::Exclusive && wanted.exclusive == 0 {
                return Err(self.no_upgrade(operation));
            }
            let lease = entry.lease();
            // What arrives when it is over at the server enters nothing.
            let sent_by = budget.deadline.min(state.server_end());
            let late = state.will_ask_until(sent_by, lease);
            let terms = AcquireTerms {
                publish: self.core.channels().publish(),
                mode,
                lease,
                // A hold has one token for as long as it lasts.
                tokens: u32::from(fenced && state.token.is_none()),
                is_new: false,
                heartbeat: None,
                accepts_handover: false,
                waited: Duration::ZERO,
            };
            let was_late = std::mem::replace(&mut state.late_entry, true);
            (wanted.raised(mode), state.confirmed, terms, was_late, late)
        };
        // If this is given up, the server may have counted one too many.
        let mut repair = Repair::armed(std::slice::from_ref(self));
        let call = self.protocol.acquire(&self.holder_ref(target), &terms);
        let answer = self
            .core
            .scripts
            .run(Lane::Command, &call, budget)
            .await
            .map_err(|failure| {
                self.state.lock().late_entry = was_late || failure.executed == Executed::Maybe;
                failure.into_error(operation).of_lock(self.name())
            })?;
        {
            let mut state = self.state.lock();
            state.late_entry = false;
            if !answer.repeated {
                state.answered(self.core.clock.now(), terms.lease, late);
            }
        }
        let Acquired::Held { token } = self.protocol.acquired(&answer.value)? else {
            repair.disarm();
            self.lose(LostReason::Revoked);
            return Ok(None);
        };
        if !self.extend(answer.sent, terms.lease) {
            return Ok(None);
        }
        let (share, look) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Ok(None);
            }
            state.counts = state.counts.raised(mode);
            state.unclaimed = false;
            // The script sets one count; a change of the other one may still be to be sent.
            state.confirmed = known.map(|known| known.with(mode, target.of(mode)));
            if token.is_some() {
                state.token = token;
                state.spare_tokens = 0..0;
            }
            let share_lease = entry.share_lease(answer.sent);
            state.leases.add(share_lease);
            state.lease = state.lease.max(terms.lease);
            if state.confirmed == Some(state.wanted()) {
                repair.disarm();
            }
            let owner = state.owner.clone();
            let share = Share::of(Arc::clone(self), mode, owner, share_lease);
            (share, state.next_look())
        };
        self.core.watchdog.shift(self.number, look);
        Ok(Some(share))
    }

    /// A share has another lease from here on.
    pub(super) fn change_lease(&self, before: ShareLease, share_lease: ShareLease) {
        let look = {
            let mut state = self.state.lock();
            state.leases.add(share_lease);
            state.leaves(before);
            state.next_look()
        };
        self.core.watchdog.shift(self.number, look);
    }

    /// Has the server agree to another lease for this hold, which another task of this client has passed
    /// on. `None` if it is lost.
    pub(super) async fn adopt(
        &self,
        policy: LeasePolicy,
        operation: &'static str,
        bound: &Bound,
    ) -> Result<Option<ShareLease>> {
        let budget = self.call_budget_of(Some(bound));
        let _one_at_a_time = self.one_at_a_time(budget, operation).await?;
        if self.expire_if_due().is_some() {
            return Ok(None);
        }
        let lease = policy.lease();
        let late = {
            let mut state = self.state.lock();
            let sent_by = budget.deadline.min(state.server_end());
            state.will_ask_until(sent_by, lease)
        };
        // Not an acquire: one that arrived late would take the lock anew.
        let key = self.name.key();
        let call = Call::new(self.protocol.renewal(), key, &[key])
            .arg(&*self.holder)
            .arg(millis(lease));
        let answer = self
            .core
            .scripts
            .run(Lane::Command, &call, budget)
            .await
            .map_err(|failure| failure.into_error(operation).of_lock(self.name()))?;
        if reply::renewed(&answer.value, 1)? != [true] {
            self.lose(LostReason::Revoked);
        }
        if !self.extend(answer.sent, lease) {
            return Ok(None);
        }
        {
            let mut state = self.state.lock();
            if !answer.repeated {
                // Or the next one could not have it as this one did.
                state.answered(self.core.clock.now(), lease, late);
            }
            state.lease = lease;
            // Not before: its task may not be polled any more.
            state.unclaimed = false;
        }
        Ok(Some(Entry::Asked(policy).share_lease(answer.sent)))
    }

    /// How long an operation that starts now may go on: as the call that it is a part of, or as the
    /// handle of the hold says.
    fn call_budget_of(&self, bound: Option<&Bound>) -> CallBudget {
        match bound {
            Some(bound) => bound.call_budget(self.core.clock.now()),
            None => self.call_budget(),
        }
    }

    /// Why an owner that only reads cannot write: it would wait for itself.
    pub(crate) fn no_upgrade(&self, operation: &'static str) -> Error {
        let message = "this owner reads, and a writer waits for all readers, so it would wait for \
         itself; release the read guard first, or write first and downgrade";
        let error = Error::new(Kind::Upgrade, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }
}
