//! The ends of shares. A share is handed on, left to its client or to readers that joined, or ended. If the server has
//! to be asked, `settling.rs` does that, for all holds on one server together.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;

use super::core::Core;
use super::effects::{Answered, ServerChange};
use super::facts::ask_why;
use super::handoff::known;
use super::loss::SharedHold;
use super::settling::{Settling, settle_later};
use super::shell::{Hold, RawShare};
use super::state::HoldState;
use crate::api::error::Result;
use crate::api::loss::LostReason;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::script::reply::Released;

/// The operation's name in errors.
const DOWNGRADE: &str = "downgrade";

impl RawShare {
    /// Turns an exclusive share into a shared share. The server has yet to be asked for the downgrade.
    ///
    /// # Errors
    /// Fails if the share is lost. The share has also ended in this case.
    pub(super) fn begin_downgrade(self) -> Result<Self> {
        let hold = Arc::clone(&self.hold);
        let now = hold.core.clock.now();
        if let Some(reason) = hold.loss_of(self.lease) {
            self.release_later(now);
            return Err(hold.not_held(DOWNGRADE, reason));
        }
        let state = hold.state_at(now);
        let lost = state.loss();
        hold.change_locked(state, now, HoldState::downgrade_share);
        if let Some(reason) = lost {
            let error = hold.not_held(DOWNGRADE, reason);
            hold.clean_up(reason);
            return Err(error);
        }
        Ok(Self {
            mode: Mode::Shared,
            ..self
        })
    }

    /// Releases the share and waits for the server to agree. `now` was read just before. If this future is dropped,
    /// the watchdog task finishes the release.
    pub(super) fn release(self, now: Tick) -> impl Future<Output = Result<()>> {
        release_all(now, Few::from_buf([self]))
    }

    /// Releases the share without waiting, as `Drop` does. Never blocks or panics.
    pub(super) fn release_later(self, now: Tick) {
        release_all_later(now, Few::from_buf([self]));
    }
}

impl Hold {
    /// Whether one script can release both holds. A downgrade needs a script of its own, and so does a hold with used
    /// places.
    fn is_beside(&self, other: &Self) -> bool {
        let ends = |hold: &Self| {
            let state = hold.state();
            state.target().is_none() && state.places().is_empty()
        };
        let (key, others_key) = (self.name.key(), other.name.key());
        self.core.is_beside(key, &other.core, others_key) && ends(self) && ends(other)
    }

    /// Waits for the server to agree to a downgrade. If this future is dropped, the watchdog task finishes it.
    pub(super) async fn settle_downgrade(self: &Arc<Self>) -> Result<()> {
        let now = self.core.clock.now();
        Settling::begin(Few::from_buf([Arc::clone(self)]), DOWNGRADE, now).await
    }

    /// Releases a lost hold after its last guard, when the work under it is over. The server may still have the hold,
    /// and other holders need not wait for its lease.
    fn clean_up(self: Arc<Self>, reason: LostReason) {
        // A guard that outlives its client leaves the lock to its lease.
        let is_left = reason == LostReason::Closed && self.core.is_shut();
        // A hold that is kept has been settled since its loss.
        let is_begun = reason != LostReason::Closed && self.state().is_kept();
        if !is_left && !is_begun && self.state().counts().is_none() {
            let now = self.core.clock.now();
            settle_later(Few::from_buf([self]), now);
        }
    }

    /// Ends a lost hold at the server. If its shares ended by themselves, their tasks know that, and other holders need
    /// not wait for the lease: the hold is kept for the time that a released guard asked for, or released. After a
    /// fixed lease no request is needed, because the lease ends at the server too, unless a share that has ended asked
    /// for a longer lease. A hold with a forgotten share ends with its lease.
    pub(super) fn end_at_server(&self, reason: LostReason) {
        let now = self.core.clock.now();
        let state = self.state();
        if state.kept_for(now).is_some() {
            let this = state.lock.grants[self.slot].hold();
            drop(state);
            if let Some(this) = this.and_then(known) {
                settle_later(Few::from_buf([this]), now);
            }
            return;
        }
        let outlasts = || state.has_ended_by_itself() && state.is_left_over(now);
        if (reason == LostReason::MaxHold || outlasts()) && !state.is_forgotten() {
            self.undo(state);
        }
    }

    /// Applies the server's answer to a request that was first sent at `first_sent`. If the server did not have the
    /// hold, returns why it was lost before.
    pub(super) fn settled(
        &self,
        asked: ServerChange,
        released: Released,
        first_sent: Tick,
        is_repeated: bool,
    ) -> Option<LostReason> {
        let answered = Answered {
            mode: asked.mode(),
            is_found: released != Released::NotHeld,
            first_sent,
            is_repeated,
        };
        let mut state = self.state();
        if let Released::Done { receivers } = released
            && !matches!(asked, ServerChange::Keep(_))
        {
            let own = u64::from(self.local.subscription.is_subscribed());
            let turns = &mut state.lock.turns;
            turns.note_others(receivers.saturating_sub(own));
        }
        let answered = |state: &mut HoldState, now| state.answered(now, answered);
        let effects = self.change_locked(state, self.core.clock, answered);
        let missing = effects.missing;
        // The loss was never reported, and only this caller will learn of it.
        if missing == Some(LostReason::Revoked) && self.state().loss().is_none() {
            ask_why(&self.core, self.name(), self.holder_id());
        }
        missing
    }
}

/// Releases shares and waits for the servers to agree.
pub(super) async fn release_all(now: Tick, shares: Few<RawShare>) -> Result<()> {
    const OPERATION: &str = "release";
    // A release that needs no command also fails if the client's task has ended.
    let alive = shares
        .iter()
        .try_for_each(|share| share.hold.ensure_alive(OPERATION));
    let counted = CountedRelease::begin(&shares);
    let Ended {
        to_settle,
        lost,
        in_doubt,
    } = end_all(shares, now);
    let lost = lost.map(|(hold, reason)| hold.not_held(OPERATION, reason));
    let begin = |holds| Settling::begin(holds, OPERATION, now);
    // All are begun before the first of them is awaited.
    let mut begun: Few<_> = by_server(to_settle).into_iter().map(begin).collect();
    drop(counted);
    let settled = match begun.len() {
        // A settling checks that by itself.
        0 => alive,
        1 => begun.remove(0).await,
        _ => join_all(begun).await.into_iter().collect(),
    };
    // After a failure the call does not wait again, because a call has one bound.
    if settled.is_ok() && !in_doubt.is_empty() {
        // Boxed, because it is rare and large.
        Box::pin(all_confirmed(in_doubt)).await?;
    }
    lost.map_or(settled, Err)
}

async fn all_confirmed(holds: Vec<Arc<Hold>>) -> Result<()> {
    for hold in holds {
        hold.confirmed("release").await?;
    }
    Ok(())
}

/// Releases shares without waiting.
pub(super) fn release_all_later(now: Tick, shares: Few<RawShare>) {
    let _counted = CountedRelease::begin(&shares);
    for holds in by_server(end_all(shares, now).to_settle) {
        settle_later(holds, now);
    }
}

/// Counts releases at their clients, from before their shares end until they are handed over, so that a shutdown in
/// between waits for them.
struct CountedRelease(Few<Arc<Core>>);

impl CountedRelease {
    fn begin(shares: &[RawShare]) -> Self {
        let cores = shares.iter().map(|share| Arc::clone(&share.hold.core));
        Self(cores.inspect(|core| core.request_begins()).collect())
    }
}

impl Drop for CountedRelease {
    fn drop(&mut self) {
        self.0.iter().for_each(|core| core.request_ended());
    }
}

/// The result of ending several shares.
struct Ended {
    /// The holds about which the server has to be asked.
    to_settle: Few<Arc<Hold>>,
    /// The first member whose hold or share was lost before, and why.
    lost: Option<(Arc<Hold>, LostReason)>,
    /// Holds that other shares keep, and that the server may have lost.
    in_doubt: Vec<Arc<Hold>>,
}

/// Ends shares, the last one first. Each is handed on, left to the client or to readers that joined, or ended. In this
/// order, a waiter for several locks, which waits for the first of them, then finds all of them free.
fn end_all(shares: Few<RawShare>, now: Tick) -> Ended {
    let mut first_lost = None;
    let mut in_doubt = Vec::new();
    let mut to_settle = Few::with_capacity(shares.len());
    for share in shares.into_iter().rev() {
        let lease = share.lease;
        let (hold, ended) = share.end(now);
        match ended {
            // The share was handed on, or left to the client.
            None => {}
            Some(Ok(effects)) => {
                let ended = lease.loss_at(now);
                first_lost = ended
                    .map(|reason| (Arc::clone(&hold), reason))
                    .or(first_lost);
                if !effects.is_local {
                    to_settle.push(hold);
                } else if hold.state().is_doubted() {
                    in_doubt.push(hold);
                }
            }
            Some(Err(reason)) => {
                let reason_of_share = hold.loss_of(lease).unwrap_or(reason);
                Arc::clone(&hold).clean_up(reason);
                first_lost = Some((hold, reason_of_share));
            }
        }
    }
    Ended {
        to_settle,
        lost: first_lost,
        in_doubt,
    }
}

/// Groups the holds that one script can release together, in order.
fn by_server(holds: Few<Arc<Hold>>) -> Few<Few<Arc<Hold>>> {
    let mut servers: Few<Few<Arc<Hold>>> = Few::new();
    for hold in holds {
        match servers.iter_mut().find(|holds| holds[0].is_beside(&hold)) {
            Some(holds) => holds.push(hold),
            None => servers.push(Few::from_buf([hold])),
        }
    }
    servers
}
