//! The loss of a hold, as its guards see it, and the groups of holds that have to be notified of it.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::share_lease::ShareLease;
use crate::api::loss::{Losable, LostReason};
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;

/// The groups to notify of a loss.
pub(super) type LossListeners = Mutex<Vec<Weak<dyn LossListener>>>;

/// A group of holds that has to be notified when one of them is lost.
pub(crate) trait LossListener: Debug + Send + Sync {
    /// A member is lost. Called without any mutex held.
    fn member_lost(self: Arc<Self>);
}

/// A hold with guards. Each guard has a share with a lease of its own.
pub(crate) trait SharedHold: Send + Sync {
    fn clock(&self) -> Clock;

    fn is_held(&self) -> bool;

    /// The local deadline. Once the hold is lost, no later than the loss.
    fn deadline(&self) -> Tick;

    /// Signalled when the hold ends or its deadline moves earlier or later.
    fn changed(&self) -> &Hint;

    /// Why the hold is lost, if it is. `now` was just read.
    fn loss_at(&self, now: Tick) -> Option<LostReason>;

    /// Why one share is lost, if it is: because the hold is lost, or because the share ended by itself.
    fn loss_of(&self, lease: ShareLease) -> Option<LostReason> {
        let now = self.clock().now();
        let lost = self.loss_at(now);
        // For a share that has ended by itself: whether it ended before the hold was lost.
        let is_first = |_: &_| lost.is_none() || lease.end <= self.deadline();
        lease.loss_at(now).filter(is_first).or(lost)
    }

    /// The remaining time of one share.
    fn remaining_of(&self, lease: ShareLease) -> Duration {
        let now = self.clock().now();
        match self.loss_at(now) {
            Some(_) => Duration::ZERO,
            None => now.until(self.deadline().min(lease.end)),
        }
    }

    /// Resolves when this share is lost. It has its own timer, so it depends neither on the watchdog nor on the
    /// network. Cancel safe.
    fn lost(&self, lease: ShareLease) -> impl Future<Output = LostReason> + Send {
        async move {
            loop {
                let mark = self.changed().mark();
                if let Some(reason) = self.loss_of(lease) {
                    return reason;
                }
                let is_held = self.is_held();
                let end = self.deadline().min(lease.end);
                tokio::select! {
                    biased;
                    () = self.changed().changed_since(mark) => {}
                    // A released share is never lost.
                    () = self.clock().sleep_until(end), if is_held => {}
                }
            }
        }
    }
}

/// The loss view of a share.
pub(crate) struct ShareView<H>(pub(crate) Arc<H>, pub(crate) ShareLease);

impl<H: SharedHold> Losable for ShareView<H> {
    fn loss(&self) -> Option<LostReason> {
        self.0.loss_of(self.1)
    }

    fn remaining(&self) -> Duration {
        self.0.remaining_of(self.1)
    }

    fn lost(&self) -> BoxFuture<'_, LostReason> {
        self.0.lost(self.1).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::share_lease::ShareLease;
    use super::super::state::HoldState;
    use super::*;
    use crate::api::holder::Owner;
    use crate::client::Client;
    use crate::conn::Lane;
    use crate::reentrant::ReentrantGuard;
    use crate::script::catalog::RENEW;
    use crate::testing::{Answer, Scripted, each, granted};

    const SECOND: Duration = Duration::from_secs(1);

    /// A failover is noticed after the event, and before the effects of the event are carried out.
    #[tokio::test(start_paused = true)]
    async fn a_hold_in_doubt_is_asked_about_at_once_whatever_was_planned_before() {
        let server = Scripted::new(|sent| match sent.words[1] == RENEW.sha() {
            true => Answer::Value(each(1, 1)),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, SECOND * 30);
        let guard = client.lock("x").lock().await.unwrap();
        let local = client.core().locals.all().pop().unwrap();
        let hold = local.holds().pop().unwrap();
        let now = hold.core.clock.now();
        let lease = ShareLease::renewed(SECOND * 30);
        let planned = |state: &mut HoldState, _| state.change_share_lease(lease, lease);
        let seen = hold.local.seen();
        let effects = hold.local.lock().change(hold.slot, now, seen, planned);
        hold.verify();
        hold.carry_out(effects);
        tokio::time::sleep(SECOND).await;
        let sent = server.sent();
        let renewals = sent.iter().filter(|sent| sent.words[1] == RENEW.sha());
        assert_eq!(renewals.count(), 1, "{sent:?}");
        assert!(!guard.is_lost());
    }

    /// Nobody asks for its reason before the hold has ended as well.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_ended_before_the_others_keeps_its_reason() {
        let server = Scripted::new(|sent| match sent.words[1] == RENEW.sha() {
            true => Answer::Value(each(1, 1)),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, SECOND * 30);
        let lock = client.lock("x").owner(&Owner::new());
        let longest = lock.clone().max_hold(SECOND * 5).lock().await.unwrap();
        let fixed = lock.fixed_lease(SECOND * 20).lock().await.unwrap();
        tokio::time::sleep(SECOND * 25).await;
        let reasons = [longest.loss(), fixed.loss()].map(|loss| loss.reason());
        assert_eq!(
            reasons,
            [Some(LostReason::MaxHold), Some(LostReason::Expired)]
        );
    }

    /// Nobody looks before its span is over as well, as in a process that stood still.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ended_before_its_max_hold_has_expired() {
        let server = Scripted::new(|_| Answer::Value(granted()));
        let client = Client::over(&server, SECOND * 30);
        let lock = client.lock("x").max_hold(SECOND * 60);
        let guard = lock.lock().await.unwrap();
        server.clock().jump(SECOND * 100);
        assert_eq!(guard.loss().reason(), Some(LostReason::Expired));
    }

    /// The share would have ended by itself later.
    #[tokio::test(start_paused = true)]
    async fn a_downgrade_names_the_reason_that_its_guard_names() {
        let server = Scripted::new(|sent| match sent.lane {
            Lane::Renewal => Answer::Value(each(0, 1)),
            _ => Answer::Value(granted()),
        });
        let client = Client::over(&server, SECOND * 30);
        let lock = client.rw_lock("x").owner(&Owner::new());
        let _renewed = lock.write().await.unwrap();
        let longest = lock.max_hold(SECOND * 25).write().await.unwrap();
        tokio::time::sleep(SECOND * 26).await;
        let revoked = longest.lost().await;
        assert_eq!(revoked, LostReason::Revoked);
        let error = longest.downgrade().await.unwrap_err();
        assert!(error.to_string().contains(&revoked.to_string()), "{error}");
    }

    /// The server loses the hold, or the client is shut down.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_ended_before_the_hold_was_lost_keeps_its_reason() {
        for is_closed in [false, true] {
            let server = Scripted::new(|sent| match sent.words[1] == RENEW.sha() {
                true => Answer::Value(each(i64::from(sent.at < SECOND * 25), 1)),
                false => Answer::Value(granted()),
            });
            let client = Client::over(&server, SECOND * 30);
            let lock = client.lock("x").owner(&Owner::new());
            let renewed = lock.lock().await.unwrap();
            let longest = lock.clone().max_hold(SECOND * 5).lock().await.unwrap();
            let fixed = lock.fixed_lease(SECOND * 20).lock().await.unwrap();
            tokio::time::sleep(SECOND * 21).await;
            let ended = [Some(LostReason::MaxHold), Some(LostReason::Expired)];
            let reason = |guard: &ReentrantGuard| guard.lost_now().map(|lost| lost.reason());
            assert_eq!([reason(&longest), reason(&fixed)], ended);
            assert_eq!(reason(&renewed), None);
            if is_closed {
                client.shutdown().await.unwrap();
            } else {
                tokio::time::sleep(SECOND * 10).await;
            }
            let last = match is_closed {
                true => LostReason::Closed,
                false => LostReason::Revoked,
            };
            assert_eq!([reason(&longest), reason(&fixed)], ended);
            assert_eq!(reason(&renewed), Some(last));
            let released = longest.release().await.unwrap_err();
            let named = LostReason::MaxHold.to_string();
            assert!(released.to_string().contains(&named), "{released}");
        }
    }

    /// The task of the client does not get to run, and so wakes no one.
    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_loss_needs_no_watchdog() {
        let stalled = tokio::runtime::Builder::new_current_thread().build();
        let stalled = stalled.unwrap();
        let server = Scripted::new(|_| Answer::Value(granted()));
        let client = {
            let _elsewhere = stalled.enter();
            Client::over(&server, SECOND * 30)
        };
        let guard = client.lock("x").fixed_lease(SECOND).lock().await.unwrap();
        let lost = tokio::time::timeout(SECOND, guard.lost()).await;
        assert_eq!(lost, Ok(LostReason::Expired));
        drop(guard);
        drop(client);
        stalled.shutdown_background();
    }
}
