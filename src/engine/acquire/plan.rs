//! Decides what a waiter does after a refusal: a pure function of the answer and the time.

use std::time::Duration;

use crate::engine::clock::Tick;

/// The server removes an expired key shortly after its last millisecond.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// The next step after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask again at a hint, or at this time at the latest.
    WaitUntil(Tick),
    /// The deadline has passed, and the refused attempt was the last.
    GiveUp,
}

/// Plans the next attempt after a refusal.
///
/// `remaining` is the rest of the holder's lease, or `None` if it is unknown. `poll_cap` is the longest time without
/// asking. There is always a timer, so progress never depends on a wake-up.
pub(crate) fn next(
    now: Tick,
    deadline: Option<Tick>,
    remaining: Option<Duration>,
    poll_cap: Duration,
) -> Next {
    if deadline.is_some_and(|deadline| now >= deadline) {
        return Next::GiveUp;
    }
    let rest = remaining.map_or(poll_cap, |remaining| {
        (remaining + EXPIRY_SLACK).min(poll_cap)
    });
    let at = now.after(rest);
    Next::WaitUntil(deadline.map_or(at, |deadline| deadline.min(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    #[test]
    fn the_wait_is_bounded_by_lease_cap_and_deadline() {
        let ms = Duration::from_millis;
        for (remaining, deadline, expected) in [
            (Some(ms(30_000)), None, at(2_000)),
            (Some(ms(40)), None, at(1_041)),
            (Some(ms(0)), None, at(1_001)),
            (None, None, at(2_000)),
            (Some(ms(30_000)), Some(at(1_500)), at(1_500)),
            (Some(ms(40)), Some(at(9_000)), at(1_041)),
        ] {
            assert_eq!(
                next(at(1_000), deadline, remaining, CAP),
                Next::WaitUntil(expected)
            );
        }
    }

    #[test]
    fn a_refusal_at_the_deadline_is_the_end() {
        assert_eq!(next(at(5), Some(at(5)), None, CAP), Next::GiveUp);
        assert_eq!(next(at(6), Some(at(5)), None, CAP), Next::GiveUp);
    }
}
