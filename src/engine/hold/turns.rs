//! The turns of the clients that want one lock: for how long this client keeps the lock, and when it asks again. Pure.
//!
//! In the turn of a client its tasks hand the lock off to each other, a limited number of times and for a limited time.
//! Then the client backs off until messages show that each of the other listening clients has released the lock once.
//! All clients that want a lock therefore get it in turn, and few attempts after a message fail. The messages that
//! count report the end of a hold that kept out all others, or of a wait for one. Invariant: a client backs off for a
//! limited time, and only for others that listen.

use std::time::Duration;

use crate::engine::clock::Tick;
use crate::engine::{Seldom, Usual};

/// The most local hand-offs in a row. A client cannot know how many tasks wait elsewhere.
pub(crate) const HANDOFFS_MAX: u32 = 16;

/// If many others wait, each task that waits here when a turn begins gets the lock once in that turn. If fewer tasks
/// than this wait here, they may get it more often, because a turn costs two round trips.
pub(super) const HANDOFFS_ONCE_MIN: u32 = 7;

/// The longest time for hand-offs in a row near the server.
const HANDOFFS_TIME_MAX: Duration = Duration::from_millis(5);

/// Far from the server, the limit is one round trip instead, but never longer than this.
const HANDOFFS_TRIP_MAX: Duration = Duration::from_millis(50);

/// The hand-offs in a row of one lock within this client: how many, and since when.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct HandoffBudget {
    spent: u32,
    since: Option<Tick>,
}

impl HandoffBudget {
    /// An unspent budget.
    pub(super) const WHOLE: Self = Self {
        spent: 0,
        since: None,
    };

    /// Spends a hand-off, if fewer than `most` are spent and the time is not over. Others need one round trip, `trip`,
    /// to get the lock, so hand-offs may go on for that long.
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
            *self = Self::WHOLE;
        }
        is_last
    }

    /// The time since the first hand-off or turn was spent.
    fn spent_for(&self, now: Tick) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.until(now))
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

/// The longest time that a client that backs off allows each of the others, even if it held the lock for longer itself.
const OWN_TIME_MAX: Duration = Duration::from_secs(1);

/// The shortest time that a client that backs off waits for the next message, before it asks anyway.
const SILENCE_MIN: Duration = Duration::from_millis(2);

/// Between two messages, another client receives the first, asks, is answered and releases: two round trips, plus its
/// work under the lock. The third is for clients that are further away.
const TRIPS_BETWEEN_MESSAGES: u32 = 3;

/// The longest trip that is noted. A longer one is no distance: the call was not polled, or the server stood still.
const TRIP_MAX: Duration = Duration::from_millis(250);

/// A downgrade, whose deferral keeps out readers elsewhere, is deferred for no longer than this, even where a turn
/// lasts longer because the server is far away.
const DEFERRED_MAX: Duration = Duration::from_millis(5);

/// If at least this many others wait, the next turn is far away, so no task gets the lock twice in this turn.
const OTHERS_MANY: u64 = 4;

/// The most others that a client waits for when it backs off.
const OTHERS_MAX: u32 = 64;

/// Among readers, a client that has had its turn asks this much later than the others can. It is the shortest pause of
/// a timer.
const AFTER_OTHERS: Duration = Duration::from_millis(1);

/// Each message lengthens its pause, up to this many times.
const LATER_MAX: u32 = 5;

/// A client whose last release is this long ago was idle.
const IDLE_AFTER: Duration = Duration::from_millis(250);

/// For this long after the last sign of readers, more readers are expected.
const READERS_LATELY: Duration = Duration::from_millis(250);

/// Other clients that listened, but did not take the free lock this many times in a row, are left out for
/// [`ABSENT_FOR`]: their processes may be stopped.
const MISSED_MAX: u32 = 3;
const ABSENT_FOR: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Turns {
    budget: HandoffBudget,
    /// The default before the first release of the lock, or the first answer to a waiter.
    known: Seldom<Known>,
}

/// The facts that a client knows about its own turns and the other clients.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Known {
    /// How many tasks waited here when the turn began, besides the task that got the lock.
    waiting: u32,
    /// How many connections of other clients received the message of the last release.
    others: u64,
    released: Option<Released>,
    /// Boxed: most clients never back off.
    back: Option<Box<BackOff>>,
    absent: Absent,
    /// The smoothed time that the server takes to answer the waiters of this client.
    trip: Duration,
    /// How many signs of readers there were at the last check, and until when more readers are expected.
    reads: u64,
    readers_until: Tick,
}

impl Usual for Known {
    const USUAL: &'static Self = &Self {
        waiting: 0,
        others: 0,
        released: None,
        back: None,
        absent: Absent::NONE,
        trip: Duration::ZERO,
        reads: 0,
        readers_until: Tick::ZERO,
    };
}

/// The last release of this client.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Released {
    /// When the release was decided on.
    at: Tick,
    /// How many messages had come by that time.
    messages: u64,
    /// Among readers: when the turn of this release began, and the number of messages after which the others have had
    /// theirs.
    turn_began: Tick,
    next_turn: u64,
}

/// Other clients that listen, but do not take the lock.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Absent {
    count: u64,
    /// How many times in a row this number of them did not come.
    missed: u32,
    /// They are not waited for before this time.
    until: Tick,
}

/// The back-off of a client that has had its turn.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct BackOff {
    /// The next turn comes when this many messages have come in total: one for its own release, and one for each of the
    /// others.
    messages: u64,
    /// The next turn comes at this time at the latest.
    until: Tick,
    /// The next turn also comes this long after the last message.
    silence: Duration,
    /// How many of the others it does not wait for.
    absent: u64,
    /// Among readers: none of the others has had its turn unless more messages than this have come.
    nobody_until: Option<u64>,
}

impl Absent {
    const NONE: Self = Self {
        count: 0,
        missed: 0,
        until: Tick::ZERO,
    };

    fn count_at(&self, now: Tick) -> u64 {
        if now < self.until { self.count } else { 0 }
    }

    /// Notes that this number of others did not come this time.
    fn note(&mut self, count: u64, now: Tick) {
        if count != self.count {
            *self = Self {
                count,
                ..Self::NONE
            };
        }
        self.missed = self.missed.saturating_add(1);
        if self.missed >= MISSED_MAX && now >= self.until {
            self.until = now.after(ABSENT_FOR);
        }
    }
}

impl Turns {
    pub(crate) fn try_spend_handoff(&mut self, now: Tick) -> bool {
        self.budget
            .try_spend(now, self.known.trip, self.handoffs_max())
    }

    fn handoffs_max(&self) -> u32 {
        let all_once = HANDOFFS_ONCE_MIN..=HANDOFFS_MAX;
        if self.known.others >= OTHERS_MANY && all_once.contains(&self.known.waiting) {
            self.known.waiting
        } else {
            HANDOFFS_MAX
        }
    }

    /// Spends a hand-off of a writer that passes its hold on to readers of this client unchanged. Returns until when
    /// the downgrade is deferred. `None` if no hand-off is left, or while others listen.
    pub(crate) fn try_defer_downgrade(&mut self, now: Tick) -> Option<Tick> {
        let is_left = self.known.others == 0 && self.try_spend_handoff(now);
        let end = self.budget.end(self.known.trip).filter(|_| is_left)?;
        Some(end.min(now.after(DEFERRED_MAX)))
    }

    /// Notes that a release was decided on, after this number of messages.
    pub(super) fn note_release(&mut self, now: Tick, messages: u64) {
        // One message belongs to the previous release. A further message means that another client came, even if this
        // client did not wait for any.
        let have_come = |released: Released| messages > released.messages + 1;
        if self.known.released.is_some_and(have_come) {
            self.note_others_came();
        }
        let in_turn = self
            .known
            .released
            .filter(|released| messages < released.next_turn);
        let next_turn = messages + 1 + self.others_at(now);
        self.known.change().released = Some(Released {
            at: now,
            messages,
            turn_began: in_turn.map_or(now, |released| released.turn_began),
            next_turn,
        });
    }

    /// Notes how many connections of others received the message of the release.
    pub(super) fn note_others(&mut self, others: u64) {
        if self.known.others != others {
            let known = self.known.change();
            (known.others, known.absent) = (others, Absent::NONE);
        }
    }

    /// Notes how long a waiter of this client waited for an answer.
    pub(crate) fn note_trip(&mut self, trip: Duration) {
        let trip = trip.min(TRIP_MAX);
        let known = &mut self.known.change().trip;
        let before = if known.is_zero() { trip } else { *known };
        // Falls at once and rises slowly, because a longer trip may include time in a queue.
        *known = trip.min((before * 7 + trip) / 8);
    }

    /// Counts a turn. True if it was the last in a row and others listen, so that this client has to back off.
    fn count_turn(&mut self, now: Tick) -> bool {
        let could_ask = |released: Released| released.at.until(now) > self.time_to_ask();
        if self.known.released.is_some_and(could_ask) {
            // Others have had the time to ask since the last release, so this turn is not in a row with it.
            self.budget = HandoffBudget::WHOLE;
        }
        let most = self.handoffs_max();
        self.budget.spend_turn(now, self.known.trip, most) && self.known.others > 0
    }

    /// Counts a turn, if no others are known to listen and this client does not back off.
    pub(super) fn count_alone(&mut self, now: Tick) -> bool {
        let is_alone = self.known.others == 0 && !self.is_back();
        if is_alone {
            let _others_would_follow = self.count_turn(now);
        }
        is_alone
    }

    /// Counts a turn. If it was the last in a row and others listen, this client backs off. Returns whether it backs
    /// off now, for this turn or an earlier turn.
    pub(crate) fn end(&mut self, now: Tick) -> bool {
        let budget = self.budget.clone();
        if self.count_turn(now) {
            self.back_off(&budget, now);
        }
        self.is_back()
    }

    /// Whether readers have had the lock lately. `reads` is the total number of signs of readers.
    pub(super) fn has_had_readers(&mut self, reads: u64, now: Tick) -> bool {
        if self.known.reads != reads {
            let known = self.known.change();
            (known.reads, known.readers_until) = (reads, now.after(READERS_LATELY));
        }
        now < self.known.readers_until
    }

    /// Ends a turn early, because it has ended at another server of the same Redlock.
    pub(crate) fn end_early(&mut self, now: Tick) {
        let budget = std::mem::take(&mut self.budget);
        self.back_off(&budget, now);
    }

    /// As [`end`](Self::end), for a writer among readers. Readers keep the writer out like writers of others, so a
    /// refusal does not show that the others had their turn. Until they had, this client asks after them at each
    /// attempt, but it does not wait for them to finish, because its own readers wait behind its writer. `jitter`, from
    /// 0 to 1, lengthens the pause, so that clients get out of step. A client that was idle, and was not refused
    /// lately, does not pause.
    pub(super) fn end_among_readers(
        &mut self,
        messages: u64,
        was_refused: bool,
        jitter: f64,
        now: Tick,
    ) -> bool {
        // Counted to limit hand-offs, as for other kinds. Here the messages, not this count, decide on the pause.
        let _is_last = self.count_turn(now);
        let others = self.others_at(now);
        let trip = self.known.trip;
        let is_owing = |released: &Released| {
            let is_over = released.turn_began.until(now) > time_max(trip);
            let is_wanted = was_refused || released.at.until(now) <= IDLE_AFTER;
            is_over && messages < released.next_turn && is_wanted && others > 0
        };
        // In one trip the others get the message of a release of this client and ask.
        let later = (AFTER_OTHERS + trip).mul_f64(1.0 + jitter);
        let known = self.known.change();
        known.back = known.released.filter(is_owing).map(|released| {
            Box::new(BackOff {
                messages: released.next_turn,
                until: now.after(later * LATER_MAX),
                silence: later,
                absent: known.absent.count_at(now),
                nobody_until: Some(released.messages + 1),
            })
        });
        self.is_back()
    }

    /// How many others this client waits for.
    fn others_at(&self, now: Tick) -> u64 {
        let present = self
            .known
            .others
            .saturating_sub(self.known.absent.count_at(now));
        present.min(u64::from(OTHERS_MAX))
    }

    /// Backs off after the turn that spent this budget.
    fn back_off(&mut self, budget: &HandoffBudget, now: Tick) {
        let own = budget.spent_for(now).min(OWN_TIME_MAX);
        // Limited to a plausible length of a turn, because one hold may have lasted for long.
        let own_turn = own.min(time_max(self.known.trip) * 2);
        let others = self.others_at(now);
        if others == 0 {
            return;
        }
        let all = u32::try_from(others + 1).unwrap_or(OTHERS_MAX);
        let asking = self.time_to_ask();
        let known = self.known.change();
        known.back = Some(Box::new(BackOff {
            messages: known.released.map_or(0, |released| released.messages) + 1 + others,
            // The others may need the lock for as long as this client did.
            until: now.after((asking + own) * all),
            // Without the time of a long hold: the lock may be free and unwanted, and only the server knows that.
            silence: asking + own_turn,
            absent: known.absent.count_at(now),
            nobody_until: None,
        }));
    }

    /// Whether this client may have to back off.
    pub(crate) fn is_back(&self) -> bool {
        self.known.back.is_some()
    }

    /// Returns until when to wait for the next message, if this client still has to back off after this number of
    /// messages. The end of each turn of the others sends one.
    pub(super) fn back_off_end(&self, messages: u64, now: Tick) -> Option<Tick> {
        let back = self.known.back.as_deref()?;
        if messages >= back.messages || now >= back.until {
            return None;
        }
        Some(now.after(back.silence).min(back.until))
    }

    /// How long others may take to ask for the lock after the message of a release.
    fn time_to_ask(&self) -> Duration {
        SILENCE_MIN.max(self.known.trip * TRIPS_BETWEEN_MESSAGES)
    }

    /// Begins a turn, after this number of messages and with this number of other waiting tasks. If this client backed
    /// off for others that have not come, they count as absent this time.
    pub(super) fn begin(&mut self, messages: u64, waiting: usize, now: Tick) {
        let others = self.others_at(now);
        let known = self.known.change();
        known.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        if let Some(back) = known.back.take() {
            let missing = match back.nobody_until {
                None => back.messages.saturating_sub(messages),
                Some(own) if messages <= own => others,
                Some(_) => 0,
            };
            known.absent.note(back.absent + missing, now);
        }
    }

    /// Notes that no task of this client waits. If no other client listens either, the next turn is not in a row with
    /// the last one.
    pub(super) fn nobody_waits_here(&mut self) {
        if self.known.others == 0 {
            self.budget = HandoffBudget::WHOLE;
        }
    }

    /// Notes that others have the lock, according to the server. They had their turn, unless they may be readers.
    pub(crate) fn seen_elsewhere(&mut self, among_readers: bool) {
        // The next turn is not in a row with the last one.
        self.budget = HandoffBudget::WHOLE;
        if !among_readers {
            self.note_others_came();
        }
    }

    /// Notes that another client came. If all others were left out as absent, that was wrong.
    fn note_others_came(&mut self) {
        let known = self.known.change();
        if known.absent.count >= known.others {
            known.absent = Absent::NONE;
        }
    }
}

/// The server removes an expired key shortly after its last millisecond.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// Returns when to ask again after a refusal, unless there is a hint before. `None` if the deadline has passed, so that
/// the refused attempt was the last.
///
/// `remaining` is the rest of the holder's lease, or `None` if it is unknown. `poll_cap` is the longest time without an
/// attempt. There is always a timer, so progress never depends on a wake-up.
pub(crate) fn next_attempt(
    now: Tick,
    deadline: Tick,
    remaining: Option<Duration>,
    poll_cap: Duration,
) -> Option<Tick> {
    if now >= deadline {
        return None;
    }
    let rest = remaining.map_or(poll_cap, |remaining| {
        (remaining + EXPIRY_SLACK).min(poll_cap)
    });
    Some(now.after(rest).min(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Spends all hand-offs of one turn.
    fn spend_turn(turns: &mut Turns, now: Tick) {
        let has_ended = (0..100).any(|_| !turns.try_spend_handoff(now));
        assert!(has_ended, "a turn has a bound");
    }

    /// A client whose turn is over, with this number of listening others, after four messages.
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
    fn it_backs_off_until_each_of_the_others_has_released() {
        let turns = after_a_turn(Duration::ZERO, 3);
        assert!(turns.is_back());
        for messages in 4..8 {
            assert_eq!(turns.back_off_end(messages, at(10)), Some(at(2_010)));
        }
        assert_eq!(turns.back_off_end(8, at(10)), None, "its own, and three");
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
        assert_eq!(turns.try_defer_downgrade(at(0)), None, "at most 16");
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
    fn without_other_subscribers_no_client_backs_off() {
        let mut turns = after_a_turn(Duration::ZERO, 0);
        assert_eq!(turns.back_off_end(0, at(0)), None);
        let is_over = (0..40).any(|_| turns.count_turn(at(0)));
        assert!(!is_over, "a turn ends only for the sake of others");
    }

    /// Releases of tasks that do not queue may wake it again and again.
    #[test]
    fn after_a_long_hold_it_does_not_back_off_for_as_long() {
        let mut turns = Turns::default();
        turns.note_others(1);
        assert!(turns.try_spend_handoff(at(0)));
        let now = at(3_600_000_000);
        turns.note_release(now, 0);
        turns.end(now);
        let end = now.after((SILENCE_MIN + OWN_TIME_MAX) * 2);
        assert!(
            turns
                .back_off_end(0, end.before(Duration::from_millis(1)))
                .is_some()
        );
        assert_eq!(turns.back_off_end(0, end), None);
    }

    /// As far as this client can know, no task has wanted the lock for a while.
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
        assert_eq!(turns.back_off_end(5, at(7_000)), Some(at(8_000)));
        assert_eq!(turns.back_off_end(5, at(8_000)), None);
        turns.begin(5, 0, at(6_000));
        assert!(!turns.is_back());
        assert_eq!(turns.back_off_end(5, at(0)), None);
    }

    #[test]
    fn far_from_the_server_it_waits_for_longer() {
        let turns = after_a_turn(Duration::from_millis(40), 1);
        assert_eq!(turns.back_off_end(5, at(0)), Some(at(120_000)));
    }

    #[test]
    fn it_gives_the_others_as_long_as_it_took_itself() {
        let mut turns = Turns::default();
        turns.note_others(2);
        spend_turn(&mut turns, at(0));
        turns.end(at(3_000));
        assert_eq!(turns.back_off_end(0, at(4_000)), Some(at(4_000 + 5_000)));
    }

    /// The others may have left, or be frozen, while the lock is free. If they have the lock, the server refuses.
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
            assert_eq!(turns.back_off_end(0, now), Some(until));
        }
    }

    #[test]
    fn who_did_not_come_is_not_waited_for_again_for_a_while() {
        let again = |turns: &mut Turns, now| {
            turns.note_release(now, 0);
            spend_turn(turns, now);
            turns.end(now);
            let mut all = 0..9;
            all.find(|messages| turns.back_off_end(*messages, now).is_none())
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
            let is_waited_for = turns.back_off_end(messages, now).is_some();
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
        turns.seen_elsewhere(false);
        assert!(turn(&mut turns, at(220), 10), "it has it");
        // If one of two others comes, that shows nothing about the other.
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
            turns.back_off_end(16, at(140)),
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
        // The first gap is just short enough for turns in a row, which are over after 5 ms. The second is just too
        // long.
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

    /// A client that has released a write hold at each of these times, without any message of others.
    fn among_readers(released: &[u64], others: u64) -> Turns {
        let mut turns = Turns::default();
        turns.note_others(others);
        for (messages, at_micros) in (0..).zip(released) {
            turns.note_release(at(*at_micros), messages);
        }
        turns
    }

    #[test]
    fn among_readers_it_comes_after_the_others_until_each_has_had_its_turn() {
        let mut turns = among_readers(&[0, 1_000, 2_000], 2);
        assert!(
            !turns.end_among_readers(3, true, 0.0, at(5_000)),
            "within its turn"
        );
        assert!(turns.end_among_readers(3, true, 0.0, at(5_001)));
        assert_eq!(turns.back_off_end(3, at(5_001)), Some(at(6_001)));
        assert_eq!(
            turns.back_off_end(4, at(9_500)),
            Some(at(10_001)),
            "another message"
        );
        assert_eq!(turns.back_off_end(4, at(10_001)), None);
        assert!(
            turns.end_among_readers(4, true, 0.0, at(11_000)),
            "one is missing"
        );
        assert_eq!(turns.back_off_end(5, at(11_500)), None, "both had it");
        assert!(!turns.end_among_readers(5, true, 0.0, at(12_000)));
        turns.note_release(at(13_000), 5);
        assert!(
            !turns.end_among_readers(6, true, 0.0, at(18_000)),
            "its next turn"
        );
        assert!(turns.end_among_readers(6, true, 0.0, at(18_001)));
        assert!(!among_readers(&[0, 1_000], 0).end_among_readers(2, true, 0.0, at(9_000)));
    }

    #[test]
    fn among_readers_hand_offs_are_allowed_again_after_a_turn() {
        let mut turns = Turns::default();
        for (round, now) in (0..3).map(|round| (round, at(round * 1_000))) {
            spend_turn(&mut turns, now);
            assert!(
                !turns.end_among_readers(round, true, 0.0, now),
                "no one listens"
            );
            assert!(turns.try_spend_handoff(now) && turns.try_defer_downgrade(now).is_some());
        }
    }

    #[test]
    fn among_readers_it_waits_for_nobody_after_an_idle_time() {
        let mut turns = among_readers(&[0, 6_000], 1);
        assert!(turns.end_among_readers(2, false, 0.0, at(256_000)));
        assert!(!turns.end_among_readers(2, false, 0.0, at(256_001)));
        assert!(turns.end_among_readers(2, true, 0.0, at(256_001)));
    }

    /// Others that only read listen as well.
    #[test]
    fn among_readers_it_does_not_come_after_others_that_do_not_write() {
        let mut turns = among_readers(&[0, 6_000], 3);
        for turn in 0..3 {
            let (messages, now) = (2 + turn, at(7_000 + turn * 2_000));
            assert!(turns.end_among_readers(messages, true, 0.0, now));
            turns.begin(messages, 0, now);
            // Refusals may come from readers, too.
            turns.seen_elsewhere(true);
            turns.note_release(now, messages);
        }
        turns.note_release(at(100_000), 5);
        assert!(!turns.end_among_readers(6, true, 0.0, at(110_000)));
        turns.note_release(at(262_000), 6);
        assert!(
            turns.end_among_readers(7, true, 0.0, at(268_000)),
            "a while later"
        );
    }

    #[test]
    fn readers_are_expected_for_a_while_after_each_sign_of_them() {
        let mut turns = Turns::default();
        let had_readers = [(0, 0), (1, 1_000), (1, 250_999), (1, 251_000), (2, 300_000)]
            .map(|(reads, micros)| turns.has_had_readers(reads, at(micros)));
        assert_eq!(had_readers, [false, true, true, false, true]);
    }

    #[test]
    fn a_trip_is_the_least_of_late() {
        let mut turns = Turns::default();
        for (took, known) in [(40, 40), (56, 42), (10, 10)] {
            turns.note_trip(Duration::from_millis(took));
            assert_eq!(turns.known.trip, Duration::from_millis(known));
        }
    }

    const CAP: Duration = Duration::from_secs(1);

    fn ms(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    #[test]
    fn the_wait_is_bounded_by_lease_cap_and_deadline() {
        let span = Duration::from_millis;
        for (remaining, deadline, expected) in [
            (Some(span(30_000)), Tick::NEVER, ms(2_000)),
            (Some(span(40)), Tick::NEVER, ms(1_041)),
            (Some(span(0)), Tick::NEVER, ms(1_001)),
            (None, Tick::NEVER, ms(2_000)),
            (Some(span(30_000)), ms(1_500), ms(1_500)),
            (Some(span(40)), ms(9_000), ms(1_041)),
        ] {
            assert_eq!(
                next_attempt(ms(1_000), deadline, remaining, CAP),
                Some(expected)
            );
        }
    }

    #[test]
    fn a_refusal_at_the_deadline_is_the_end() {
        assert_eq!(next_attempt(ms(5), ms(5), None, CAP), None);
        assert_eq!(next_attempt(ms(6), ms(5), None, CAP), None);
    }
}
