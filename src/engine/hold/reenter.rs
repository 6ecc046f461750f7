//! Adds one more share to a hold, for its owner.
//!
//! The server counts one hold, so a re-entry needs no request. Invariant: a share is added only to a hold that the
//! server is known to have for long enough. Otherwise a renewal is sent first, and the client drives it to its end.

use std::sync::Arc;
use std::time::Duration;

use super::bound::Bound;
use super::event::{Entered, Event};
use super::share_lease::{ShareLease, lease_until};
use super::shell::{Hold, RawShare};
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::lost::LostReason;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::observe::totals::GrantedBy;
use crate::script::reply;
use crate::script::{Answer, Call, CallBudget, millis};

/// How long one more share lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Asked(LeasePolicy),
    /// As long as the share of an existing guard, with the same end.
    Like(ShareLease),
}

impl Entry {
    fn lease(self, now: Tick) -> Duration {
        match self {
            Self::Asked(policy) => policy.lease(),
            // A re-entry does not lengthen a share that ends at a fixed time.
            Self::Like(like) => match like.renewed() {
                Some(lease) => lease_until(lease, now, like.end()),
                None => Duration::from_millis(1),
            },
        }
    }

    fn share_lease(self, sent: Tick, now: Tick) -> ShareLease {
        match self {
            Self::Asked(policy) => ShareLease::of(policy, sent, now),
            Self::Like(lease) => lease,
        }
    }
}

/// A lease that the server gave before a re-entry.
struct Agreed {
    /// When the lease was requested.
    sent: Tick,
    lease: Duration,
    token: Option<FencingToken>,
}

/// The share that an owner asks for.
struct Wanted<'a> {
    owner: &'a Owner,
    mode: Mode,
    entry: Entry,
    fenced: bool,
    operation: &'static str,
}

impl Hold {
    /// Adds one more share for its owner. `None` if the hold is lost or over, or has another owner now: the caller
    /// then asks for the lock as any other.
    pub(super) async fn reenter(
        self: &Arc<Self>,
        owner: &Owner,
        mode: Mode,
        entry: Entry,
        fenced: bool,
        operation: &'static str,
        bound: Option<&Bound>,
    ) -> Result<Option<RawShare>> {
        let alive = self.core.ensure_alive(operation);
        alive.map_err(|error| error.of_lock(self.name()))?;
        let wanted = Wanted {
            owner,
            mode,
            entry,
            fenced,
            operation,
        };
        let (lease, is_fenced) = match self.enter(&wanted, None)? {
            Way::Entered(share) => return Ok(Some(share)),
            Way::Gone => return Ok(None),
            Way::AfterRenewal { lease, fenced } => (lease, fenced),
        };
        let (this, budget) = (Arc::clone(self), self.call_budget_of(bound));
        let agreeing = async move { this.agree(lease, is_fenced, operation, budget).await };
        let agreed = self.driven(operation, agreeing).await?;
        match agreed {
            Some(agreed) => match self.enter(&wanted, Some(agreed))? {
                Way::Entered(share) => Ok(Some(share)),
                Way::Gone | Way::AfterRenewal { .. } => Ok(None),
            },
            None => Ok(None),
        }
    }

    /// Adds a share if the server is known to have the hold for long enough, or has just agreed to that.
    fn enter(self: &Arc<Self>, wanted: &Wanted<'_>, agreed: Option<Agreed>) -> Result<Way> {
        let state = self.state();
        // Read under the mutex, so that no event of an earlier time follows.
        let now = self.core.clock.now();
        let &Wanted {
            owner, mode, entry, ..
        } = wanted;
        // It may have been handed off since the caller looked.
        if !state.is_held() || now >= state.deadline() || !state.is_of(owner) {
            return Ok(Way::Gone);
        }
        if mode == Mode::Exclusive && !state.is_written() {
            return Err(self.no_upgrade(wanted.operation));
        }
        let (granted, token) = match agreed {
            Some(agreed) => (Some((agreed.sent, agreed.lease)), agreed.token),
            None => {
                let lease = entry.lease(now);
                // A hold has one token for as long as it lasts.
                let fenced = wanted.fenced && state.token_of(owner).is_none();
                if fenced || !state.can_be_entered(now, lease, entry.share_lease(now, now)) {
                    return Ok(Way::AfterRenewal { lease, fenced });
                }
                (None, None)
            }
        };
        let lease = entry.share_lease(granted.map_or(now, |(sent, _)| sent), now);
        let entered = Event::Entered(Entered {
            owner: owner.clone(),
            mode,
            share: lease,
            granted,
            token,
        });
        if !self.apply_to(state, now, entered).is_accepted {
            return Ok(Way::Gone);
        }
        self.count_grant(mode, GrantedBy::Reentry);
        Ok(Way::Entered(RawShare {
            hold: Arc::clone(self),
            owner: owner.clone(),
            mode,
            lease,
            kept_until: Tick::ZERO,
        }))
    }

    /// Asks for a lease, and for a token if one is wanted. `None` if the hold is lost.
    async fn agree(
        &self,
        lease: Duration,
        fenced: bool,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Option<Agreed>> {
        let _one_at_a_time = self.one_at_a_time(budget, operation).await?;
        let Some(answer) = self.ask_for_lease(lease, operation, budget).await? else {
            return Ok(None);
        };
        let mut token = None;
        if fenced {
            token = self.ask_for_token(operation, budget).await?;
            if token.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Agreed {
            sent: answer.sent,
            lease,
            token,
        }))
    }

    /// Asks for a lease of this length. `None` if the hold is lost.
    pub(super) async fn ask_for_lease(
        &self,
        lease: Duration,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Option<Answer>> {
        if self.expire_if_due().is_some() || !self.state().is_held() {
            return Ok(None);
        }
        let until = budget.deadline.min(self.state().server_end());
        self.apply(Event::LeaseSent { lease, until });
        // A renewal, because an acquire that arrived late would take a free lock.
        let key = self.name.key();
        let call = Call::new(self.protocol.renewal(), key, &[key])
            .arg(&*self.holder)
            .arg(millis(lease));
        let answer = self.ask(&call, operation, budget).await?;
        if reply::renewed(&answer.value, 1)? != [true] {
            self.apply(Event::Lost(LostReason::Revoked));
            return Ok(None);
        }
        let is_repeated = answer.repeated;
        self.apply(Event::LeaseAnswered { lease, is_repeated });
        Ok(Some(answer))
    }

    pub(super) async fn ask(
        &self,
        call: &Call,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Answer> {
        let asked = self.core.scripts.run(Lane::Command, call, budget).await;
        asked.map_err(|failure| failure.into_error(operation).of_lock(self.name()))
    }

    /// The error of an owner that reads and asks to write: it would wait for itself.
    pub(crate) fn no_upgrade(&self, operation: &'static str) -> Error {
        let message = "this owner reads, and a writer waits for all readers, so it would wait for \
         itself; release the read guard first, or write first and downgrade";
        let error = Error::new(Kind::Upgrade, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }
}

/// The result of an attempt to enter a hold.
enum Way {
    Entered(RawShare),
    /// The hold is lost or over, or has another owner.
    Gone,
    /// A renewal with this lease is needed first, and a token if `fenced`.
    AfterRenewal {
        lease: Duration,
        fenced: bool,
    },
}
