//! A hold passes from one task of this client to the next, at once or after it stayed with the client: it stays the same
//! at the server, with another owner here. [`LockState::pass_on`](super::lock::LockState::pass_on) decides.
//!
//! A sticky hold stays with its client for a while after its last guard, and the client's next task takes it without a
//! round trip. It is renewed until its time is over, it is recalled or lost, or the client ends.

use std::sync::Arc;

use futures_util::FutureExt;

use super::effects::Effects;
use super::handoff::{Handoff, HandoffRequest, known};
use super::lock::{Passed, Passing};
use super::protocol::Queue;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

impl Hold {
    /// A share of this hold that may pass to another task.
    fn passing(&self, mode: Mode, lease: ShareLease) -> Passing {
        Passing {
            slot: self.slot,
            mode,
            lease,
            is_alone: self.is_alone(),
            is_open: self.core.ensure_open("release").is_ok(),
            give_up: self.core.timing.give_up,
        }
    }

    /// Carries out what follows for others when a share goes to the next task or stays with the client.
    fn passed(&self, passed: Passed) {
        match passed {
            Passed::On(Some(owner)) => self.local.wake_waiters_of(&owner),
            Passed::On(None) => {}
            Passed::ToReaders => self.look_again(),
            Passed::Stays(before) => {
                drop(before);
                self.look_again();
                if self.core.ensure_open("release").is_err() {
                    // The client may have looked for it before.
                    self.end_stay();
                }
            }
        }
    }

    /// Has used places removed once the server answers again. Unlike a hold, they do not end with a lease.
    pub(super) fn leave_places(&self) {
        let state = self.state();
        if !state.places().is_empty() {
            self.undo(state);
        }
    }

    /// Has the waiter behind it ask the server, now that it has ended.
    pub(super) fn wake_follower(&self) {
        if self.protocol.queue() == Queue::Server {
            let mut state = self.state();
            let last = state.last_place(self.holder());
            (state.lock).with_followers(|followers, woken| followers.leave(&last, woken));
        }
    }

    /// Ends its stay if that is due. The watchdog calls this when it checks the hold.
    pub(super) fn end_stay_if_due(self: &Arc<Self>, now: Tick) {
        let mut state = self.state();
        if state.stays_until() <= now {
            state.end_stay();
            drop(state);
            let this = Arc::clone(self);
            let ending = async move {
                let stays = &mut this.local.lock().sticky;
                stays.take_if(|stays| stays.is_of(&*this))
            };
            let ending = ending.map(drop);
            self.core.watchdog.drive(ending.boxed());
        }
    }

    /// Releases the hold if it waits for the next task.
    pub(super) fn end_stay(&self) {
        // If that is a later grant of this lock, the waiter wants that one too.
        drop(self.local.take_sticky());
    }
}

impl RawShare {
    /// Ends the share: it goes to the next task or stays with the client, and else what its hold needs follows from the
    /// effects, unless the hold was lost before. Tasks that arrive later ask behind the release.
    pub(super) fn end(self, now: Tick) -> (Arc<Hold>, Option<Result<Effects, LostReason>>) {
        let Self {
            hold,
            owner,
            mode,
            lease,
            kept_until,
        } = self;
        let passing = (now >= kept_until).then(|| hold.passing(mode, lease));
        let mut state = hold.state_at(now);
        let passed = passing.and_then(|passing| {
            let lock = &mut state.lock;
            let next = match hold.protocol.queue() {
                Queue::Server => lock.hand_to_follower(now, &passing, hold.holder()),
                Queue::Local | Queue::LocalWithPlace => None,
            };
            next.or_else(|| lock.pass_on(now, &passing))
        });
        if let Some(passed) = passed {
            drop(state);
            hold.passed(passed);
            return (hold, None);
        }
        let lost = state.loss();
        let effects = hold.change_locked(state, now, |state, now| {
            state.release_share(now, &owner, mode, lease, kept_until)
        });
        (hold, Some(lost.map_or(Ok(effects), Err)))
    }
}

impl Handoff {
    /// Takes the share out. The caller has to release it.
    pub(super) fn into_raw(mut self) -> Option<RawShare> {
        let hold = known(self.take()?)?;
        let owner = self.owner.clone();
        Some(RawShare::new(hold, owner, self.mode, self.lease))
    }

    /// Passes the share of a sticky hold on to the task that asks for it. `None` if it does not fit `request`. It is
    /// released then.
    pub(crate) fn pass_on(self, request: &HandoffRequest) -> Option<Self> {
        let share = self.into_raw()?;
        let hold = &share.hold;
        let now = hold.core.clock.now();
        let passing = hold.passing(share.mode, share.lease);
        let next = hold.local.lock().hand_to(now, &passing, request);
        let Some(next) = next else {
            share.release_later(now);
            return None;
        };
        if let Some(owner) = &request.options.owner {
            hold.local.wake_waiters_of(owner);
        }
        Some(next)
    }
}
