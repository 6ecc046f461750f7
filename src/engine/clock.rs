//! The one clock of the engine.
//!
//! Every deadline is a [`Tick`] of a monotonic clock; no wall clock is read anywhere. On Linux and macOS the clock also
//! counts the time that the machine was suspended, so a lease that ran out during a suspend is lost at the first look.
//! The runtime's timers stand still during a suspend, so tasks that have to notice it read the clock at least every
//! [`LOOK_MAX`]. In tests the clock can follow tokio's paused time, and jump ahead of it as if the machine had been
//! suspended.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::task::unconstrained;

/// The longest time between two readings of the clock by the watchdog task, while the client holds anything. A lease
/// that ended during a suspend is noticed at most this long after the suspend.
pub(crate) const LOOK_MAX: Duration = Duration::from_millis(250);

/// The shortest suspend that counts.
const JUMP_MIN: Duration = Duration::from_millis(20);

/// The tick at the origin of the clocks, which is the start of the machine or of the process: 36 years. A server may
/// have been up since before the origin, so earlier instants need ticks too.
const ORIGIN: Tick = Tick::at(1 << 60);

/// An instant of the engine's clock, in nanoseconds since an arbitrary origin. Stored plus one, so that it is never
/// zero and an `Option` of it needs no extra memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tick(NonZeroU64);

impl Default for Tick {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Tick {
    pub(crate) const ZERO: Self = Self::at(0);
    pub(crate) const NEVER: Self = Self(NonZeroU64::MAX);

    const fn at(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    #[cfg(test)]
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self::at(nanos)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The instant `span` later; saturates at [`Tick::NEVER`].
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The instant `span` earlier; saturates at [`Tick::ZERO`].
    pub(crate) fn before(self, span: Duration) -> Self {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self::at(self.nanos().saturating_sub(span))
    }

    /// Rounds down to a multiple of the largest power of two of nanoseconds that is not above `grain`, so that similar
    /// grains share one grid.
    pub(crate) fn rounded_down(self, grain: Duration) -> Self {
        let grain = u64::try_from(grain.as_nanos()).unwrap_or(u64::MAX);
        match grain.checked_ilog2() {
            Some(bits) => Self::at(self.nanos() >> bits << bits),
            None => self,
        }
    }

    /// The time from `self` to `later`; zero if `later` is not later.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.nanos().saturating_sub(self.nanos()))
    }
}

/// An instant, or the clock to read when an instant is needed.
pub(crate) trait Now: Copy {
    fn tick(self) -> Tick;
}

impl Now for Tick {
    fn tick(self) -> Tick {
        self
    }
}

impl Now for Clock {
    fn tick(self) -> Tick {
        self.now()
    }
}

/// The source of the time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The machine's monotonic clock.
    System,
    /// tokio's clock, which tests can pause and advance. Ticks count from the given instant, at which the clock shows
    /// this many nanoseconds.
    #[cfg(any(test, feature = "testing"))]
    Runtime(tokio::time::Instant, &'static std::sync::atomic::AtomicU64),
}

impl Clock {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_runtime() -> Self {
        // Unit tests count from zero.
        let start = if cfg!(test) { 0 } else { ORIGIN.nanos() };
        Self::Runtime(
            tokio::time::Instant::now(),
            Box::leak(Box::new(start.into())),
        )
    }

    /// Advances the clock without the timers of the runtime.
    #[cfg(test)]
    pub(crate) fn jump(self, span: Duration) {
        let Self::Runtime(_, ahead) = self else {
            return;
        };
        let nanos = u64::try_from(span.as_nanos()).expect("a short time");
        ahead.fetch_add(nanos, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn now(self) -> Tick {
        match self {
            Self::System => system_now(),
            #[cfg(any(test, feature = "testing"))]
            Self::Runtime(origin, ahead) => {
                let ahead = ahead.load(std::sync::atomic::Ordering::Relaxed);
                Tick::at(ahead).after(origin.elapsed())
            }
        }
    }

    /// Sleeps until `at`. The runtime's timers stop while the machine is suspended, so the clock is read again when
    /// they fire; until then a suspend goes unnoticed.
    pub(crate) async fn sleep_until(self, at: Tick) {
        loop {
            // One expression, so that the future of a sleeping task stores only the sleep.
            tokio::time::sleep(match self.now().until(at) {
                Duration::ZERO => return,
                left => left,
            })
            .await;
        }
    }

    /// Drives `work` for at most `limit`; `None` if it did not end in time.
    pub(crate) async fn within<F: Future>(self, limit: Duration, work: F) -> Option<F::Output> {
        let end = self.now().after(limit);
        tokio::select! {
            biased;
            done = work => Some(done),
            // Unconstrained, so that the limit holds even if the work has used up the budget of this poll.
            () = unconstrained(self.sleep_until(end)) => None,
        }
    }
}

/// Compares the clock with the timers of the runtime.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Clock,
    looked: (Tick, tokio::time::Instant),
}

impl Pace {
    pub(crate) fn of(clock: Clock) -> Self {
        let looked = (clock.now(), tokio::time::Instant::now());
        Self { clock, looked }
    }

    /// Whether the timers have stood still since the last call, because the machine was suspended.
    pub(crate) fn has_jumped(&mut self) -> bool {
        let (tick, timer) = self.looked;
        self.looked = (self.clock.now(), tokio::time::Instant::now());
        tick.until(self.looked.0) > self.looked.1.duration_since(timer) + JUMP_MIN
    }
}

/// Reads a clock that continues during a suspend. On macOS this is `CLOCK_MONOTONIC`, which std's `Instant` does not
/// use.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn system_now() -> Tick {
    #[cfg(not(target_vendor = "apple"))]
    use rustix::time::ClockId::Boottime as Continuous;
    #[cfg(target_vendor = "apple")]
    use rustix::time::ClockId::Monotonic as Continuous;
    let now = rustix::time::clock_gettime(Continuous);
    // Both parts are non-negative for a clock since boot.
    let nanos = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    Tick::at(ORIGIN.nanos() + nanos)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn system_now() -> Tick {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    ORIGIN.after(START.get_or_init(std::time::Instant::now).elapsed())
}

/// Shows a span with three digits, and to the second at least: `12.3s` for 12.302302293 s.
#[derive(Clone, Copy)]
pub(crate) struct Rounded(pub(crate) Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos: u128 = self.0.as_nanos();
        let excess = nanos.checked_ilog10().unwrap_or(0).saturating_sub(2);
        let unit = 10_u128.pow(excess).min(1_000_000_000);
        let rounded = (nanos + unit / 2) / unit * unit;
        let rounded = u64::try_from(rounded).map_or(Duration::MAX, Duration::from_nanos);
        write!(f, "{rounded:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_with_three_digits() {
        let shown = |nanos| Rounded(Duration::from_nanos(nanos)).to_string();
        assert_eq!(shown(0), "0ns");
        assert_eq!(shown(1_234_567), "1.23ms");
        assert_eq!(shown(150_000_000), "150ms");
        assert_eq!(shown(2_000_000_000), "2s");
        assert_eq!(shown(12_302_302_293), "12.3s");
        assert_eq!(shown(999_999_999), "1s");
        assert_eq!(shown(86_399_400_000_000), "86399s");
        assert!(Rounded(Duration::MAX).to_string().ends_with('s'));
    }

    #[test]
    fn ticks_saturate_instead_of_wrapping() {
        assert_eq!(Tick::ZERO.after(Duration::MAX), Tick::NEVER);
        assert_eq!(Tick::NEVER.until(Tick::ZERO), Duration::ZERO);
    }

    /// A server may have been up for longer than this machine or process.
    #[test]
    fn what_was_before_the_origin_can_be_told() {
        const YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
        let now = Clock::System.now();
        assert_eq!(now.before(YEARS).until(now), YEARS);
    }

    #[test]
    fn instants_of_one_grain_are_rounded_to_one() {
        let grain = Duration::from_nanos(1_500);
        for (at, rounded) in [(0, 0), (1_023, 0), (1_024, 1_024), (2_047, 1_024)] {
            assert_eq!(Tick::at(at).rounded_down(grain), Tick::at(rounded));
        }
        assert_eq!(Tick::at(7).rounded_down(Duration::ZERO), Tick::at(7));
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let before = Clock::System.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(before.until(Clock::System.now()) >= Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_clock_follows_paused_time() {
        let clock = Clock::of_runtime();
        let at = clock.now().after(Duration::from_secs(3600));
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
    }
}
