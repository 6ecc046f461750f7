//! Records when each entry is due, and which entries wait for room at their server. A timer queue without a clock.
//!
//! A pure data structure. Invariant: an entry has one id and one place in the order of time, and is taken once.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::engine::clock::Tick;

/// Entries in the order of time, each with an id.
///
/// An entry that is due while its server has no room waits for room. It also keeps a place in the order of time. It is
/// taken at that time or when there is room, if that is earlier.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    by_time: BTreeMap<(Tick, u64), T>,
    places: FxHashMap<u64, Place>,
    /// By server, the entries that wait for room, in the order of their due times. Holds no empty sets.
    waiting: BTreeMap<u64, BTreeSet<(Tick, u64)>>,
    /// When the driver wakes next. An earlier entry has to wake it.
    planned_wake: Tick,
}

/// The place of an entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: Tick,
    /// The server that has no room for it, and the time since when it is due.
    waits: Option<(u64, Tick)>,
}

/// An entry that was taken because it is due, and since when.
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
            places: FxHashMap::default(),
            waiting: BTreeMap::new(),
            planned_wake: Tick::NEVER,
        }
    }
}

impl<T> Schedule<T> {
    /// Adds an entry. Returns true if the driver would wake too late for it, and has to be woken.
    #[must_use]
    pub(crate) fn insert(&mut self, id: u64, at: Tick, item: T) -> bool {
        self.remove(id);
        self.by_time.insert((at, id), item);
        self.places.insert(id, Place { at, waits: None });
        let early = at < self.planned_wake;
        if early {
            self.planned_wake = at;
        }
        early
    }

    /// Puts back an entry that was taken while `server` has no room. The entry is due at `at` even without room. Called
    /// by the driver, which plans its next wake-up afterwards.
    pub(crate) fn wait(&mut self, entry: DueEntry<T>, server: u64, at: Tick) {
        let DueEntry { id, since, item } = entry;
        self.remove(id);
        self.by_time.insert((at, id), item);
        let waits = Some((server, since));
        self.places.insert(id, Place { at, waits });
        self.waiting.entry(server).or_default().insert((since, id));
    }

    /// Moves an entry to another time, if it is still there. Returns the same as [`Schedule::insert`].
    #[must_use]
    pub(crate) fn shift(&mut self, id: u64, at: Tick) -> bool {
        match self.remove(id) {
            Some(item) => self.insert(id, at, item),
            None => false,
        }
    }

    /// Moves an entry to an earlier time, if it is still there. Called by the driver, which plans its next wake-up
    /// afterwards.
    pub(crate) fn bring_forward(&mut self, id: u64, at: Tick) {
        if self.places.get(&id).is_some_and(|place| at < place.at) {
            let _needs_no_waking = self.shift(id, at);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let place = self.leave(id)?;
        self.by_time.remove(&(place.at, id))
    }

    /// Removes an entry from everything except the order of time.
    fn leave(&mut self, id: u64) -> Option<Place> {
        let place = self.places.remove(&id)?;
        if let Some((server, since)) = place.waits
            && let Some(here) = self.waiting.get_mut(&server)
        {
            here.remove(&(since, id));
            if here.is_empty() {
                self.waiting.remove(&server);
            }
        }
        Some(place)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let place = self.places.get(&id)?;
        self.by_time.get(&(place.at, id))
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.by_time.values()
    }

    /// Makes every entry due at `now` at the latest, and waiting for no server. Called by the driver, which plans its
    /// next wake-up afterwards.
    pub(crate) fn make_all_due(&mut self, now: Tick) {
        self.waiting.clear();
        let later = std::mem::take(&mut self.by_time).into_iter();
        for ((at, id), item) in later {
            let at = at.min(now);
            self.by_time.insert((at, id), item);
            self.places.insert(id, Place { at, waits: None });
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
            self.leave(id);
            due.push(DueEntry { id, since, item });
        }
        due
    }

    /// The servers that entries wait for.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = u64> {
        self.waiting.keys().copied()
    }

    /// Takes the entry that has been due longest among those waiting for `server`.
    pub(crate) fn take_waiting(&mut self, server: u64) -> Option<DueEntry<T>> {
        let (since, id) = *self.waiting.get(&server)?.first()?;
        let item = self.remove(id)?;
        Some(DueEntry { id, since, item })
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

    fn taken<T>(id: u64, since: u64, item: T) -> DueEntry<T> {
        let since = tick(since);
        DueEntry { id, since, item }
    }

    #[test]
    fn entries_leave_in_order_of_time_and_only_when_due() {
        let mut schedule = Schedule::default();
        assert!(schedule.insert(1, tick(30), 'c'));
        assert!(schedule.insert(2, tick(10), 'a'));
        assert!(!schedule.insert(3, tick(20), 'b'));
        assert_eq!(schedule.take_due(tick(5), 9), []);
        assert_eq!(schedule.take_due(tick(20), 1), [taken(2, 10, 'a')]);
        assert_eq!(schedule.take_due(tick(20), 9), [taken(3, 20, 'b')]);
        assert_eq!(schedule.len(), 1);
    }

    #[test]
    fn a_removed_entry_is_never_due_and_cannot_be_shifted_back() {
        let mut schedule = Schedule::default();
        let _ = schedule.insert(1, tick(10), 'a');
        assert_eq!(schedule.remove(1), Some('a'));
        assert!(!schedule.shift(1, tick(5)));
        assert_eq!(schedule.take_due(tick(99), 9), []);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn entries_made_due_are_still_known() {
        let mut schedule = Schedule::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20)] {
            let _ = schedule.insert(id, tick(at), id);
        }
        schedule.wait(taken(4, 5, 4), 7, tick(40));
        schedule.make_all_due(tick(15));
        assert_eq!(schedule.remove(3), Some(3));
        let due = [taken(2, 10, 2), taken(1, 15, 1), taken(4, 15, 4)];
        assert_eq!(schedule.take_waiting(7), None);
        assert_eq!(schedule.take_due(tick(15), 9), due);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn those_that_wait_are_taken_for_their_server_alone_oldest_first() {
        let mut schedule = Schedule::default();
        schedule.wait(taken(1, 20, 'b'), 7, tick(90));
        schedule.wait(taken(2, 10, 'a'), 7, tick(91));
        schedule.wait(taken(3, 5, 'x'), 8, tick(92));
        assert_eq!(schedule.take_due(tick(50), 9), []);
        assert_eq!(schedule.waited_for().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(schedule.take_waiting(7), Some(taken(2, 10, 'a')));
        assert_eq!(schedule.take_waiting(7), Some(taken(1, 20, 'b')));
        assert_eq!(schedule.take_waiting(7), None);
        assert_eq!(schedule.waited_for().collect::<Vec<_>>(), [8]);
        assert_eq!(schedule.len(), 1);
    }

    /// An entry stops waiting when its time comes, when it is removed, or when it is planned again.
    #[test]
    fn an_entry_leaves_its_wait_with_whatever_comes_first() {
        let mut schedule = Schedule::default();
        for id in 1..=4 {
            schedule.wait(taken(id, id, id), 7, tick(50));
        }
        assert_eq!(schedule.remove(1), Some(1));
        let _ = schedule.shift(2, tick(80));
        let _ = schedule.insert(3, tick(70), 3);
        assert_eq!(schedule.take_due(tick(50), 9), [taken(4, 50, 4)]);
        assert_eq!(schedule.take_waiting(7), None);
        assert_eq!(schedule.waited_for().next(), None);
        let left = [taken(3, 70, 3), taken(2, 80, 2)];
        assert_eq!(schedule.take_due(tick(99), 9), left);
    }

    #[test]
    fn only_an_entry_earlier_than_planned_wakes_the_driver() {
        let mut schedule = Schedule::default();
        let _ = schedule.insert(1, tick(10), 'a');
        assert_eq!(schedule.plan_wake(tick(0)), tick(10));
        schedule.remove(1);
        assert_eq!(schedule.plan_wake(tick(1)), tick(10), "the plan stands");
        assert!(!schedule.insert(2, tick(11), 'b'));
        assert!(!schedule.insert(2, tick(10), 'b'), "it already wakes then");
        assert!(schedule.insert(3, tick(9), 'c'));
        schedule.remove(2);
        schedule.remove(3);
        assert_eq!(schedule.plan_wake(tick(9)), Tick::NEVER, "it has woken");
    }

    #[test]
    fn an_empty_schedule_has_no_plan_once_its_driver_has_woken() {
        let mut schedule = Schedule::default();
        assert!(schedule.insert(1, tick(10), 'a'));
        schedule.remove(1);
        assert_eq!(schedule.plan_wake(tick(9)), tick(10));
        assert_eq!(schedule.plan_wake(tick(11)), Tick::NEVER);
    }

    #[test]
    fn an_entry_is_brought_forward_and_never_put_off() {
        let mut schedule = Schedule::default();
        let _ = schedule.insert(1, tick(30), 'a');
        schedule.bring_forward(1, tick(40));
        assert_eq!(schedule.plan_wake(tick(0)), tick(30), "it is due earlier");
        schedule.bring_forward(1, tick(20));
        schedule.bring_forward(2, tick(10));
        assert_eq!(schedule.plan_wake(tick(0)), tick(20), "entry 2 is gone");
        assert_eq!(schedule.take_due(tick(20), 9), [taken(1, 20, 'a')]);
        // An entry that would not move forward keeps waiting for its server.
        schedule.wait(taken(3, 5, 'c'), 7, tick(50));
        schedule.bring_forward(3, tick(50));
        assert_eq!(schedule.take_waiting(7), Some(taken(3, 5, 'c')));
    }

    #[test]
    fn what_is_in_it_can_be_seen() {
        let mut schedule = Schedule::default();
        let _ = schedule.insert(1, tick(30), 'a');
        schedule.wait(taken(2, 5, 'b'), 7, tick(20));
        assert_eq!(schedule.get(1), Some(&'a'));
        assert_eq!((schedule.get(2), schedule.get(3)), (Some(&'b'), None));
        assert_eq!(schedule.items().collect::<String>(), "ba");
        schedule.remove(2);
        assert_eq!(schedule.items().collect::<String>(), "a");
    }
}
