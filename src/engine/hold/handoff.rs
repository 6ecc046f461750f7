//! Hand-offs from one task of a client to another, at once or later, and how many may follow each other.
//!
//! Invariant: a handed-off share is taken, or released when the hand-off is dropped.

use std::sync::Arc;
use std::time::Duration;

use super::registry::LocalHold;
use super::share_lease::ShareLease;
use crate::api::holder::Owner;
use crate::api::options::{LeasePolicy, Replication};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

/// At most this many local hand-offs in a row, because a client cannot know how many wait elsewhere.
pub(crate) const HANDOFFS_MAX: u32 = 16;

/// If many others wait, each task that waits here when a turn begins gets the lock once in that turn. If fewer tasks
/// than this wait here, they may get it more often, because a turn costs two round trips.
pub(super) const HANDOFFS_ONCE_MIN: u32 = 7;

/// The longest time for hand-offs in a row near the server.
const HANDOFFS_TIME_MAX: Duration = Duration::from_millis(5);

/// The same limit far from the server: as long as a round trip takes, up to this.
const HANDOFFS_TRIP_MAX: Duration = Duration::from_millis(50);

/// A waiter's request for a hand-off.
#[derive(Clone, Debug)]
pub(crate) struct HandoffRequest {
    pub(crate) owner: Option<Owner>,
    pub(crate) policy: LeasePolicy,
    pub(crate) fenced: bool,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

/// A share on its way to another task: the only share of an exclusive hold, or a reader's share.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// `None` once it was taken: then only `Drop` is left to run.
    hold: Option<Arc<dyn HandedOff>>,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
}

/// A hold that goes from task to task.
pub(super) trait HandedOff: LocalHold {
    /// Releases a share that no task has taken.
    fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease);
    /// Adapts the hold to `request`, if that is possible.
    fn pass_on(self: Arc<Self>, lease: ShareLease, request: &HandoffRequest) -> Option<Handoff>;
}

impl Handoff {
    pub(super) fn new(
        hold: Arc<dyn HandedOff>,
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
    ) -> Self {
        Self {
            hold: Some(hold),
            owner,
            mode,
            lease,
        }
    }

    /// Passes the share on to the next waiter. `None` if it does not fit `request`. It is released then.
    pub(crate) fn pass_on(mut self, request: &HandoffRequest) -> Option<Self> {
        let hold = Arc::clone(self.hold.as_ref()?);
        let next = hold.pass_on(self.lease, request)?;
        self.hold = None;
        Some(next)
    }

    /// Takes the hold out. The caller has to release it.
    pub(super) fn take(&mut self) -> Option<Arc<dyn HandedOff>> {
        self.hold.take()
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.give_back(self.owner.clone(), self.mode, self.lease);
        }
    }
}

/// The hand-offs in a row of one lock within this client: how many, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct HandoffBudget {
    spent: u32,
    since: Option<Tick>,
}

impl HandoffBudget {
    /// Spends a hand-off, if fewer than `most` are spent and the time is not over. Hand-offs go on for as long as
    /// others would need to get the lock: one round trip.
    pub(super) fn try_spend(&mut self, now: Tick, trip: Duration, most: u32) -> bool {
        let is_left = self.spent < most && !self.is_late(now, trip);
        self.spent += u32::from(is_left);
        is_left
    }

    /// When the time for hand-offs ends, if it has begun.
    pub(super) fn end(&self, trip: Duration) -> Option<Tick> {
        self.since.map(|since| since.after(time_max(trip)))
    }

    /// Spends a turn. If that is more than `most`, or too late, the count starts again and this returns true.
    pub(super) fn spend_turn(&mut self, now: Tick, trip: Duration, most: u32) -> bool {
        self.spent += 1;
        let is_last = self.spent > most || self.is_late(now, trip);
        if is_last {
            *self = Self::default();
        }
        is_last
    }

    /// The time since the first hand-off or turn was spent.
    pub(super) fn spent_for(&self, now: Tick) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.until(now))
    }

    /// As [`spent_for`](Self::spent_for), but limited to a plausible length of a turn, to leave out a long hold.
    pub(super) fn time_of_turn(&self, now: Tick, trip: Duration) -> Duration {
        self.spent_for(now).min(time_max(trip) * 2)
    }

    fn is_late(&mut self, now: Tick, trip: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        since.until(now) > time_max(trip)
    }
}

/// The longest time for hand-offs in a row.
pub(super) fn time_max(trip: Duration) -> Duration {
    HANDOFFS_TIME_MAX.max(trip.min(HANDOFFS_TRIP_MAX))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    const LEASE: ShareLease = ShareLease::Renewed(Duration::from_secs(30));

    /// A hold that accepts any request without a token, and records which shares are released.
    #[derive(Debug, Default)]
    struct Handed {
        given_back: Mutex<Vec<(Owner, Mode)>>,
    }

    impl LocalHold for Handed {
        fn is_of(&self, _: &Owner) -> bool {
            false
        }

        fn is_held(&self) -> bool {
            true
        }

        fn is_exclusive(&self) -> bool {
            true
        }

        fn deadline(&self) -> Tick {
            Tick::NEVER
        }

        fn close(&self) {}
    }

    impl HandedOff for Handed {
        fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease) {
            assert_eq!(lease, LEASE);
            self.given_back.lock().push((owner, mode));
        }

        fn pass_on(
            self: Arc<Self>,
            lease: ShareLease,
            request: &HandoffRequest,
        ) -> Option<Handoff> {
            let owner = request.owner.clone().unwrap();
            (!request.fenced).then(|| Handoff::new(self, owner, Mode::Exclusive, lease))
        }
    }

    fn handed_off(owner: &Owner) -> (Arc<Handed>, Handoff) {
        let hold = Arc::<Handed>::default();
        let this = Arc::clone(&hold) as _;
        let handoff = Handoff::new(this, owner.clone(), Mode::Exclusive, LEASE);
        (hold, handoff)
    }

    #[test]
    fn what_was_handed_off_is_taken_or_given_back() {
        let owner = Owner::new();
        let (hold, handoff) = handed_off(&owner);
        let reader = Handoff::new(Arc::clone(&hold) as _, owner.clone(), Mode::Shared, LEASE);
        drop((handoff, reader));
        let both = [
            (owner.clone(), Mode::Exclusive),
            (owner.clone(), Mode::Shared),
        ];
        assert_eq!(*hold.given_back.lock(), both);
        let (hold, mut handoff) = handed_off(&owner);
        assert!(handoff.take().is_some() && handoff.take().is_none());
        drop(handoff);
        assert_eq!(*hold.given_back.lock(), [], "the caller has to");
    }

    #[test]
    fn what_is_passed_on_is_the_next_ones_and_else_it_is_given_back() {
        let (owner, next) = (Owner::new(), Owner::new());
        for fenced in [false, true] {
            let request = HandoffRequest {
                owner: Some(next.clone()),
                policy: LeasePolicy::Renewed(Duration::from_secs(30)),
                fenced,
                replication: None,
                give_up: Duration::from_secs(1),
            };
            let (hold, handoff) = handed_off(&owner);
            let passed_on = handoff.pass_on(&request);
            assert_eq!(passed_on.is_none(), fenced);
            assert_eq!(hold.given_back.lock().len(), usize::from(fenced));
            drop(passed_on);
            let last = if fenced { &owner } else { &next };
            assert_eq!(*hold.given_back.lock(), [(last.clone(), Mode::Exclusive)]);
        }
    }

    fn at(micros: u64) -> Tick {
        Tick::ZERO.after(Duration::from_micros(micros))
    }

    #[test]
    fn a_budget_ends_by_number_and_by_time() {
        let near = Duration::ZERO;
        let mut budget = HandoffBudget::default();
        let spent = (0..20).filter(|now| budget.try_spend(at(*now), near, HANDOFFS_MAX));
        assert_eq!(spent.count(), 16);
        assert!(
            budget.spend_turn(at(20), near, HANDOFFS_MAX),
            "one too many"
        );
        assert!(
            budget.try_spend(at(21), near, HANDOFFS_MAX)
                && budget.try_spend(at(5_021), near, HANDOFFS_MAX)
        );
        assert!(
            !budget.try_spend(at(5_022), near, HANDOFFS_MAX),
            "5 ms after the first"
        );
        assert!(budget.spend_turn(at(5_022), near, HANDOFFS_MAX));
        assert!(
            !budget.spend_turn(at(9_000), near, HANDOFFS_MAX),
            "it starts again"
        );
    }

    #[test]
    fn further_from_the_server_it_lasts_as_long_as_a_trip() {
        for (trip, most) in [(4, 5_000), (20, 20_000), (900, 50_000)] {
            let (trip, mut budget) = (Duration::from_millis(trip), HandoffBudget::default());
            assert!(
                budget.try_spend(at(0), trip, HANDOFFS_MAX)
                    && budget.try_spend(at(most), trip, HANDOFFS_MAX)
            );
            assert!(!budget.try_spend(at(most + 1), trip, HANDOFFS_MAX));
        }
    }
}
