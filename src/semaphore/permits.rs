//! Permits that the server granted to this client, each with a lease that the watchdog renews.
//!
//! Invariants: a permit is held, then released or lost, and never held again. Its local deadline counts from before the
//! confirmed request was sent, so it ends before the lease at the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use parking_lot::Mutex;

use crate::api::holder::HolderId;
use crate::api::loss::{Losable, LostReason};
use crate::api::options::LeasePolicy;
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::core::Core;
use crate::engine::hold::facts::note_loss;
use crate::engine::hold::{Phase, local_deadline};
use crate::engine::keys::LockName;
use crate::observe::group::Group;
use crate::script::catalog;
use crate::watchdog::{Due, Leased, RenewalRequest};

/// The semaphore of a permit.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) core: Arc<Core>,
    pub(super) name: LockName,
    /// The sorted set at the server that has the permits.
    pub(super) timeouts: Arc<str>,
}

/// One permit.
pub(super) struct Permit {
    origin: Arc<Origin>,
    /// When the permit was requested.
    since: Tick,
    /// The number of the permit at the watchdog, which is also in its id.
    number: u64,
    pub(super) id: HolderId,
    state: Mutex<State>,
    /// Signalled when the permit is lost or released, or its deadline moves.
    changed: Hint,
}

#[derive(Debug)]
struct State {
    policy: LeasePolicy,
    deadline: Tick,
    phase: Phase,
    /// Since when the server may no longer have the permit.
    doubted_since: Option<Tick>,
    /// The group of the handle whose guard has the permit. `None` if it was given to a call that has not returned. Such
    /// a call may never be polled again, so no renewal is sent for the permit.
    claimed_by: Option<Group>,
}

impl Permit {
    /// Makes a permit that was just granted, and starts its renewals. The confirmed request was sent at `sent`; `moved`
    /// is a mark of failovers that was taken before.
    pub(super) fn granted(
        origin: &Arc<Origin>,
        (number, id): (u64, HolderId),
        policy: LeasePolicy,
        sent: Tick,
        moved: Mark,
    ) -> Arc<Self> {
        let core = &origin.core;
        let permit = Arc::new(Self {
            origin: Arc::clone(origin),
            since: sent,
            number,
            id,
            state: Mutex::new(State {
                policy,
                deadline: local_deadline(sent, policy.lease()),
                phase: Phase::Held,
                doubted_since: None,
                claimed_by: None,
            }),
            changed: Hint::default(),
        });
        let entry: std::sync::Weak<Self> = Arc::downgrade(&permit);
        core.watchdog.enrol(number, permit.next_check(), entry);
        // The server that granted it may not be the one that answers now.
        if core.locals.moved.mark() != moved {
            permit.doubt(core.clock.now());
            core.watchdog.look_again(number);
        }
        permit
    }

    fn core(&self) -> &Arc<Core> {
        &self.origin.core
    }

    fn now(&self) -> Tick {
        self.core().clock.now()
    }

    /// Notes that a guard has the permit, from a handle of this group.
    fn claim(&self, group: Group) {
        let next = self.next_check();
        self.state.lock().claimed_by = Some(group);
        let core = self.core();
        if next <= core.clock.now() {
            // The check was put off while no guard had the permit.
            core.watchdog.look_again(self.number);
        }
    }

    /// Whether the permit is certainly held, with at least half of its lease left.
    pub(super) fn is_fresh(&self) -> bool {
        self.loss();
        let now = self.now();
        let state = self.state.lock();
        let enough = state.policy.lease() / 2;
        let is_certain = state.phase == Phase::Held && state.doubted_since.is_none();
        is_certain && now.until(state.deadline) >= enough
    }

    /// Ends the permit and its renewals, unless it is lost. Returns the reason of a loss.
    pub(super) fn release(&self) -> Option<LostReason> {
        self.loss().or_else(|| self.end(Phase::Released))
    }

    /// Returns the reason of a loss. The clock decides, even if the watchdog has not noticed yet.
    pub(super) fn loss(&self) -> Option<LostReason> {
        let now = self.now();
        let reason = {
            let state = self.state.lock();
            match state.phase {
                Phase::Held if now >= state.deadline => LostReason::Expired,
                Phase::Held if self.core().is_closed() => LostReason::Closed,
                phase => return phase.loss(),
            }
        };
        self.end(Phase::Lost(reason))
    }

    /// Ends the permit, unless it has ended. Returns the reason if the permit is lost now, or was before.
    fn end(&self, end: Phase) -> Option<LostReason> {
        let claimed_by = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return state.phase.loss();
            }
            state.phase = end;
            state.claimed_by
        };
        self.core().watchdog.withdraw(self.number);
        self.changed.notify();
        let reason = end.loss()?;
        if let Some(group) = claimed_by {
            let (name, held) = (self.origin.name.as_str(), self.since.until(self.now()));
            note_loss(self.core(), name, &self.id, reason, held, group);
        }
        Some(reason)
    }

    fn remaining(&self) -> Duration {
        self.loss();
        let state = self.state.lock();
        match state.phase {
            Phase::Lost(_) => Duration::ZERO,
            _ => self.now().until(state.deadline),
        }
    }

    /// Waits until the permit is lost. Has its own timer, so it needs neither the watchdog nor the network. Cancel
    /// safe.
    async fn lost(&self) -> LostReason {
        loop {
            let (changed, closing) = (self.changed.mark(), self.core().closing.mark());
            if let Some(reason) = self.loss() {
                return reason;
            }
            let is_held = self.state.lock().phase == Phase::Held;
            tokio::select! {
                biased;
                () = self.changed.changed_since(changed) => {}
                () = self.core().closing.changed_since(closing), if is_held => {}
                // A released permit is never lost.
                () = self.core().clock.sleep_until(self.deadline()), if is_held => {}
            }
        }
    }
}

impl Leased for Permit {
    fn doubt(&self, now: Tick) {
        self.state.lock().doubted_since = Some(now);
    }

    fn wake(&self) {
        self.changed.notify();
    }

    fn due(self: Arc<Self>, now: Tick) -> Due {
        let next = self.next_check();
        let state = self.state.lock();
        if state.phase != Phase::Held {
            return Due::Gone;
        }
        if now >= state.deadline || self.core().is_closed() {
            return Due::Expired;
        }
        if now < next {
            return Due::Later(next);
        }
        if state.claimed_by.is_none() && state.doubted_since.is_none() {
            return Due::Later(state.deadline);
        }
        let lease = match state.policy {
            LeasePolicy::Fixed(_) => now.until(state.deadline),
            renewed => renewed.lease(),
        };
        Due::Renew {
            lease,
            deadline: state.deadline,
            wait: state.policy.lease() / 6,
        }
    }

    fn request(&self, lease: Duration) -> RenewalRequest {
        RenewalRequest {
            script: &catalog::SEMAPHORE_RENEW,
            key: Arc::clone(&self.origin.timeouts),
            holder: self.id,
            lease,
        }
    }

    fn lock(&self) -> &LockName {
        &self.origin.name
    }

    fn renewed(&self, sent: Tick, lease: Duration) {
        let mut state = self.state.lock();
        if state.policy.is_renewed() {
            state.deadline = state.deadline.max(local_deadline(sent, lease));
        }
        state.doubted_since.take_if(|since| *since <= sent);
        drop(state);
        self.changed.notify();
    }

    fn deadline(&self) -> Tick {
        self.state.lock().deadline
    }

    fn next_check(&self) -> Tick {
        let state = self.state.lock();
        match state.policy {
            _ if state.doubted_since.is_some() => Tick::ZERO,
            LeasePolicy::Fixed(_) => state.deadline,
            renewed => state.deadline.before(renewed.lease() * 2 / 3),
        }
    }

    fn lose(&self, reason: LostReason) {
        // Reads the clock first, because the permit may have expired before its client was closed.
        let _ = self.loss().or_else(|| self.end(Phase::Lost(reason)));
    }
}

/// The permits of one guard.
#[derive(Clone)]
pub(super) struct Permits(pub(super) Arc<[Arc<Permit>]>);

impl Permits {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Starts the renewals: a guard has the permits. Their losses count in this group.
    pub(super) fn claim(&self, group: Group) {
        self.0.iter().for_each(|permit| permit.claim(group));
    }

    /// Stops the renewals: the permits were given to a call that has not returned.
    pub(super) fn unclaim(&self) {
        for permit in &*self.0 {
            permit.state.lock().claimed_by = None;
        }
    }

    /// Returns the time since the first permit was requested.
    pub(super) fn age(&self) -> Duration {
        let first = self.0.first();
        first.map_or(Duration::ZERO, |permit| permit.since.until(permit.now()))
    }

    /// Ends all permits. Returns the reason if a permit was lost.
    pub(super) fn release(&self) -> Option<LostReason> {
        let losses = self.0.iter().map(|permit| permit.release());
        losses.fold(None, Option::or)
    }
}

impl Losable for Permits {
    fn loss(&self) -> Option<LostReason> {
        self.0.iter().find_map(|permit| permit.loss())
    }

    fn remaining(&self) -> Duration {
        let all = self.0.iter().map(|permit| permit.remaining());
        all.min().unwrap_or_default()
    }

    fn lost(&self) -> BoxFuture<'_, LostReason> {
        let all = self.0.iter().map(|permit| permit.lost().boxed());
        select_all(all).map(|(reason, ..)| reason).boxed()
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.0.iter().map(|permit| &permit.id);
        f.debug_list().entries(ids).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::client::Client;
    use crate::conn::{EventHandler as _, Lane};
    use crate::testing::{Answer, Scripted, Sent, each};

    const LEASE: Duration = Duration::from_secs(30);

    fn origin(client: &Client) -> Arc<Origin> {
        let name = LockName::new("", "x").unwrap();
        Arc::new(Origin {
            core: Arc::clone(client.core()),
            timeouts: name.semaphore_timeouts_key().into(),
            name,
        })
    }

    /// One thread releases a permit while another learns that its lease has ended.
    #[tokio::test(start_paused = true)]
    async fn a_permit_ends_once() {
        let server = Scripted::new(|_| Answer::Value(redis::Value::Nil));
        let client = Client::over(&server, LEASE);
        let (core, origin) = (client.core(), origin(&client));
        for _ in 0..1_000 {
            let (policy, sent) = (LeasePolicy::Renewed(LEASE), core.clock.now());
            let moved = core.locals.moved.mark();
            let permit = Permit::granted(&origin, core.new_holder(), policy, sent, moved);
            let both = Barrier::new(2);
            let released = std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    permit.lose(LostReason::Expired);
                });
                both.wait();
                permit.release()
            });
            assert_eq!(permit.loss(), released);
        }
        assert_eq!(client.stats().holds, 0);
    }

    /// Returns the lease that a renewal names for one permit, in ms.
    fn named(sent: &Sent) -> Option<Duration> {
        let is_renewal = sent.words[1] == catalog::SEMAPHORE_RENEW.sha();
        let lease = is_renewal.then(|| sent.words[5].parse());
        lease.map(|lease| Duration::from_millis(lease.unwrap()))
    }

    /// The server that has taken over may lack the permit, and must not have it for longer than its guard.
    #[tokio::test(start_paused = true)]
    async fn a_fixed_permit_in_doubt_is_renewed_for_the_rest_of_its_lease() {
        let server = Scripted::new(|sent| match sent.lane {
            Lane::Renewal => Answer::Value(each(1, 1)),
            _ => Answer::Value(redis::Value::Int(1)),
        });
        let client = Client::over(&server, LEASE);
        let semaphore = client.semaphore("x").permits(1);
        let guard = semaphore.fixed_lease(LEASE).acquire().await.unwrap();
        tokio::time::sleep(LEASE / 3).await;
        let remaining = guard.remaining();
        client.core().locals.moved();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let leases: Vec<_> = server.sent().iter().filter_map(named).collect();
        assert_eq!(leases.len(), 1, "{:?}", server.sent());
        assert!(leases[0] <= remaining, "{leases:?} of {remaining:?}");
        assert!(
            leases[0] + LEASE / 10 > remaining,
            "{leases:?} of {remaining:?}"
        );
        assert!(guard.remaining() <= remaining);
        tokio::time::sleep(remaining).await;
        assert_eq!(guard.loss().reason(), Some(LostReason::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_renewed_permit_gets_a_later_deadline() {
        let server = Scripted::new(|_| Answer::Value(redis::Value::Nil));
        let client = Client::over(&server, LEASE);
        let (core, origin) = (client.core(), origin(&client));
        for (policy, is_renewed) in [
            (LeasePolicy::Renewed(LEASE), true),
            (LeasePolicy::Fixed(LEASE), false),
        ] {
            let (sent, moved) = (core.clock.now(), core.locals.moved.mark());
            let permit = Permit::granted(&origin, core.new_holder(), policy, sent, moved);
            let before = permit.deadline();
            permit.renewed(sent.after(LEASE / 2), LEASE);
            assert_eq!(permit.deadline() > before, is_renewed, "{policy:?}");
            permit.release();
        }
    }

    /// The task of the client does not run, so it wakes no caller.
    #[tokio::test(start_paused = true)]
    async fn a_wait_for_the_loss_of_a_permit_needs_no_watchdog() {
        let second = Duration::from_secs(1);
        let stalled = tokio::runtime::Builder::new_current_thread().build();
        let stalled = stalled.unwrap();
        let server = Scripted::new(|_| Answer::Value(redis::Value::Int(1)));
        let client = {
            let _elsewhere = stalled.enter();
            Client::over(&server, LEASE)
        };
        let (core, policy) = (client.core(), LeasePolicy::Fixed(second));
        let (sent, moved) = (core.clock.now(), core.locals.moved.mark());
        let permit = Permit::granted(&origin(&client), core.new_holder(), policy, sent, moved);
        let lost = tokio::time::timeout(second, permit.lost()).await;
        assert_eq!(lost, Ok(LostReason::Expired));
        drop((permit, client));
        stalled.shutdown_background();
    }
}
