//! One more share of a hold, for its owner.

use std::sync::Arc;
use std::time::Duration;

use super::bound::Bound;
use super::event::{Event, Reentry};
use super::protocol::AcquireTerms;
use super::settle::Repair;
use super::share_lease::{ShareLease, lease_until};
use super::shell::{Hold, RawShare};
use crate::api::error::{Error, Kind, Result};
use crate::api::lost::LostReason;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::{Counts, Mode};
use crate::observe::totals::GrantedBy;
use crate::script::reply::Acquired;
use crate::script::{Answer, CallBudget, Executed};

/// The lease of one more share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Asked(LeasePolicy),
    /// The lease of an existing guard. If that guard ends by itself, the new share ends at the same time.
    Like(ShareLease),
}

impl Entry {
    fn lease(self, now: Tick) -> Duration {
        match self {
            Self::Asked(policy) => policy.lease(),
            // A lease with a fixed end is not lengthened by another share.
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

/// A request to the server, and the counts that the server was known to have before it.
struct Request {
    target: Counts,
    known: Option<Counts>,
    terms: AcquireTerms,
}

impl Hold {
    /// One more share for its owner. `None` if the hold is lost or gone, or belongs to another owner by now. The
    /// caller is a newcomer then.
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
        let budget = self.call_budget_of(bound);
        let _one_at_a_time = self.one_at_a_time(budget, operation).await?;
        if self.expire_if_due().is_some() {
            return Ok(None);
        }
        let lease = entry.lease(self.core.clock.now());
        let begun = self.begin_reentry(owner, mode, lease, fenced, budget, operation);
        let Some(request) = begun? else {
            return Ok(None);
        };
        // If this future is dropped, the server may have counted one too many.
        let mut repair = Repair::armed(std::slice::from_ref(self));
        let answer = self.ask_for_share(&request, budget, operation).await?;
        let Acquired::Held { token } = self.protocol.acquired(&answer.value)? else {
            repair.disarm();
            self.apply(Event::Lost(LostReason::Revoked));
            return Ok(None);
        };
        let lease = entry.share_lease(answer.sent, self.core.clock.now());
        let granted = Event::ReentryGranted(Reentry {
            owner: owner.clone(),
            sent: answer.sent,
            lease: request.terms.lease,
            mode,
            share: lease,
            known: request.known,
            target: request.target,
            token,
        });
        let effects = self.apply(granted);
        if effects.is_accepted {
            self.count_grant(mode, GrantedBy::Reentry);
        }
        if effects.is_settled {
            repair.disarm();
        }
        Ok(effects.is_accepted.then(|| RawShare {
            hold: Arc::clone(self),
            owner: owner.clone(),
            mode,
            lease,
            kept_until: Tick::ZERO,
        }))
    }

    /// Prepares the request and notes it in the hold before it is sent. `None` if there is nothing left to enter.
    fn begin_reentry(
        &self,
        owner: &Owner,
        mode: Mode,
        lease: Duration,
        fenced: bool,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Option<Request>> {
        let now = self.core.clock.now();
        let state = self.state();
        // It may have been handed off to another task since the caller looked.
        if !state.is_held() || !state.is_of(owner) {
            return Ok(None);
        }
        if mode == Mode::Exclusive && !state.is_written() {
            return Err(self.no_upgrade(operation));
        }
        let request = Request {
            target: state.target_counts().raised(mode),
            known: state.server_counts(),
            terms: AcquireTerms {
                publish: self.core.channels().publish(),
                mode,
                lease,
                // A hold keeps one token for its whole life.
                tokens: u32::from(fenced && state.token_of(owner).is_none()),
                is_new: false,
                heartbeat: None,
                accepts_handover: false,
                waited: Duration::ZERO,
            },
        };
        // A request that arrives after the end of the lease at the server enters nothing.
        let until = budget.deadline.min(state.server_end());
        self.apply_to(state, now, Event::ReentrySent { lease, until });
        Ok(Some(request))
    }

    async fn ask_for_share(
        &self,
        request: &Request,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Answer> {
        let holder = self.holder_ref(request.target);
        let call = self.protocol.acquire(&holder, &request.terms);
        let run = self.core.scripts.run(Lane::Command, &call, budget);
        let answer = run.await.map_err(|failure| {
            let may_be_executed = failure.executed == Executed::Maybe;
            self.apply(Event::ReentryFailed { may_be_executed });
            failure.into_error(operation).of_lock(self.name())
        })?;
        self.apply(Event::ReentryAnswered {
            lease: request.terms.lease,
            is_repeated: answer.repeated,
        });
        Ok(answer)
    }

    /// The error for an owner that reads and wants to write: it would wait for itself.
    pub(crate) fn no_upgrade(&self, operation: &'static str) -> Error {
        let message = "this owner reads, and a writer waits for all readers, so it would wait for \
         itself; release the read guard first, or write first and downgrade";
        let error = Error::new(Kind::Upgrade, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }
}
