//! Whose turn it is, of the clients that want one lock: how long this one goes on, and when it asks again.
//!
//! In its turn the tasks of a client hand the lock off to each other, a bounded number of times and for a
//! bounded time. Then it stands back until each of the others that listen has released the lock once, as far
//! as messages tell. So those who all want a lock have it one after the other, and few of those who receive a
//! message ask in vain. Invariant: a client stands back for a bounded time, and only for others that listen.

use std::time::Duration;

use super::handoff::{HANDOFFS_MAX, HANDOFFS_ONCE_MIN, HandoffBudget};
use crate::engine::clock::Tick;

/// How long a client that stands back waits at least for the next message, before it asks all the same.
const SILENCE_MIN: Duration = Duration::from_millis(2);

/// Between two messages one of the others hears of the first, asks, is answered and releases: two trips, and what
/// it does with the lock; one more for those that are further away.
const TRIPS_BETWEEN_MESSAGES: u32 = 3;

/// Readers elsewhere are kept out for so long for readers of this client, also where a turn lasts for longer as the
/// server is far away.
const DEFERRED_MAX: Duration = Duration::from_millis(5);

/// Where so many others wait, it is long until the next turn: no task has the lock twice in this one.
const OTHERS_MANY: u64 = 4;

/// More than this are not waited for one by one.
const OTHERS_MAX: u32 = 64;

/// Those that listened, but so often in a row did not take the lock while it was free for them, are not waited
/// for again before so long: their process may be stopped.
const MISSED_MAX: u32 = 3;
const ABSENT_FOR: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Turns {
    budget: HandoffBudget,
    /// How many tasks waited here as the turn began, besides the one that got it.
    waiting: u32,
    /// How many connections of others received the message of the last release.
    others: u64,
    /// When that was decided on, and how many messages had come.
    released: Option<(Tick, u64)>,
    back: Option<StandBack>,
    absent: Absent,
    /// How long the server takes to answer those who wait for it here.
    trip: Duration,
}

/// Those of the others that listen, but do not come.
#[derive(Debug, Default)]
struct Absent {
    count: u64,
    /// How often in a row so many did not come.
    missed: u32,
    /// Until then they are not waited for.
    until: Tick,
}

/// A client has had its turn.
#[derive(Clone, Copy, Debug)]
struct StandBack {
    /// Its next turn is when so many messages have come in all: that of its own release, and one of each of
    /// the others.
    messages: u64,
    /// Its next turn is not later than this.
    until: Tick,
    /// Nor later than so long after the last message.
    silence: Duration,
    /// How many of the others are not waited for.
    absent: u64,
}

impl Absent {
    fn count_at(&self, now: Tick) -> u64 {
        if now < self.until { self.count } else { 0 }
    }

    /// So many did not come this time.
    fn note(&mut self, count: u64, now: Tick) {
        if count != self.count {
            *self = Self {
                count,
                ..Self::default()
            };
        }
        self.missed = self.missed.saturating_add(1);
        if self.missed >= MISSED_MAX && now >= self.until {
            self.until = now.after(ABSENT_FOR);
        }
    }
}

impl Turns {
    pub(super) fn try_spend_handoff(&mut self, now: Tick) -> bool {
        self.budget.try_spend(now, self.trip, self.handoffs_max())
    }

    fn handoffs_max(&self) -> u32 {
        let all_once = HANDOFFS_ONCE_MIN..=HANDOFFS_MAX;
        if self.others >= OTHERS_MANY && all_once.contains(&self.waiting) {
            self.waiting
        } else {
            HANDOFFS_MAX
        }
    }

    /// The same for readers of this client, to whom a writer would pass its hold on as it is: not while others listen.
    /// Until when its downgrade is deferred.
    pub(super) fn try_defer_downgrade(&mut self, now: Tick) -> Option<Tick> {
        let is_left = self.others == 0 && self.try_spend_handoff(now);
        let end = self.budget.end(self.trip).filter(|_| is_left)?;
        Some(end.min(now.after(DEFERRED_MAX)))
    }

    /// A release was decided on, when so many messages had come.
    pub(super) fn note_release(&mut self, now: Tick, messages: u64) {
        // That of the release before this one, and another: if nobody was waited for, one of them came all the same.
        let have_come = |(_, before)| messages > before + 1;
        if self.released.is_some_and(have_come) {
            self.have_come();
        }
        self.released = Some((now, messages));
    }

    /// So many connections of others received its message.
    pub(super) fn note_others(&mut self, others: u64) {
        if self.others != others {
            self.absent = Absent::default();
        }
        self.others = others;
    }

    /// A waiter has had its answer after this time.
    pub(super) fn note_trip(&mut self, trip: Duration) {
        let known = if self.trip.is_zero() { trip } else { self.trip };
        // What took longer may have been in a queue.
        self.trip = trip.min((known * 7 + trip) / 8);
    }

    /// Counts a turn. True if it was the last in a row and others listen.
    pub(super) fn count_turn(&mut self, now: Tick) -> bool {
        let could_ask = |(at, _): (Tick, u64)| at.until(now) > self.time_to_ask();
        if self.released.is_some_and(could_ask) {
            // Not in a row.
            self.reset_handoffs();
        }
        let most = self.handoffs_max();
        self.budget.spend_turn(now, self.trip, most) && self.others > 0
    }

    /// Counts a turn; if it was the last in a row and others listen, this client stands back.
    pub(super) fn end(&mut self, now: Tick) {
        let own = self.budget.spent_for(now);
        let own_turn = self.budget.time_of_turn(now, self.trip);
        if !self.count_turn(now) {
            return;
        }
        let absent = self.absent.count_at(now);
        let others = self.others.saturating_sub(absent);
        let others = u32::try_from(others).map_or(OTHERS_MAX, |others| others.min(OTHERS_MAX));
        if others == 0 {
            return;
        }
        let asking = self.time_to_ask();
        self.back = Some(StandBack {
            messages: self.released.map_or(0, |(_, messages)| messages) + 1 + u64::from(others),
            // The others may have as much to do with it as this one had.
            until: now.after((asking + own) * (others + 1)),
            // Not as long as it was held: if nobody has it, nobody wants it, and only the server can say.
            silence: asking + own_turn,
            absent,
        });
    }

    /// Whether it may have to stand back.
    pub(super) fn is_back(&self) -> bool {
        self.back.is_some()
    }

    /// Whether it is not yet its turn when so many messages have come. Then, until when to wait for the next
    /// message: the end of each of the others' turns gives one.
    pub(super) fn stands_back(&self, messages: u64, now: Tick) -> Option<Tick> {
        let back = self.back?;
        if messages >= back.messages || now >= back.until {
            return None;
        }
        Some(now.after(back.silence).min(back.until))
    }

    /// In which others who were told of a release have asked for the lock.
    fn time_to_ask(&self) -> Duration {
        SILENCE_MIN.max(self.trip * TRIPS_BETWEEN_MESSAGES)
    }

    /// It has the lock after so many messages, and so many other tasks wait here. Of those it stood back for, the ones that
    /// had not come by then did not want it.
    pub(super) fn begin(&mut self, messages: u64, waiting: usize, now: Tick) {
        self.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        if let Some(back) = self.back.take() {
            let missing = back.messages.saturating_sub(messages);
            self.absent.note(back.absent + missing, now);
        }
    }

    /// Nor elsewhere, if nobody listens: what comes next is not in a row with what was.
    pub(super) fn nobody_waits_here(&mut self) {
        if self.others == 0 {
            self.reset_handoffs();
        }
    }

    /// The server says that others have it: they had their turn.
    pub(super) fn seen_elsewhere(&mut self) {
        self.reset_handoffs();
        self.have_come();
    }

    /// One of the others came. If nobody was waited for, it was for no reason.
    fn have_come(&mut self) {
        if self.absent.count >= self.others {
            self.absent = Absent::default();
        }
    }

    /// What comes next is not in a row with what was.
    fn reset_handoffs(&mut self) {
        self.budget = HandoffBudget::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Tick {
        Tick::ZERO.after(Duration::from_micros(micros))
    }

    /// All that may go on in one turn.
    fn spend_turn(turns: &mut Turns, now: Tick) {
        let has_ended = (0..100).any(|_| !turns.try_spend_handoff(now));
        assert!(has_ended, "a turn has a bound");
    }

    /// One whose turn is over, while so many others listen; four messages had come before.
    fn after_a_turn(trip: Duration, others: u64) -> Turns {
        let mut turns = Turns::default();
        turns.note_trip(trip);
        turns.note_release(at(0), 4);
        turns.note_others(others);
        spend_turn(&mut turns, at(0));
        turns.end(at(0));
        turns
    }

    #[test]
    fn it_stands_back_until_each_of_the_others_has_released() {
        let turns = after_a_turn(Duration::ZERO, 3);
        assert!(turns.is_back());
        for messages in 4..8 {
            assert_eq!(turns.stands_back(messages, at(10)), Some(at(2_010)));
        }
        assert_eq!(turns.stands_back(8, at(10)), None, "its own, and three");
    }

    #[test]
    fn readers_have_it_for_a_turn_that_is_near_and_not_while_others_listen() {
        let mut turns = Turns::default();
        assert_eq!(turns.try_defer_downgrade(at(0)), Some(at(5_000)));
        assert_eq!(
            turns.try_defer_downgrade(at(4_000)),
            Some(at(5_000)),
            "in one turn"
        );
        assert_eq!(turns.try_defer_downgrade(at(5_001)), None);
        let mut far = Turns::default();
        far.note_trip(Duration::from_millis(40));
        assert!(far.try_spend_handoff(at(0)));
        assert_eq!(far.try_defer_downgrade(at(20_000)), Some(at(25_000)));
        assert_eq!(far.try_defer_downgrade(at(38_000)), Some(at(40_000)));
        let mut turns = Turns::default();
        for _ in 0..16 {
            assert!(turns.try_defer_downgrade(at(0)).is_some());
        }
        assert_eq!(turns.try_defer_downgrade(at(0)), None, "so often");
        let mut turns = Turns::default();
        turns.note_others(1);
        assert_eq!(turns.try_defer_downgrade(at(0)), None);
    }

    #[test]
    fn where_many_others_listen_each_who_waits_has_it_once_in_a_turn() {
        for (others, waiting, most) in
            [(3, 7, 16), (4, 6, 16), (4, 7, 7), (9, 15, 15), (4, 100, 16)]
        {
            let mut turns = Turns::default();
            turns.note_others(others);
            turns.begin(0, waiting, at(0));
            let spent = (0..100).take_while(|_| turns.try_spend_handoff(at(0)));
            assert_eq!(spent.count(), most, "{waiting} wait, and {others} others");
        }
    }

    #[test]
    fn nobody_listens_nobody_stands_back() {
        let mut turns = after_a_turn(Duration::ZERO, 0);
        assert_eq!(turns.stands_back(0, at(0)), None);
        let is_over = (0..40).any(|_| turns.count_turn(at(0)));
        assert!(!is_over, "it is over for the sake of others");
    }

    /// Who comes next finds a lock that nobody wanted for a while, as far as can be known here.
    #[test]
    fn when_nobody_waits_the_next_turn_is_a_whole_one_unless_others_listen() {
        for (others, is_whole) in [(0, true), (1, false)] {
            let mut turns = Turns::default();
            turns.note_others(others);
            spend_turn(&mut turns, at(0));
            turns.nobody_waits_here();
            assert_eq!(turns.try_spend_handoff(at(0)), is_whole, "{others} others");
        }
    }

    #[test]
    fn it_ends_in_time_and_with_the_next_turn() {
        let mut turns = after_a_turn(Duration::ZERO, 3);
        assert_eq!(turns.stands_back(5, at(7_000)), Some(at(8_000)));
        assert_eq!(turns.stands_back(5, at(8_000)), None);
        turns.begin(5, 0, at(6_000));
        assert!(!turns.is_back());
        assert_eq!(turns.stands_back(5, at(0)), None);
    }

    #[test]
    fn far_from_the_server_it_waits_for_longer() {
        let turns = after_a_turn(Duration::from_millis(40), 1);
        assert_eq!(turns.stands_back(5, at(0)), Some(at(120_000)));
    }

    #[test]
    fn it_gives_the_others_as_long_as_it_took_itself() {
        let mut turns = Turns::default();
        turns.note_others(2);
        spend_turn(&mut turns, at(0));
        turns.end(at(3_000));
        assert_eq!(turns.stands_back(0, at(4_000)), Some(at(4_000 + 5_000)));
    }

    /// They may have left, or be frozen: then nobody has it meanwhile. If they have it, the server says so.
    #[test]
    fn it_does_not_give_them_as_long_as_it_held_the_lock() {
        for (trip, silence) in [(0, 12), (20, 100), (60, 280)] {
            let mut turns = Turns::default();
            turns.note_trip(Duration::from_millis(trip));
            turns.note_others(1);
            assert!(turns.try_spend_handoff(at(0)));
            let now = at(3_600_000_000);
            turns.note_release(now, 0);
            turns.end(now);
            let until = now.after(Duration::from_millis(silence));
            assert_eq!(turns.stands_back(0, now), Some(until));
        }
    }

    #[test]
    fn who_did_not_come_is_not_waited_for_again_for_a_while() {
        let again = |turns: &mut Turns, now| {
            turns.note_release(now, 0);
            spend_turn(turns, now);
            turns.end(now);
            let mut all = 0..9;
            all.find(|messages| turns.stands_back(*messages, now).is_none())
        };
        let mut turns = Turns::default();
        turns.note_others(3);
        for now in [0, 20, 40] {
            assert_eq!(again(&mut turns, at(now)), Some(4));
            turns.begin(3, 0, at(now + 10));
        }
        for now in [60, 80, 250_040] {
            assert_eq!(again(&mut turns, at(now)), Some(3), "one does not come");
            turns.begin(3, 0, at(now + 5));
        }
        assert_eq!(again(&mut turns, at(250_050)), Some(4), "a while later");
        turns.begin(3, 0, at(250_070));
        assert_eq!(again(&mut turns, at(250_080)), Some(3), "still not");
        turns.note_others(2);
        assert_eq!(again(&mut turns, at(250_090)), Some(3), "others listen");
        turns.begin(3, 0, at(250_100));
        assert_eq!(again(&mut turns, at(250_110)), Some(3), "all have come");
    }

    #[test]
    fn who_comes_is_waited_for_again() {
        let turn = |turns: &mut Turns, now, messages| {
            turns.note_release(now, messages);
            spend_turn(turns, now);
            turns.end(now);
            let is_waited_for = turns.stands_back(messages, now).is_some();
            turns.begin(messages + 1, 0, now);
            is_waited_for
        };
        let mut turns = Turns::default();
        turns.note_others(1);
        for messages in 0..3 {
            assert!(turn(&mut turns, at(messages * 20), messages));
        }
        assert!(!turn(&mut turns, at(60), 3), "it does not come");
        assert!(!turn(&mut turns, at(80), 4), "its own message alone");
        assert!(turn(&mut turns, at(100), 6), "it came");
        for messages in 7..9 {
            assert!(turn(&mut turns, at(messages * 20), messages));
        }
        assert!(!turn(&mut turns, at(200), 9), "nor does it now");
        turns.seen_elsewhere();
        assert!(turn(&mut turns, at(220), 10), "it has it");
        // Of two the one that comes says nothing of the other.
        turns.note_others(2);
        for round in 0..3 {
            turns.note_release(at(320 + round), 20 + 2 * round);
            spend_turn(&mut turns, at(320 + round));
            turns.end(at(320 + round));
            turns.begin(22 + 2 * round, 0, at(320 + round));
        }
        turns.note_release(at(140), 14);
        spend_turn(&mut turns, at(140));
        turns.end(at(140));
        assert_eq!(
            turns.stands_back(16, at(140)),
            None,
            "one is not waited for"
        );
    }

    #[test]
    fn turns_are_not_in_a_row_if_others_could_ask_between_them() {
        let mut turns = Turns::default();
        turns.note_others(1);
        turns.begin(0, 16, at(0));
        let mut over = (0..40).map(|turn| {
            turns.note_release(at(turn * 100), 0);
            turns.count_turn(at(turn * 100 + 50))
        });
        assert_eq!(over.position(|is_over| is_over), Some(16));
        // Just in time for that, and just not: in a row they are over after 5 ms.
        for (gap, last) in [(2_000, Some(3)), (2_001, None)] {
            let mut turns = Turns::default();
            turns.note_others(1);
            let mut over = (0..40).map(|turn| {
                turns.note_release(at(turn * 2_100), 0);
                turns.count_turn(at(turn * 2_100 + gap))
            });
            assert_eq!(over.position(|is_over| is_over), last, "{gap}");
        }
    }

    #[test]
    fn a_trip_is_the_least_of_late() {
        let mut turns = Turns::default();
        for (took, known) in [(40, 40), (56, 42), (10, 10)] {
            turns.note_trip(Duration::from_millis(took));
            assert_eq!(turns.trip, Duration::from_millis(known));
        }
    }
}
