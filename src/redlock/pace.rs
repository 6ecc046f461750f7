//! How long to stay away after a round in vain: a function of what it was like and of chance.
//!
//! Whoever lost has given everything back, and so have those it lost against, if nobody won. Chance
//! alone decides who comes first, so the range it is taken from starts at a few times what a round takes
//! and doubles: among any number of contenders, one soon has a round to itself.
//!
//! At first nothing that is heard counts: what is given back after a round is told to everybody who
//! listens, to us too. A round that was made because of such news, and was in vain, makes that time
//! longer, so that contenders do not go on waking each other.

use std::time::Duration;

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
pub(super) struct Pace {
    deaf: Range,
    whole: Range,
}

/// How long to stay away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// Whatever is heard.
    pub(super) deaf: Duration,
    /// If nothing is heard after that.
    pub(super) whole: Duration,
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

impl Pace {
    /// After a round that took `round`, made because something `was_heard` or not; the end of the
    /// shortest lease in the way is not slept through. `chances` are from 0 to 1.
    pub(super) fn pause(
        &mut self,
        round: Duration,
        was_heard: bool,
        remaining: Option<Duration>,
        chances: [f64; 2],
    ) -> Pause {
        if !was_heard {
            self.deaf = Range::default();
        }
        let [deaf, whole] = chances;
        let deaf = self.deaf.next(round).mul_f64(deaf);
        let whole = self.whole.next(round).mul_f64(whole).max(deaf);
        let end = remaining.map_or(MAX, |remaining| remaining + EXPIRY_SLACK);
        Pause {
            deaf: deaf.min(end),
            whole: whole.min(end),
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
        let mut pace = Pace::default();
        let mut whole = |chances| pace.pause(ms(10), false, None, chances).whole;
        let wholes: Vec<_> = (0..6).map(|_| whole(ALWAYS)).collect();
        assert_eq!(wholes, [30, 60, 120, 200, 200, 200].map(ms));
        assert_eq!(whole([0.0, 0.25]), ms(50));
        let least = Pace::default().pause(ms(0), false, None, ALWAYS);
        assert_eq!(least.whole, FIRST_MIN);
    }

    #[test]
    fn news_in_vain_make_it_deaf_for_longer() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        let mut deaf = |was_heard| pace.pause(ms(10), was_heard, None, ALWAYS).deaf;
        let told = [false, true, true, true, true, false, true].map(&mut deaf);
        assert_eq!(told, [30, 60, 120, 200, 200, 30, 60].map(ms));
    }

    #[test]
    fn the_end_of_a_lease_is_not_slept_through() {
        let ms = Duration::from_millis;
        let pause = Pace::default().pause(ms(10), true, Some(ms(4)), ALWAYS);
        assert_eq!((pause.deaf, pause.whole), (ms(5), ms(5)));
    }
}
