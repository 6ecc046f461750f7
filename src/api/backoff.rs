//! Pauses of a waiter without a subscription. Pure.

use std::time::Duration;

use crate::api::error::{Error, Result};

/// The shortest first pause. A waiter with a shorter one would hardly pause at all.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Pauses of a waiter without a subscription, between two attempts; for [`polled`](crate::ReentrantLock::polled).
///
/// The first pause is doubled with each attempt, up to the longest. A random part of each is left out, by default up to
/// a quarter. A waiter asks at least once in a sixth of the client's lease (50 ms to 1 s), even if its pauses are
/// longer. A [`Duration`] converts into a back-off with pauses of that length.
///
/// ```
/// use std::time::Duration;
/// use lockset::Backoff;
///
/// let backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(250)).jitter(50);
/// let steady = Backoff::from(Duration::from_millis(20));
/// # drop((backoff, steady));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    jitter: u8,
}

impl Backoff {
    /// Begins with a pause of `first`, at least 1 ms, and doubles it up to `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        let (max, jitter) = (max.max(first), 25);
        Self { first, max, jitter }
    }

    /// Sets the random part of each pause, in percent: 0 to 100. Default: 25. It spreads waiters that began together.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter = percent.min(100);
        self
    }

    /// Returns the pause after `before` others. `chance` is from 0 to 1.
    pub(crate) fn pause(&self, before: u32, chance: f64) -> Duration {
        let doubled = 2_u32.checked_pow(before).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(doubled).min(self.max);
        let part = f64::from(self.jitter) / 100.0 * chance;
        longest.mul_f64(1.0 - part).max(PAUSE_MIN)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.first >= PAUSE_MIN {
            return Ok(());
        }
        let first = self.first;
        let message = format!("a first pause of {first:?} cannot work; use at least {PAUSE_MIN:?}");
        Err(Error::invalid("polled", message))
    }
}

/// Redisson's back-off for spin locks: from 1 ms to 128 ms.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(PAUSE_MIN, Duration::from_millis(128))
    }
}

impl From<Duration> for Backoff {
    fn from(pause: Duration) -> Self {
        Self::new(pause, pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let ms = Duration::from_millis;
        let backoff = Backoff::default();
        let pauses = [0, 1, 2, 7, 8, 31, 32, u32::MAX].map(|before| backoff.pause(before, 0.0));
        assert_eq!(pauses, [1, 2, 4, 128, 128, 128, 128, 128].map(ms));
        let steady = Backoff::from(ms(20));
        assert_eq!([0, 9].map(|before| steady.pause(before, 1.0)), [ms(15); 2]);
        assert_eq!(steady.jitter(200).pause(3, 0.5), ms(10));
        assert_eq!(steady.jitter(100).pause(3, 1.0), PAUSE_MIN);
        assert_eq!(steady.jitter(0).pause(3, 1.0), ms(20));
    }

    #[test]
    fn one_that_never_pauses_is_refused() {
        assert!(
            Backoff::from(Duration::ZERO)
                .check()
                .unwrap_err()
                .is_invalid()
        );
        assert!(Backoff::new(PAUSE_MIN, Duration::ZERO).check().is_ok());
        assert!(Backoff::from(Duration::MAX).check().is_ok());
    }
}
