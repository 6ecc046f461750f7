//! What is due when: a timer queue without a clock.

use std::collections::{BTreeMap, HashMap};

use crate::clock::Tick;

/// Entries in order of time, each known by an id.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    by_time: BTreeMap<(Tick, u64), T>,
    at: HashMap<u64, Tick>,
    /// When its driver means to look next; an entry before that has to wake it.
    armed: Tick,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeMap::new(),
            at: HashMap::new(),
            armed: Tick::NEVER,
        }
    }
}

impl<T> Schedule<T> {
    /// Adds an entry. True if the driver means to look too late for it and has to be woken.
    #[must_use]
    pub(crate) fn insert(&mut self, id: u64, at: Tick, item: T) -> bool {
        self.remove(id);
        self.by_time.insert((at, id), item);
        self.at.insert(id, at);
        let early = at < self.armed;
        if early {
            self.armed = at;
        }
        early
    }

    /// Moves an entry that is still there to another time. True as for [`Schedule::insert`].
    #[must_use]
    pub(crate) fn shift(&mut self, id: u64, at: Tick) -> bool {
        match self.remove(id) {
            Some(item) => self.insert(id, at, item),
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let at = self.at.remove(&id)?;
        self.by_time.remove(&(at, id))
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.by_time.values()
    }

    /// Makes every entry due at `now` at the latest. For the driver itself, which looks again after
    /// this.
    pub(crate) fn hasten(&mut self, now: Tick) {
        let later = std::mem::take(&mut self.by_time).into_iter();
        for ((at, id), item) in later {
            let at = at.min(now);
            self.by_time.insert((at, id), item);
            self.at.insert(id, at);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// Takes the entries that are due, oldest first, at most `max`.
    pub(crate) fn take_due(&mut self, now: Tick, max: usize) -> Vec<(u64, T)> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some(first) = self.by_time.first_entry()
            && first.key().0 <= now
        {
            let ((_, id), item) = first.remove_entry();
            self.at.remove(&id);
            due.push((id, item));
        }
        due
    }

    /// When to look next. An empty schedule keeps the last plan if that is still ahead, so that a
    /// program that takes and releases one lock in a loop does not wake its driver each time.
    pub(crate) fn arm(&mut self, now: Tick) -> Tick {
        let next = self
            .by_time
            .first_key_value()
            .map_or(Tick::NEVER, |((at, _), _)| *at);
        self.armed = if self.armed > now {
            self.armed.min(next)
        } else {
            next
        };
        self.armed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(n: u64) -> Tick {
        Tick::from_nanos(n)
    }

    #[test]
    fn entries_leave_in_order_of_time_and_only_when_due() {
        let mut schedule = Schedule::default();
        assert!(schedule.insert(1, tick(30), 'c'));
        assert!(schedule.insert(2, tick(10), 'a'));
        assert!(!schedule.insert(3, tick(20), 'b'));
        assert_eq!(schedule.take_due(tick(5), 9), []);
        assert_eq!(schedule.take_due(tick(20), 1), [(2, 'a')]);
        assert_eq!(schedule.take_due(tick(20), 9), [(3, 'b')]);
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
    fn hastened_entries_are_due_and_still_known() {
        let mut schedule = Schedule::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20)] {
            let _ = schedule.insert(id, tick(at), id);
        }
        schedule.hasten(tick(15));
        assert_eq!(schedule.remove(3), Some(3));
        assert_eq!(schedule.take_due(tick(15), 9), [(2, 2), (1, 1)]);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn only_an_entry_earlier_than_planned_wakes_the_driver() {
        let mut schedule = Schedule::default();
        let _ = schedule.insert(1, tick(10), 'a');
        assert_eq!(schedule.arm(tick(0)), tick(10));
        schedule.remove(1);
        assert_eq!(schedule.arm(tick(1)), tick(10), "the plan stands");
        assert!(!schedule.insert(2, tick(11), 'b'));
        assert!(schedule.insert(3, tick(9), 'c'));
        schedule.remove(2);
        schedule.remove(3);
        assert_eq!(schedule.arm(tick(20)), Tick::NEVER);
    }
}
