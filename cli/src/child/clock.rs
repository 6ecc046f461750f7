//! The clock that runner and supervisor share, and the times of the request to end and of the kill. Pure, but
//! for the clock itself.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that all processes of a machine share. On Linux and macOS it goes on while the machine is
/// suspended, like the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    pub(super) fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let time = clock_gettime(ClockId::Boottime);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Self(seconds * 1_000_000_000 + nanos)
    }

    pub(super) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    pub(super) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    pub(super) fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The times at which the command gets SIGTERM and SIGKILL, unless the lock is renewed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Until {
    pub(super) terminate: Moment,
    pub(super) kill: Moment,
}

/// The action that is due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Nothing,
    Terminate,
    Kill,
}

impl Until {
    /// For a lock that is held for `remaining` from now.
    pub(super) fn of(now: Moment, remaining: Duration, grace: Duration, margin: Duration) -> Self {
        let end = now.after(remaining);
        let kill = end.before(margin);
        Self {
            terminate: end.before(grace).min(kill),
            kill,
        }
    }

    pub(super) fn due(self, now: Moment) -> Due {
        if now >= self.kill {
            Due::Kill
        } else if now >= self.terminate {
            Due::Terminate
        } else {
            Due::Nothing
        }
    }

    /// The time until the next action is due.
    pub(super) fn pause(self, now: Moment) -> Duration {
        let next = match self.due(now) {
            Due::Nothing => self.terminate,
            Due::Terminate => self.kill,
            Due::Kill => return Duration::MAX,
        };
        now.until(next)
    }

    /// Whether `self` is enough later that the supervisor needs to know.
    pub(super) fn is_news_after(self, told: Self) -> bool {
        self.kill.0.abs_diff(told.kill.0) > nanos(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_command_is_asked_to_end_before_it_is_made_to_and_both_before_the_lock_ends() {
        let until = Until::of(Moment(100 * S), seconds(30), seconds(5), seconds(1));
        assert_eq!(until.terminate, Moment(125 * S));
        assert_eq!(until.kill, Moment(129 * S));
        for (at, due, pause) in [
            (100, Due::Nothing, 25),
            (124, Due::Nothing, 1),
            (125, Due::Terminate, 4),
            (128, Due::Terminate, 1),
        ] {
            let now = Moment(at * S);
            assert_eq!((until.due(now), until.pause(now)), (due, seconds(pause)));
        }
        assert_eq!(until.due(Moment(129 * S)), Due::Kill);
        assert_eq!(until.pause(Moment(500 * S)), Duration::MAX);
    }

    #[test]
    fn without_grace_there_is_only_the_kill() {
        let until = Until::of(Moment(0), seconds(30), Duration::ZERO, seconds(1));
        assert_eq!(until.terminate, until.kill);
        assert_eq!(until.due(Moment(29 * S)), Due::Kill);
    }

    #[test]
    fn a_lock_that_is_lost_is_due_at_once() {
        let now = Moment(7 * S);
        let until = Until::of(now, Duration::ZERO, seconds(5), seconds(1));
        assert_eq!(until.due(now), Due::Kill);
    }
}
