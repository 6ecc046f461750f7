//! How long to stay away after a round in vain: a function of what it was like and of chance.
//!
//! Whoever lost has given everything back, and so have those it lost against, if nobody won. Chance
//! alone decides who comes first, so the range it is taken from starts at a few times what a round takes
//! and doubles: among any number of contenders, one soon has a round to itself.

use std::time::Duration;

const ROUNDS: u32 = 3;
const FIRST_MIN: Duration = Duration::from_millis(2);
const MAX: Duration = Duration::from_millis(200);

/// An expired key is gone a little after its last millisecond.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pace {
    range: Option<Duration>,
}

impl Pace {
    /// After a round that took `round`, with `chance` from 0 to 1; not past the end of the shortest
    /// lease in the way.
    pub(super) fn rest(
        &mut self,
        round: Duration,
        remaining: Option<Duration>,
        chance: f64,
    ) -> Duration {
        let range = match self.range {
            None => (round * ROUNDS).max(FIRST_MIN),
            Some(range) => range * 2,
        };
        let range = range.min(MAX);
        self.range = Some(range);
        let rest = range.mul_f64(chance);
        remaining.map_or(rest, |remaining| rest.min(remaining + EXPIRY_SLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_starts_at_a_few_rounds_and_doubles_up_to_a_bound() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        let rests: Vec<_> = (0..6).map(|_| pace.rest(ms(10), None, 1.0)).collect();
        assert_eq!(rests, [ms(30), ms(60), ms(120), ms(200), ms(200), ms(200)]);
        assert_eq!(pace.rest(ms(10), None, 0.25), ms(50));
        assert_eq!(pace.rest(ms(10), Some(ms(4)), 1.0), ms(5));
        assert_eq!(Pace::default().rest(ms(0), None, 1.0), FIRST_MIN);
    }
}
