//! The back-off after a round without a majority: a pure function of the round's length and of chance.
//!
//! If a round has no winner, all its contenders release their grants, and chance alone decides which of them asks
//! first. So the pause is taken from a range that starts at a few times the length of a round, and doubles: among any
//! number of contenders, one soon has a round to itself.
//!
//! The first part of a pause ignores messages, because the releases after a round are published to all listeners, this
//! client included. If a round that followed a message has no majority, that part grows, so that contenders do not keep
//! waking each other.

use std::time::Duration;

/// The first range, in rounds.
const ROUNDS: u32 = 3;
const FIRST_MIN: Duration = Duration::from_millis(2);
const MAX: Duration = Duration::from_millis(200);

/// An expired key is gone a little after its last millisecond.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// A range that doubles up to a bound.
#[derive(Debug, Default)]
struct Range(Option<Duration>);

/// The ranges of both parts of a pause.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    ignoring: Range,
    total: Range,
}

/// The time to stay away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// The first part, which ignores messages.
    pub(super) ignoring: Duration,
    /// The whole pause, unless a message ends it after the first part.
    pub(super) total: Duration,
}

impl Range {
    fn next(&mut self, round: Duration) -> Duration {
        let range = match self.0 {
            None => (round * ROUNDS).max(FIRST_MIN),
            Some(range) => range * 2,
        };
        let range = range.min(MAX);
        self.0 = Some(range);
        range
    }
}

impl Backoff {
    /// Returns the pause after a round that took `round`. `was_notified` says whether a message led to that round.
    /// `remaining` is the shortest lease in the way; the pause does not outlast it. `chances` are from 0 to 1.
    pub(super) fn pause(
        &mut self,
        round: Duration,
        was_notified: bool,
        remaining: Option<Duration>,
        chances: [f64; 2],
    ) -> Pause {
        if !was_notified {
            self.ignoring = Range::default();
        }
        let [ignoring, total] = chances;
        let ignoring = self.ignoring.next(round).mul_f64(ignoring);
        let total = self.total.next(round).mul_f64(total).max(ignoring);
        let end = remaining.map_or(MAX, |remaining| remaining + EXPIRY_SLACK);
        Pause {
            ignoring: ignoring.min(end),
            total: total.min(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: [f64; 2] = [1.0, 1.0];

    #[test]
    fn the_range_starts_at_a_few_rounds_and_doubles_up_to_a_bound() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let mut total = |chances| backoff.pause(ms(10), false, None, chances).total;
        let totals: Vec<_> = (0..6).map(|_| total(ALWAYS)).collect();
        assert_eq!(totals, [30, 60, 120, 200, 200, 200].map(ms));
        assert_eq!(total([0.0, 0.25]), ms(50));
        let least = Backoff::default().pause(ms(0), false, None, ALWAYS);
        assert_eq!(least.total, FIRST_MIN);
    }

    #[test]
    fn messages_in_vain_are_ignored_for_longer() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let mut ignoring =
            |was_notified| backoff.pause(ms(10), was_notified, None, ALWAYS).ignoring;
        let ignored = [false, true, true, true, true, false, true].map(&mut ignoring);
        assert_eq!(ignored, [30, 60, 120, 200, 200, 30, 60].map(ms));
    }

    #[test]
    fn the_end_of_a_lease_is_not_slept_through() {
        let ms = Duration::from_millis;
        let pause = Backoff::default().pause(ms(10), true, Some(ms(4)), ALWAYS);
        assert_eq!((pause.ignoring, pause.total), (ms(5), ms(5)));
    }
}
