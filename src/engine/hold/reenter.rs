//! Adds one more share to a hold, for its owner.
//!
//! The server counts one hold, so a re-entry needs no request. Invariant: a share is added only to a hold that the
//! server is known to have for long enough. Otherwise a renewal is sent first, and the watchdog task drives it.

use std::sync::Arc;
use std::time::Duration;

use super::bound::Bound;
use super::effects::Agreed;
use super::handoff::known;
use super::local::LocalLock;
use super::share_lease::{ShareLease, lease_until};
use super::shell::{Hold, RawShare};
use super::state::HoldState;
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::api::options::LeasePolicy;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::observe::counts::GrantedBy;
use crate::script::{Answer, Call, CallBudget, catalog, millis, reply};
use crate::watchdog::Leased;

/// The origin of the lease of one more share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseSource {
    Asked(LeasePolicy),
    /// It lasts as long as the share of an existing guard, with the same end.
    Like(ShareLease),
}

impl LeaseSource {
    fn lease(self, now: Tick) -> Duration {
        match self {
            Self::Asked(policy) => policy.lease(),
            // A re-entry does not lengthen the lease of a share with a fixed lease.
            Self::Like(like) => match like.renewed {
                Some(lease) => lease_until(lease, now, like.end),
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

/// The share that an owner asks for.
#[derive(Debug)]
pub(crate) struct Reentry {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) entry: LeaseSource,
    pub(crate) fenced: bool,
    pub(crate) operation: &'static str,
}

/// One more share, ready to be taken without a wait. Not a share yet: dropping it leaves nothing to release.
#[derive(Debug)]
pub(crate) struct Entrance {
    hold: Arc<Hold>,
    reentry: Reentry,
    /// `None` if the server need not be asked.
    agreed: Option<Agreed>,
}

/// The request that a re-entry needs before its share can be added.
enum Need {
    Nothing,
    /// The hold is lost or over, or has another owner.
    Gone,
    /// A renewal with this lease, and a token if `fenced`.
    Renewal {
        lease: Duration,
        fenced: bool,
    },
}

impl LocalLock {
    /// A valid hold of `owner`, preferably an exclusive one.
    pub(crate) fn hold_of(&self, owner: &Owner, now: Tick) -> Option<Arc<Hold>> {
        let state = self.lock();
        known(state.grants.of_owner(owner, now)?.hold()?)
    }
}

impl Hold {
    /// Prepares one more share for the owner of the hold. `None` if the hold is lost or over, or has another owner now.
    /// The caller then asks for the lock like any other call.
    pub(crate) async fn entrance(
        self: &Arc<Self>,
        reentry: Reentry,
        bound: Option<&Bound>,
    ) -> Result<Option<Entrance>> {
        let operation = reentry.operation;
        self.ensure_alive(operation)?;
        let need = {
            let state = self.state();
            let now = self.core.clock.now();
            self.need(&state, now, &reentry)?
        };
        let agreed = match need {
            Need::Gone => return Ok(None),
            Need::Nothing => None,
            Need::Renewal { lease, fenced } => {
                let this = Arc::clone(self);
                let now = self.core.clock.now();
                let budget = match bound {
                    Some(bound) => bound.call_budget(now, now),
                    None => self.call_budget(),
                };
                let agreeing = async move { this.agree(lease, fenced, operation, budget).await };
                // The watchdog task drives it, so that a future that is not polled delays no other.
                let watchdog = &self.core.watchdog;
                let agreed = watchdog.finish(operation, budget.deadline, agreeing).await;
                match agreed.map_err(|error| error.of_lock(self.name()))?? {
                    None => return Ok(None),
                    agreed => agreed,
                }
            }
        };
        Ok(Some(Entrance {
            hold: Arc::clone(self),
            reentry,
            agreed,
        }))
    }

    fn need(&self, state: &HoldState, now: Tick, reentry: &Reentry) -> Result<Need> {
        let owner = &reentry.owner;
        // The hold may have been handed off since the caller looked.
        if !state.is_held() || now >= state.deadline() || !state.is_of(owner) {
            return Ok(Need::Gone);
        }
        if reentry.mode == Mode::Exclusive && !state.is_written() {
            return Err(self.no_upgrade(reentry.operation));
        }
        let (lease, share) = (
            reentry.entry.lease(now),
            reentry.entry.share_lease(now, now),
        );
        // A hold has one token for as long as it lasts.
        let fenced = reentry.fenced && state.token_of(owner).is_none();
        if fenced || !state.can_be_entered(now, lease, share) {
            return Ok(Need::Renewal { lease, fenced });
        }
        Ok(Need::Nothing)
    }

    /// Asks the server for a lease, and for a token if `fenced`. `None` if the hold is lost.
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

    /// Asks the server for a lease of this length. `None` if the hold is lost.
    pub(super) async fn ask_for_lease(
        &self,
        lease: Duration,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Option<Answer>> {
        if self.expire_if_due().is_some() || !self.state().is_held() {
            return Ok(None);
        }
        let before = self.state().server_end();
        let until = budget.deadline.min(before);
        self.state().lease_sent(until, lease);
        // A renewal, because an acquire that arrives late could take a free lock.
        let key = self.name.key();
        let call = Call::new(self.protocol.renewal(), key, &[key])
            .arg(&*self.holder())
            .arg(millis(lease));
        let answer = self.ask(&call, operation, budget).await?;
        if reply::renewed(&answer.value, 1)? != [true] {
            self.lose(LostReason::Revoked);
            return Ok(None);
        }
        if !answer.repeated {
            self.state().lease_answered(self.core.clock.now(), before);
        }
        Ok(Some(answer))
    }

    /// Asks the server for a fencing token, for a hold without one. `None` if the hold is lost.
    pub(super) async fn ask_for_token(
        &self,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Option<FencingToken>> {
        let (key, token_key) = (self.name.key(), self.name.token_key());
        let call = Call::new(&catalog::TAKE_TOKEN, key, &[key, &token_key])
            .arg(&*self.holder())
            .arg(self.core.timing.token_retention);
        let answer = self.ask(&call, operation, budget).await?;
        let token = reply::taken_token(&answer.value)?;
        if token.is_none() {
            self.lose(LostReason::Revoked);
        }
        Ok(token)
    }

    /// Raises the server's counter of fencing tokens to at least `token`, which becomes the token of this hold. For
    /// tokens that other servers of a Redlock gave.
    pub(crate) async fn raise_token(
        &self,
        token: FencingToken,
        operation: &'static str,
    ) -> Result<()> {
        let key = self.name.key();
        let call = Call::new(&catalog::RAISE_TOKEN, key, &[&self.name.token_key()]);
        let call = call.arg(token.get()).arg(self.core.timing.token_retention);
        let budget = self.call_budget();
        self.ask(&call, operation, budget).await?;
        self.state().raise_token(token);
        Ok(())
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

    /// The error of an owner that reads and asks to write, and would therefore wait for itself.
    pub(crate) fn no_upgrade(&self, operation: &'static str) -> Error {
        let message = "this owner reads, and a writer waits for all readers, so it would wait for \
         itself; release the read guard first, or write first and downgrade";
        let error = Error::new(Kind::Upgrade, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }
}

impl Entrance {
    /// The token that the share will have.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        let agreed = self.agreed.and_then(|agreed| agreed.token);
        agreed.or_else(|| self.hold.token_of(&self.reentry.owner))
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Adds the share. `None` if the hold has changed since.
    pub(super) fn enter(self) -> Result<Option<RawShare>> {
        let Self {
            hold,
            reentry,
            agreed,
        } = self;
        let state = hold.state();
        // Read under the mutex, so that times do not go backwards from one change to the next.
        let now = hold.core.clock.now();
        match hold.need(&state, now, &reentry)? {
            Need::Gone => return Ok(None),
            Need::Renewal { .. } if agreed.is_none() => return Ok(None),
            Need::Nothing | Need::Renewal { .. } => {}
        }
        let sent = agreed.map_or(now, |agreed| agreed.sent);
        let (owner, mode) = (reentry.owner, reentry.mode);
        let lease = reentry.entry.share_lease(sent, now);
        hold.change_locked(state, now, |state, now| {
            state.add_share(now, &owner, mode, lease, agreed)
        });
        hold.note_grant(mode, GrantedBy::Reentry);
        Ok(Some(RawShare::new(hold, owner, mode, lease)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reentry_asks_for_no_more_than_the_rest_of_a_hold_that_has_an_end() {
        let second = Duration::from_secs(1);
        let (lease, began) = (second * 30, Tick::ZERO.after(second));
        let asked = |max, age| {
            let policy = LeasePolicy::RenewedFor { lease, max };
            let entered = LeaseSource::Like(ShareLease::of(policy, began, began));
            entered.lease(began.after(age))
        };
        assert_eq!(asked(second * 100, second), lease);
        let rest = asked(second * 100, second * 95);
        assert!(rest >= second * 5 && rest < second * 6, "{rest:?}");
    }
}
