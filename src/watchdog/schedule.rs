//! The times at which entries are due, and the steps that a hold may have to take then. A timer queue without a clock.
//!
//! Invariants: an entry has one id and one place in the order of time, and is taken once. An entry that is due before the
//! driver's planned wake-up wakes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

/// The next step of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing to do before this time.
    Later(Tick),
    /// Renew the hold, and wait up to `wait` for the reply. At `deadline` it is lost or has another step to take.
    Renew {
        lease: Duration,
        deadline: Tick,
        wait: Duration,
    },
    /// The hold is lost: the deadline has passed, or its client was shut down.
    Expired,
    /// The hold has ended.
    Gone,
}

/// Entries in the order of time, each with an id.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    by_time: BTreeMap<(Tick, u64), T>,
    /// The time at which each entry is due.
    times: FxHashMap<u64, Tick>,
    /// The time at which the driver wakes next.
    planned_wake: Tick,
    /// Signalled when an entry is due before that.
    sooner: Arc<Hint>,
}

/// An entry that was taken because it is due, with the time since which it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueEntry<T> {
    pub(crate) id: u64,
    pub(crate) since: Tick,
    pub(crate) item: T,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeMap::new(),
            times: FxHashMap::default(),
            planned_wake: Tick::NEVER,
            sooner: Arc::default(),
        }
    }
}

impl<T> Schedule<T> {
    /// Returns the hint that is signalled when the driver would wake too late for an entry.
    pub(crate) fn sooner(&self) -> &Arc<Hint> {
        &self.sooner
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, id: u64, at: Tick, item: T) {
        self.remove(id);
        self.by_time.insert((at, id), item);
        self.times.insert(id, at);
        if at < self.planned_wake {
            self.planned_wake = at;
            self.sooner.notify();
        }
    }

    /// Moves an entry to another time, if it is still there.
    pub(crate) fn shift(&mut self, id: u64, at: Tick) {
        if let Some(item) = self.remove(id) {
            self.insert(id, at, item);
        }
    }

    /// Moves an entry to an earlier time, if it is still there and due later. Returns whether it was.
    pub(crate) fn bring_forward(&mut self, id: u64, at: Tick) -> bool {
        let is_later = self.times.get(&id).is_some_and(|planned| at < *planned);
        if is_later {
            self.shift(id, at);
        }
        is_later
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let at = self.times.remove(&id)?;
        self.by_time.remove(&(at, id))
    }

    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let at = *self.times.get(&id)?;
        self.by_time.get(&(at, id))
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.by_time.values()
    }

    /// Makes every entry due at `now` at the latest. Called by the driver, which plans its next wake-up afterwards.
    pub(crate) fn make_all_due(&mut self, now: Tick) {
        let later = std::mem::take(&mut self.by_time).into_iter();
        for ((at, id), item) in later {
            let at = at.min(now);
            self.by_time.insert((at, id), item);
            self.times.insert(id, at);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// Takes at most `max` due entries, oldest first.
    pub(crate) fn take_due(&mut self, now: Tick, max: usize) -> Vec<DueEntry<T>> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some(first) = self.by_time.first_entry()
            && first.key().0 <= now
        {
            let ((since, id), item) = first.remove_entry();
            self.times.remove(&id);
            due.push(DueEntry { id, since, item });
        }
        due
    }

    /// Plans the next wake-up. An empty schedule keeps its last plan while that is still ahead, so a program that takes
    /// and releases one lock in a loop does not wake the driver each time.
    pub(crate) fn plan_wake(&mut self, now: Tick) -> Tick {
        let next = self
            .by_time
            .first_key_value()
            .map_or(Tick::NEVER, |((at, _), _)| *at);
        self.planned_wake = if self.planned_wake > now {
            self.planned_wake.min(next)
        } else {
            next
        };
        self.planned_wake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(n: u64) -> Tick {
        Tick::from_nanos(n)
    }

    /// Whether the driver is woken.
    fn wakes<T>(schedule: &mut Schedule<T>, change: impl FnOnce(&mut Schedule<T>)) -> bool {
        let mark = schedule.sooner().mark();
        change(schedule);
        schedule.sooner().mark() != mark
    }

    fn taken<T>(id: u64, since: u64, item: T) -> DueEntry<T> {
        let since = tick(since);
        DueEntry { id, since, item }
    }

    #[test]
    fn entries_leave_in_order_of_time_and_only_when_due() {
        let mut schedule = Schedule::default();
        assert!(wakes(&mut schedule, |it| it.insert(1, tick(30), 'c')));
        assert!(wakes(&mut schedule, |it| it.insert(2, tick(10), 'a')));
        assert!(!wakes(&mut schedule, |it| it.insert(3, tick(20), 'b')));
        assert_eq!(schedule.take_due(tick(5), 9), []);
        assert_eq!(schedule.take_due(tick(20), 1), [taken(2, 10, 'a')]);
        assert_eq!(schedule.take_due(tick(20), 9), [taken(3, 20, 'b')]);
        assert_eq!(schedule.len(), 1);
    }

    #[test]
    fn a_removed_entry_is_never_due_and_cannot_be_shifted_back() {
        let mut schedule = Schedule::default();
        schedule.insert(1, tick(10), 'a');
        assert_eq!(schedule.remove(1), Some('a'));
        assert!(!wakes(&mut schedule, |it| it.shift(1, tick(5))));
        assert_eq!(schedule.take_due(tick(99), 9), []);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn entries_made_due_are_still_known() {
        let mut schedule = Schedule::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20)] {
            schedule.insert(id, tick(at), id);
        }
        schedule.make_all_due(tick(15));
        assert_eq!(schedule.remove(3), Some(3));
        let due = [taken(2, 10, 2), taken(1, 15, 1)];
        assert_eq!(schedule.take_due(tick(15), 9), due);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn only_an_entry_earlier_than_planned_wakes_the_driver() {
        let mut schedule = Schedule::default();
        schedule.insert(1, tick(10), 'a');
        assert_eq!(schedule.plan_wake(tick(0)), tick(10));
        schedule.remove(1);
        assert_eq!(schedule.plan_wake(tick(1)), tick(10), "the plan stands");
        assert!(!wakes(&mut schedule, |it| it.insert(2, tick(11), 'b')));
        assert!(
            !wakes(&mut schedule, |it| it.insert(2, tick(10), 'b')),
            "it already wakes then"
        );
        assert!(wakes(&mut schedule, |it| it.insert(3, tick(9), 'c')));
        schedule.remove(2);
        schedule.remove(3);
        assert_eq!(schedule.plan_wake(tick(9)), Tick::NEVER, "it has woken");
    }

    #[test]
    fn an_empty_schedule_has_no_plan_once_its_driver_has_woken() {
        let mut schedule = Schedule::default();
        assert!(wakes(&mut schedule, |it| it.insert(1, tick(10), 'a')));
        schedule.remove(1);
        assert_eq!(schedule.plan_wake(tick(9)), tick(10));
        assert_eq!(schedule.plan_wake(tick(11)), Tick::NEVER);
    }

    #[test]
    fn an_entry_is_brought_forward_and_never_put_off() {
        let mut schedule = Schedule::default();
        schedule.insert(1, tick(30), 'a');
        assert!(!schedule.bring_forward(1, tick(40)));
        assert_eq!(schedule.plan_wake(tick(0)), tick(30), "it is due earlier");
        assert!(schedule.bring_forward(1, tick(20)));
        assert!(!schedule.bring_forward(2, tick(10)));
        assert_eq!(schedule.plan_wake(tick(0)), tick(20), "entry 2 is gone");
        assert_eq!(schedule.take_due(tick(20), 9), [taken(1, 20, 'a')]);
    }

    #[test]
    fn what_is_in_it_can_be_seen() {
        let mut schedule = Schedule::default();
        schedule.insert(1, tick(30), 'a');
        schedule.insert(2, tick(20), 'b');
        assert_eq!(schedule.get(1), Some(&'a'));
        assert_eq!((schedule.get(2), schedule.get(3)), (Some(&'b'), None));
        assert_eq!(schedule.items().collect::<String>(), "ba");
        schedule.remove(2);
        assert_eq!(schedule.items().collect::<String>(), "a");
    }
}
