//! The holds that a client has on one lock, as its other tasks see them: found by their owner, handed off, joined by
//! readers, taken while they are without a guard, and lost.
//!
//! Invariants: nothing here keeps a hold alive or knows its type, so that a hold can refer to its lock; only a hold on
//! its way to the next task, or without a guard, is kept until it is taken or dropped. A handed-off share is taken, or
//! released when the hand-off is dropped. A hold that can be joined decides itself whether it still accepts readers. One
//! task takes a hold without a guard out of its slot, and a task watches for its end while it is there. Nothing is dropped
//! under a mutex.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::share_lease::ShareLease;
use crate::api::holder::Owner;
use crate::api::loss::{Losable, LostReason};
use crate::api::options::{LeasePolicy, Options, Replication};
use crate::engine::clock::{Clock, Tick};
use crate::engine::counts::Mode;
use crate::engine::hint::Hint;

/// A hold as other tasks that want the lock see it.
pub(crate) trait LocalHold: Any + Debug + Send + Sync {
    fn is_of(&self, owner: &Owner) -> bool;
    fn is_held(&self) -> bool;
    /// Whether it excludes all other holders.
    fn is_exclusive(&self) -> bool;
    /// Its local deadline.
    fn deadline(&self) -> Tick;
    /// Its holder id, its key, and the time of its request, if it is a single hold at one server.
    fn at_server(&self) -> Option<(&str, &str, Tick)> {
        None
    }
    /// Ends it, because the client is closed.
    fn close(&self);
}

#[derive(Debug, Default)]
pub(crate) struct LocalHolds(Mutex<Vec<Entry>>);

/// A hold, and what is known of it without asking it. A lock may have thousands of readers in one client.
#[derive(Debug)]
struct Entry {
    hold: Weak<dyn LocalHold>,
    has: Has,
}

#[derive(Debug, PartialEq)]
enum Has {
    /// It was granted to a writer: it may exclude others, and its owner changes when it is handed off.
    Writer,
    /// It was granted to this reader, and no other has joined.
    Reader(Owner),
    Readers,
}

impl Entry {
    fn is<H: LocalHold>(&self, hold: *const H) -> bool {
        std::ptr::addr_eq(self.hold.as_ptr(), hold)
    }

    fn may_be_of(&self, owner: &Owner) -> bool {
        match &self.has {
            Has::Reader(reader) => reader == owner,
            Has::Writer | Has::Readers => true,
        }
    }
}

impl LocalHolds {
    /// Adds a hold that this owner was granted in this mode.
    pub(crate) fn add(&self, hold: Weak<dyn LocalHold>, owner: &Owner, mode: Mode) {
        let has = match mode {
            Mode::Exclusive => Has::Writer,
            Mode::Shared => Has::Reader(owner.clone()),
        };
        let mut entries = self.0.lock();
        if entries.is_empty() {
            // Most locks have one.
            entries.reserve_exact(1);
        }
        entries.push(Entry { hold, has });
    }

    /// Notes that another reader is about to join this hold.
    pub(crate) fn joined<H: LocalHold>(&self, hold: &H) {
        let mut entries = self.0.lock();
        // Readers join the latest hold.
        let joined = entries.iter_mut().rev().find(|entry| entry.is(hold));
        if let Some(entry) = joined
            && entry.has != Has::Writer
        {
            entry.has = Has::Readers;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Removes a hold. True if no other is left.
    pub(crate) fn remove<H: LocalHold>(&self, hold: &H) -> bool {
        let mut entries = self.0.lock();
        entries.retain(|entry| !entry.is(hold));
        if entries.is_empty() && entries.capacity() > 4 {
            // Frees the memory that a peak needed.
            entries.shrink_to(4);
        }
        entries.is_empty()
    }

    /// A live hold of `owner`. An exclusive hold if there is one.
    pub(crate) fn of_owner<H: LocalHold>(&self, owner: &Owner) -> Option<Arc<H>> {
        let known_of = self.those(|entry| entry.may_be_of(owner)).into_iter();
        let live = known_of.filter(|hold| hold.is_held() && hold.is_of(owner));
        known(live.max_by_key(|hold| hold.is_exclusive())?)
    }

    /// The latest local deadline of the live exclusive holds.
    pub(crate) fn exclusive_until(&self) -> Option<Tick> {
        let live = self.live_of_writers().into_iter();
        let exclusive = live.filter(|hold| hold.is_exclusive());
        exclusive.map(|hold| hold.deadline()).max()
    }

    /// Whether a live hold excludes only writers.
    pub(crate) fn is_read(&self) -> bool {
        let mut all = self.those(|_| true).into_iter();
        all.any(|hold| hold.is_held() && !hold.is_exclusive())
    }

    /// All holds but `this` that a hold in this mode would contradict, including holds that have ended.
    pub(crate) fn contradicted<H: LocalHold>(&self, this: &H, mode: Mode) -> Vec<Arc<H>> {
        let others = self.those(|entry| {
            !entry.is(this) && (mode == Mode::Exclusive || entry.has == Has::Writer)
        });
        let mut others: Vec<Arc<H>> = others.into_iter().filter_map(known).collect();
        others.retain(|hold| mode == Mode::Exclusive || hold.is_exclusive());
        others
    }

    /// The live holds that were granted to writers.
    pub(crate) fn live_of_writers(&self) -> Vec<Arc<dyn LocalHold>> {
        let mut holds = self.those(|entry| entry.has == Has::Writer);
        holds.retain(|hold| hold.is_held());
        holds
    }

    pub(crate) fn live(&self) -> Vec<Arc<dyn LocalHold>> {
        let mut holds = self.those(|_| true);
        holds.retain(|hold| hold.is_held());
        holds
    }

    /// Collects holds. They are asked without the mutex, because a hold that ends removes itself.
    fn those(&self, which: impl Fn(&Entry) -> bool) -> Vec<Arc<dyn LocalHold>> {
        let entries = self.0.lock();
        let those = entries.iter().filter(|entry| which(entry));
        those.filter_map(|entry| entry.hold.upgrade()).collect()
    }
}

/// Downcasts the hold to its type.
pub(crate) fn known<H: LocalHold>(hold: Arc<dyn LocalHold>) -> Option<Arc<H>> {
    let hold: Arc<dyn Any + Send + Sync> = hold;
    hold.downcast().ok()
}

/// A waiter's request for a hand-off.
#[derive(Clone, Debug)]
pub(crate) struct HandoffRequest {
    pub(crate) options: Arc<Options>,
    pub(crate) policy: LeasePolicy,
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

/// A group of holds that concern each other.
pub(crate) trait LossListener: Debug + Send + Sync {
    /// A member is lost. Called without any mutex held.
    fn member_lost(self: Arc<Self>, reason: LostReason);
}

/// A hold of which guards have shares, each with a lease of its own.
pub(crate) trait SharedHold: LocalHold + Sized {
    fn clock(&self) -> Clock;

    /// Signalled when the hold ends or its deadline moves earlier or later.
    fn changed(&self) -> &Hint;

    /// Why it is lost, if it is. `now` was just read.
    fn loss_at(&self, now: Tick) -> Option<LostReason>;

    /// Why one share is lost, if it is: because the hold is lost, or because the share ended by itself.
    fn loss_of(&self, lease: ShareLease) -> Option<LostReason> {
        let now = self.clock().now();
        self.loss_at(now).or_else(|| lease.loss_at(now))
    }

    /// The remaining time of one share.
    fn remaining_of(&self, lease: ShareLease) -> Duration {
        let now = self.clock().now();
        match self.loss_at(now) {
            Some(_) => Duration::ZERO,
            None => now.until(self.deadline().min(lease.end())),
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
                let end = self.deadline().min(lease.end());
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

/// The terms that are equal for all readers of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderClass {
    /// The lease, which is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct StickySlot {
    state: Mutex<SlotState>,
    /// Signalled when the hold's end is earlier than the watched end.
    pub(super) sooner: Hint,
}

#[derive(Debug, Default)]
struct SlotState {
    hold: Option<(Handoff, Tick)>,
    watched_until: Option<Tick>,
}

/// The next step of the watching task.
#[derive(Debug)]
pub(super) enum Watched {
    /// The time is over: drop it.
    Over(Handoff),
    Until(Tick),
    /// The slot is empty, and the watch is over.
    Nothing,
}

impl StickySlot {
    /// Puts a hold in until `end`. Returns the previous hold, for the caller to drop, and whether no task watches:
    /// the caller has to start one.
    #[must_use]
    pub(super) fn put(&self, hold: Handoff, end: Tick) -> (Option<Handoff>, bool) {
        let mut state = self.state.lock();
        let before = state.hold.replace((hold, end));
        let watched_until = *state.watched_until.get_or_insert(Tick::NEVER);
        let is_unwatched = watched_until == Tick::NEVER;
        if end < watched_until {
            state.watched_until = Some(end);
            drop(state);
            if !is_unwatched {
                self.sooner.notify();
            }
        }
        (before.map(|(hold, _)| hold), is_unwatched)
    }

    pub(super) fn is_full(&self) -> bool {
        self.state.lock().hold.is_some()
    }

    pub(super) fn take(&self) -> Option<Handoff> {
        self.state.lock().hold.take().map(|(hold, _)| hold)
    }

    pub(super) fn watch(&self, now: Tick) -> Watched {
        let mut state = self.state.lock();
        state.watched_until = state.hold.as_ref().map(|(_, end)| *end);
        match state.watched_until {
            Some(end) if now < end => Watched::Until(end),
            _ => state
                .hold
                .take()
                .map_or(Watched::Nothing, |(hold, _)| Watched::Over(hold)),
        }
    }

    /// Notes that the watch has ended. Returns the hold, for the caller to drop.
    pub(super) fn end_watch(&self) -> Option<Handoff> {
        self.state.lock().watched_until = None;
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
            let owner = request.options.owner.clone().unwrap();
            (!request.options.fenced).then(|| Handoff::new(self, owner, Mode::Exclusive, lease))
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
            let options = Options {
                owner: Some(next.clone()),
                fenced,
                ..Options::new()
            };
            let request = HandoffRequest {
                options: options.into(),
                policy: LeasePolicy::Renewed(Duration::from_secs(30)),
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

    /// A hold of one owner that counts how often it is asked.
    #[derive(Debug)]
    struct Asked {
        owner: Owner,
        is_exclusive: bool,
        times: AtomicUsize,
    }

    impl Asked {
        fn ask(&self) {
            self.times.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl LocalHold for Asked {
        fn is_of(&self, owner: &Owner) -> bool {
            self.ask();
            self.owner == *owner
        }

        fn is_held(&self) -> bool {
            self.ask();
            true
        }

        fn is_exclusive(&self) -> bool {
            self.ask();
            self.is_exclusive
        }

        fn deadline(&self) -> Tick {
            Tick::NEVER
        }

        fn close(&self) {}
    }

    /// This many holds in this mode, each of an owner of its own.
    fn add(holds: &LocalHolds, count: usize, mode: Mode) -> Vec<Arc<Asked>> {
        let add_one = |_| {
            let hold = Arc::new(Asked {
                owner: Owner::new(),
                is_exclusive: mode == Mode::Exclusive,
                times: AtomicUsize::new(0),
            });
            let entry: Weak<Asked> = Arc::downgrade(&hold);
            holds.add(entry, &hold.owner, mode);
            hold
        };
        (0..count).map(add_one).collect()
    }

    fn times(holds: &[Arc<Asked>]) -> usize {
        holds
            .iter()
            .map(|hold| hold.times.load(Ordering::Relaxed))
            .sum()
    }

    /// Each acquire asks these questions: with thousands of readers they must not cost a walk each.
    #[test]
    fn readers_are_asked_only_by_their_owner() {
        let holds = LocalHolds::default();
        let readers = add(&holds, 1_000, Mode::Shared);
        assert!(holds.of_owner::<Asked>(&Owner::new()).is_none());
        assert!(holds.exclusive_until().is_none());
        assert!(holds.live_of_writers().is_empty());
        assert!(holds.contradicted(&*readers[0], Mode::Shared).is_empty());
        assert_eq!(times(&readers), 0);
        let found = holds.of_owner::<Asked>(&readers[500].owner).unwrap();
        assert!(Arc::ptr_eq(&found, &readers[500]));
        assert!(times(&readers) > 0 && times(&readers) == times(&readers[500..=500]));
    }

    #[test]
    fn a_hold_that_others_have_joined_is_asked_by_any_owner() {
        let holds = LocalHolds::default();
        let readers = add(&holds, 3, Mode::Shared);
        holds.joined(&*readers[1]);
        assert!(holds.of_owner::<Asked>(&Owner::new()).is_none());
        assert!(times(&readers[1..=1]) > 0 && times(&readers) == times(&readers[1..=1]));
    }

    #[test]
    fn writers_are_asked_by_any_owner_whoever_was_granted_them() {
        let holds = LocalHolds::default();
        let writers = add(&holds, 1, Mode::Exclusive);
        holds.joined(&*writers[0]);
        assert_eq!(holds.exclusive_until(), Some(Tick::NEVER));
        assert!(holds.of_owner::<Asked>(&writers[0].owner).is_some());
        let readers = add(&holds, 2, Mode::Shared);
        let all = holds.contradicted(&*readers[0], Mode::Exclusive);
        assert_eq!(all.len(), 2, "all but the new one");
        let writer = holds.contradicted(&*readers[0], Mode::Shared);
        assert!(writer.len() == 1 && Arc::ptr_eq(&writer[0], &writers[0]));
    }

    #[test]
    fn the_last_to_go_is_told() {
        let holds = LocalHolds::default();
        let readers = add(&holds, 2, Mode::Shared);
        assert!(!holds.remove(&*readers[1]) && !holds.is_empty());
        assert!(holds.remove(&*readers[0]) && holds.is_empty());
    }
}
