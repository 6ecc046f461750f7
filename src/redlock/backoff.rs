//! The back-off after a round without a majority: a pure function of the round's length and of chance.
//!
//! If a round has no winner, all its contenders release their grants, and chance alone decides which of them asks
//! first. So the pause is taken from a range that starts at a few times the length of a round, and doubles: among any
//! number of contenders, one soon has a round to itself.
//!
//! A message ends a pause, but not its first part, because the messages of a release reach all contenders at once. That
//! part grows while rounds split the votes, this call's own among them. A round without any vote disturbed nobody: the
//! lock has a holder, whose release this call may take as soon as it is notified.

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
    least: Range,
    most: Range,
}

/// The time to stay away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// The first part, which no message ends.
    pub(super) least: Duration,
    /// The whole pause, unless a message ends it.
    pub(super) most: Duration,
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
    /// Returns the pause after a round that took `round`. `has_votes` says whether servers voted for this call.
    /// `remaining` is the shortest lease in the way; the pause does not outlast it. `chances` are from 0 to 1.
    pub(super) fn pause(
        &mut self,
        round: Duration,
        has_votes: bool,
        remaining: Option<Duration>,
        chances: [f64; 2],
    ) -> Pause {
        if !has_votes {
            self.least = Range::default();
        }
        let [least, most] = chances;
        let least = self.least.next(round).mul_f64(least);
        let most = self.most.next(round).mul_f64(most).max(least);
        let end = remaining.map_or(MAX, |remaining| remaining + EXPIRY_SLACK);
        Pause {
            least: least.min(end),
            most: most.min(end),
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
        let mut most = |chances| backoff.pause(ms(10), false, None, chances).most;
        let pauses: Vec<_> = (0..6).map(|_| most(ALWAYS)).collect();
        assert_eq!(pauses, [30, 60, 120, 200, 200, 200].map(ms));
        assert_eq!(most([0.0, 0.25]), ms(50));
        let shortest = Backoff::default().pause(ms(0), false, None, ALWAYS);
        assert_eq!(shortest.most, FIRST_MIN);
    }

    #[test]
    fn after_split_votes_no_message_counts_for_longer() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let least = |has_votes| backoff.pause(ms(10), has_votes, None, ALWAYS).least;
        let pauses = [false, true, true, true, true, false, true].map(least);
        assert_eq!(pauses, [30, 60, 120, 200, 200, 30, 60].map(ms));
    }

    #[test]
    fn the_end_of_a_lease_is_not_slept_through() {
        let ms = Duration::from_millis;
        let pause = Backoff::default().pause(ms(10), true, Some(ms(4)), ALWAYS);
        assert_eq!((pause.least, pause.most), (ms(5), ms(5)));
    }
}
