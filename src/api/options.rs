//! The options of a handle, checked where they are used: its lease, and the pauses of a waiter that polls. Pure.

use std::fmt;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::holder::Owner;
use crate::observe::group::Group;

/// The shortest lease, 50 ms: a shorter one could not be renewed in time over a network.
pub const LEASE_MIN: Duration = Duration::from_millis(50);

/// The longest lease: a year.
pub const LEASE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest time that a hold stays with its client after the last guard: a minute.
pub const STICKY_MAX: Duration = Duration::from_secs(60);

/// How long a counter of fencing tokens outlives the last grant, unless the client says otherwise: longer than any
/// accidental change of a clock.
pub(crate) const TOKEN_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Counters with a longer retention are kept for ever.
const TOKEN_RETENTION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The constant part of a margin.
const MARGIN_MIN: Duration = Duration::from_millis(2);

/// The shortest limit for a call without an answer.
const GIVE_UP_MIN: Duration = Duration::from_millis(1);

/// The shortest first pause. A waiter with a shorter one would hardly pause at all.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The lease of a grant, and whether it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeasePolicy {
    Renewed(Duration),
    /// Renewed until `max` has passed.
    RenewedFor {
        lease: Duration,
        max: Duration,
    },
    Fixed(Duration),
}

impl LeasePolicy {
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Renewed(lease) | Self::RenewedFor { lease, .. } | Self::Fixed(lease) => lease,
        }
    }

    pub(crate) fn is_renewed(self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Limits the policy to `max`: no lease is requested for much longer than that.
    fn for_at_most(self, max: Duration) -> Self {
        let enough = lease_for(max);
        match self {
            // This lease ends before `max`.
            Self::Fixed(lease) if lease <= enough => self,
            _ => Self::RenewedFor {
                lease: self.lease().min(enough),
                max,
            },
        }
    }
}

/// Returns the time from a local deadline to the later end of the lease at the server. It allows for clocks that differ
/// by one percent in rate, and for the time that a server takes to notice an expiry.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 100 + MARGIN_MIN).min(lease / 4)
}

/// Returns a lease whose local deadline comes only after `span`.
pub(crate) fn lease_for(span: Duration) -> Duration {
    let most = span.saturating_add(MARGIN_MIN);
    most.saturating_add(most / 99 + Duration::from_nanos(100))
}

/// The length of a wait after which it is reported, unless a handle says otherwise.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(1);

/// Options that all handles have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) owner: Option<Owner>,
    /// The client's lease if unset.
    pub(crate) policy: Option<LeasePolicy>,
    /// The longest time that a hold is renewed.
    pub(crate) max_hold: Option<Duration>,
    /// The shortest time that a hold is left at the server, even if it is released before.
    pub(crate) at_least: Option<Duration>,
    /// How long a hold stays with the client without a guard.
    pub(crate) sticky: Option<Duration>,
    /// The pauses of waiters. With them, waiters have no subscription.
    pub(crate) polled: Option<Backoff>,
    pub(crate) fenced: bool,
    /// The replicas that have to confirm a grant before it counts.
    pub(crate) replication: Option<Replication>,
    /// The client's limit if unset.
    pub(crate) give_up: Option<Duration>,
    /// The group of its counts.
    pub(crate) group: Group,
    /// How long a wait goes on until it is reported; [`LONG_WAIT`] if unset.
    pub(crate) long_wait: Option<Duration>,
}

/// How many replicas have to confirm a grant before it counts, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replication {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

impl Replication {
    /// Returns requirements that satisfy both.
    pub(crate) fn both(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            within: self.within.max(other.within),
        }
    }

    /// Checks that the requirements can work with this lease: at least two thirds of it have to be left after the wait.
    pub(crate) fn check(self, lease: Duration) -> Result<Self> {
        let Self { count, within } = self;
        let message = if count == 0 {
            "0 replicas confirm nothing; ask for at least 1, or leave `replicated` out".to_owned()
        } else if within.is_zero() {
            "no replica can confirm within 0 ms; allow some milliseconds".to_owned()
        } else if within > lease / 3 {
            format!(
                "a wait of {within:?} for replicas is too long for a lease of {lease:?}, which it \
                 uses up; allow at most a third of it"
            )
        } else {
            return Ok(self);
        };
        Err(Error::invalid("replicated", message))
    }
}

impl Options {
    pub(crate) fn report_wait_after(&mut self, span: Duration) {
        self.long_wait = Some(span).filter(|span| *span != LONG_WAIT);
    }

    /// Shows the options that were set.
    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let (renewed, fixed) = match self.policy {
            Some(LeasePolicy::Fixed(lease)) => (None, Some(lease)),
            renewed => (renewed.map(LeasePolicy::lease), None),
        };
        let replication = self.replication;
        let replicated = replication.map(|Replication { count, within }| (count, within));
        let group = (self.group != Group::NONE).then(|| self.group.name());
        let options = [
            ("owner", given(&self.owner)),
            ("lease", given(&renewed)),
            ("fixed_lease", given(&fixed)),
            ("max_hold", given(&self.max_hold)),
            ("at_least", given(&self.at_least)),
            ("sticky", given(&self.sticky)),
            ("polled", given(&self.polled)),
            ("fenced", self.fenced.then_some(&true)),
            ("replicated", given(&replicated)),
            ("give_up_after", given(&self.give_up)),
            ("group", given(&group)),
            ("report_wait_after", given(&self.long_wait)),
        ];
        for (name, option) in options {
            option.map(|option| shown.field(name, option));
        }
    }

    /// Returns the lease, regardless of `max_hold`.
    pub(crate) fn lease(&self, default_lease: Duration) -> Duration {
        self.policy.map_or(default_lease, LeasePolicy::lease)
    }

    /// Returns the lease of a grant, if all options can work.
    pub(crate) fn policy(&self, default_lease: Duration) -> Result<LeasePolicy> {
        let mut policy = self.policy.unwrap_or(LeasePolicy::Renewed(default_lease));
        check_lease(policy.lease())?;
        self.check_at_least(policy)?;
        self.check_sticky(policy)?;
        self.polled.map_or(Ok(()), |backoff| backoff.check())?;
        self.give_up.map_or(Ok(()), check_give_up)?;
        if let Some(max) = self.max_hold {
            Error::ensure(max >= LEASE_MIN, "max_hold", || {
                format!("a longest hold of {max:?} cannot work; use at least {LEASE_MIN:?}")
            })?;
            policy = policy.for_at_most(max);
        }
        if let Some(replication) = self.replication {
            replication.check(policy.lease())?;
        }
        Ok(policy)
    }

    /// Checks that the hold can last as long as `at_least` asks.
    fn check_at_least(&self, policy: LeasePolicy) -> Result<()> {
        let Some(span) = self.at_least else {
            return Ok(());
        };
        let longest = match policy {
            LeasePolicy::Fixed(lease) => ("fixed_lease", lease),
            _ => ("longest lease", LEASE_MAX),
        };
        let max_hold = self.max_hold.map(|max| ("longest hold", max));
        let mut bounds = [longest].into_iter().chain(max_hold);
        bounds.try_for_each(|(what, most)| {
            Error::ensure(span <= most, "at_least", || {
                format!("at_least {span:?} is longer than the {what} of {most:?}; shorten it")
            })
        })
    }

    fn check_sticky(&self, policy: LeasePolicy) -> Result<()> {
        let Some(span) = self.sticky else {
            return Ok(());
        };
        Error::ensure(span <= STICKY_MAX, "sticky", || {
            format!(
                "sticky {span:?} keeps others out for long if they cannot say that they wait; use at \
                 most {STICKY_MAX:?}"
            )
        })?;
        Error::ensure(policy.is_renewed(), "sticky", || {
            "a hold with a fixed_lease cannot be sticky, as nothing renews it; use `lease`"
                .to_owned()
        })
    }
}

fn given<T: fmt::Debug>(option: &Option<T>) -> Option<&dyn fmt::Debug> {
    option.as_ref().map(|option| option as _)
}

/// Pauses of a waiter without a subscription, between two attempts; for [`polled`](crate::ReentrantLock::polled).
///
/// The first pause is doubled with each attempt, up to the longest. Each pause is shortened by a random part, by default
/// up to a quarter. A waiter asks at least once in a sixth of the client's lease (50 ms to 1 s), even if its pauses are
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
    /// Begins with a pause of `first` and doubles it up to `max`. If `first` is less than 1 ms, calls that use it fail
    /// with [`is_invalid`](Error::is_invalid).
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
        // The longest of all spans, as a number of seconds, is too large for a span.
        let longest = self
            .first
            .saturating_mul(doubled)
            .min(self.max)
            .min(LEASE_MAX);
        let part = f64::from(self.jitter) / 100.0 * chance;
        longest.mul_f64(1.0 - part).max(PAUSE_MIN)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let first = self.first;
        Error::ensure(first >= PAUSE_MIN, "polled", || {
            format!("a first pause of {first:?} cannot work; use at least {PAUSE_MIN:?}")
        })
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

/// Converts a retention to ms for scripts, where 0 means for ever.
pub(crate) fn token_retention(retention: Duration) -> Result<u64> {
    Error::ensure(!retention.is_zero(), "connect", || {
        "without a counter that is kept for some time, tokens do not grow; use a token_retention of \
         some days"
            .to_owned()
    })?;
    let millis = u64::try_from(retention.as_millis().max(1)).unwrap_or(u64::MAX);
    Ok(if retention > TOKEN_RETENTION_MAX {
        0
    } else {
        millis
    })
}

pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    let works = (LEASE_MIN..=LEASE_MAX).contains(&lease);
    Error::ensure(works, "lease", || {
        format!("a lease of {lease:?} cannot work; use one from {LEASE_MIN:?} to a year")
    })
}

/// Checks the time for which a call goes on without an answer. With a limit of zero a call would never ask.
pub(crate) fn check_give_up(span: Duration) -> Result<()> {
    Error::ensure(span >= GIVE_UP_MIN, "give_up_after", || {
        format!("no server can answer within {span:?}; use at least {GIVE_UP_MIN:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle that shows its options.
    struct Handle(Options);

    impl fmt::Debug for Handle {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut shown = f.debug_struct("Lock");
            self.0.show(&mut shown);
            shown.finish()
        }
    }

    #[test]
    fn what_was_given_is_shown_and_nothing_else() {
        let shown = |options| format!("{:?}", Handle(options));
        assert_eq!(shown(Options::default()), "Lock");
        let options = Options {
            policy: Some(LeasePolicy::Fixed(Duration::from_secs(7))),
            at_least: Some(Duration::from_secs(2)),
            fenced: true,
            group: Group::named("payments").0,
            ..Options::default()
        };
        let expected = "Lock { fixed_lease: 7s, at_least: 2s, fenced: true, group: \"payments\" }";
        assert_eq!(shown(options), expected);
    }

    #[test]
    fn what_is_sticky_is_renewed_and_not_for_long() {
        let check = |sticky, policy| {
            let options = Options {
                sticky: Some(sticky),
                policy,
                ..Options::default()
            };
            options.policy(Duration::from_secs(30)).map(drop)
        };
        let fixed = Some(LeasePolicy::Fixed(Duration::from_secs(30)));
        assert!(check(STICKY_MAX, None).is_ok());
        let longer = STICKY_MAX + Duration::from_nanos(1);
        for bad in [check(longer, None), check(Duration::from_secs(1), fixed)] {
            assert!(bad.unwrap_err().is_invalid());
        }
    }

    #[test]
    fn what_satisfies_two_waits_for_replicas_satisfies_each() {
        let [short, long] = [1, 9].map(Duration::from_millis);
        let one = Replication {
            count: 3,
            within: short,
        };
        let other = Replication {
            count: 2,
            within: long,
        };
        let both = Replication {
            count: 3,
            within: long,
        };
        assert_eq!((one.both(other), other.both(one)), (both, both));
    }

    /// Clocks may differ by one percent. Of a short lease, three quarters are left.
    #[test]
    fn a_margin_is_a_hundredth_and_two_milliseconds_or_a_quarter() {
        for (lease, micros) in [(30_000, 302_000), (100, 3_000), (50, 2_500), (4, 1_000)] {
            let margin = margin(Duration::from_millis(lease));
            assert_eq!(margin, Duration::from_micros(micros), "{lease}");
        }
    }

    #[test]
    fn leases_are_bounded() {
        for bad in [Duration::ZERO, Duration::from_millis(49), Duration::MAX] {
            assert!(check_lease(bad).unwrap_err().is_invalid(), "{bad:?}");
        }
        assert!(check_lease(LEASE_MIN).is_ok() && check_lease(LEASE_MAX).is_ok());
        assert_eq!(LEASE_MAX.as_secs(), 31_536_000, "a year");
    }

    #[test]
    fn a_retention_of_tokens_has_a_lower_bound_and_no_upper_one() {
        assert!(token_retention(Duration::ZERO).unwrap_err().is_invalid());
        assert_eq!(token_retention(Duration::from_micros(1)).unwrap(), 1);
        assert_eq!(token_retention(TOKEN_RETENTION).unwrap(), 2_592_000_000);
        let century = Duration::from_secs(3_153_600_000);
        let (kept, longer) = (3_153_600_000_000, century + Duration::from_nanos(1));
        assert_eq!(token_retention(century).unwrap(), kept);
        assert_eq!(token_retention(longer).unwrap(), 0, "for ever");
        assert_eq!(token_retention(Duration::MAX).unwrap(), 0, "for ever");
    }

    #[test]
    fn a_call_takes_some_time() {
        assert!(check_give_up(Duration::ZERO).unwrap_err().is_invalid());
        assert!(check_give_up(GIVE_UP_MIN).is_ok() && check_give_up(Duration::MAX).is_ok());
    }

    #[test]
    fn a_wait_for_replicas_is_bounded_by_the_lease() {
        let lease = Duration::from_secs(3);
        let check = |count, millis| {
            let within = Duration::from_millis(millis);
            Replication { count, within }.check(lease)
        };
        for bad in [check(0, 100), check(1, 0), check(1, 1001)] {
            assert!(bad.unwrap_err().is_invalid());
        }
        assert!(check(1, 1).is_ok() && check(9, 1000).is_ok());
    }

    #[test]
    fn a_lease_for_a_span_lasts_as_long_and_hardly_longer() {
        for millis in [1, 7, 50, 999, 30_000, 86_400_000] {
            let span = Duration::from_millis(millis);
            let lease = lease_for(span);
            let certain = lease - margin(lease);
            assert!(certain >= span, "{span:?}: {certain:?}");
            assert!(
                lease <= span + span / 98 + Duration::from_millis(4),
                "{span:?}: {lease:?}"
            );
        }
        assert_eq!(lease_for(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn no_lease_is_asked_for_that_lasts_much_longer_than_a_hold_may() {
        let [short, long] = [1, 40].map(Duration::from_secs);
        let lease = Duration::from_secs(30);
        let policy = |policy, max_hold| {
            let options = Options {
                policy,
                max_hold: Some(max_hold),
                ..Options::default()
            };
            options.policy(lease)
        };
        let renewed = |lease, max| LeasePolicy::RenewedFor { lease, max };
        assert_eq!(policy(None, long).unwrap(), renewed(lease, long));
        assert_eq!(
            policy(None, short).unwrap(),
            renewed(lease_for(short), short)
        );
        let fixed = LeasePolicy::Fixed(lease);
        assert_eq!(policy(Some(fixed), long).unwrap(), fixed);
        assert_eq!(
            policy(Some(fixed), short).unwrap(),
            renewed(lease_for(short), short)
        );
        let least = lease_for(LEASE_MIN);
        assert_eq!(policy(None, LEASE_MIN).unwrap(), renewed(least, LEASE_MIN));
        assert!(policy(None, Duration::ZERO).unwrap_err().is_invalid());
        assert!(policy(None, Duration::MAX).is_ok());
    }

    #[test]
    fn nothing_is_kept_for_longer_than_it_may_be_held() {
        let [short, long] = [1, 40].map(Duration::from_secs);
        let check = |options: Options| {
            let options = Options {
                at_least: Some(long),
                ..options
            };
            options.policy(Duration::from_secs(30)).map(drop)
        };
        assert!(
            check(Options::default()).is_ok(),
            "longer than a renewed lease"
        );
        for bad in [
            Options {
                policy: Some(LeasePolicy::Fixed(short)),
                ..Options::default()
            },
            Options {
                max_hold: Some(short),
                ..Options::default()
            },
        ] {
            assert!(check(bad).unwrap_err().is_invalid());
        }
        let equal = Options {
            max_hold: Some(long),
            ..Options::default()
        };
        assert!(check(equal).is_ok());
    }

    #[test]
    fn the_clients_lease_is_the_default() {
        let mut options = Options::default();
        let default = Duration::from_secs(30);
        assert_eq!(
            options.policy(default).unwrap(),
            LeasePolicy::Renewed(default)
        );
        options.policy = Some(LeasePolicy::Fixed(LEASE_MIN));
        assert_eq!(
            options.policy(default).unwrap(),
            LeasePolicy::Fixed(LEASE_MIN)
        );
    }

    #[test]
    fn all_but_a_fixed_lease_is_renewed() {
        let (lease, max) = (LEASE_MIN, LEASE_MAX);
        for (policy, is_renewed) in [
            (LeasePolicy::Renewed(lease), true),
            (LeasePolicy::RenewedFor { lease, max }, true),
            (LeasePolicy::Fixed(lease), false),
        ] {
            assert_eq!((policy.is_renewed(), policy.lease()), (is_renewed, lease));
        }
    }

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

    #[test]
    fn the_longest_pause_without_a_random_part_is_a_pause() {
        let endless = Backoff::from(Duration::MAX).jitter(0);
        assert!(endless.check().is_ok());
        assert!(endless.pause(0, 0.5) > Duration::from_secs(60 * 60));
    }
}
