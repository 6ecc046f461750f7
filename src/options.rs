//! What a handle may ask for, checked where it is used.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::owner::Owner;

/// The shortest lease, 50 ms: a shorter one could not be renewed in time over a network.
pub const LEASE_MIN: Duration = Duration::from_millis(50);

/// The longest lease: a year.
pub const LEASE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long a counter of fencing tokens outlives the last grant, unless the client says otherwise: longer
/// than a clock is ever set back by accident.
pub(crate) const TOKEN_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Longer than this is for ever.
const TOKEN_RETENTION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Shortest time in which a call gives up.
const GIVE_UP_MIN: Duration = Duration::from_millis(1);

/// For how long a grant holds and whether it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeasePolicy {
    Renewed(Duration),
    Fixed(Duration),
}

impl LeasePolicy {
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Renewed(lease) | Self::Fixed(lease) => lease,
        }
    }

    pub(crate) fn is_renewed(self) -> bool {
        matches!(self, Self::Renewed(_))
    }
}

/// What all handles have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) owner: Option<Owner>,
    /// The client's lease if nothing is said.
    pub(crate) policy: Option<LeasePolicy>,
    pub(crate) fenced: bool,
    /// What replicas have to confirm before a grant counts.
    pub(crate) replication: Option<Replication>,
    /// The client's if nothing is said.
    pub(crate) give_up: Option<Duration>,
}

/// How many replicas have to have a grant before it counts, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replication {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

impl Replication {
    /// What satisfies both.
    pub(crate) fn both(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            within: self.within.max(other.within),
        }
    }

    /// Whether it can work with such a lease, of which at least two thirds have to be left.
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
    pub(crate) const fn new() -> Self {
        Self {
            owner: None,
            policy: None,
            fenced: false,
            replication: None,
            give_up: None,
        }
    }

    /// Those that were given.
    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        if let Some(owner) = &self.owner {
            shown.field("owner", owner);
        }
        match &self.policy {
            Some(LeasePolicy::Renewed(lease)) => shown.field("lease", lease),
            Some(LeasePolicy::Fixed(lease)) => shown.field("fixed_lease", lease),
            None => shown,
        };
        if self.fenced {
            shown.field("fenced", &true);
        }
        if let Some(Replication { count, within }) = self.replication {
            shown.field("replicated", &(count, within));
        }
        if let Some(span) = &self.give_up {
            shown.field("give_up_after", span);
        }
    }

    pub(crate) fn policy(&self, default_lease: Duration) -> Result<LeasePolicy> {
        let policy = self.policy.unwrap_or(LeasePolicy::Renewed(default_lease));
        check_lease(policy.lease())?;
        Ok(policy)
    }
}

/// As scripts take it: in ms, and 0 for ever.
pub(crate) fn token_retention(retention: Duration) -> Result<u64> {
    if retention.is_zero() {
        return Err(Error::invalid(
            "connect",
            "without a counter that is kept for some time, tokens do not grow; use a \
             token_retention of some days",
        ));
    }
    let millis = u64::try_from(retention.as_millis().max(1)).unwrap_or(u64::MAX);
    Ok(if retention > TOKEN_RETENTION_MAX {
        0
    } else {
        millis
    })
}

pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(());
    }
    Err(Error::invalid(
        "lease",
        format!("a lease of {lease:?} cannot work; use one from {LEASE_MIN:?} to a year"),
    ))
}

/// How long a call goes on without an answer: not at all would be never to ask.
pub(crate) fn check_give_up(span: Duration) -> Result<()> {
    if span >= GIVE_UP_MIN {
        return Ok(());
    }
    Err(Error::invalid(
        "give_up_after",
        format!("no server can answer within {span:?}; use at least {GIVE_UP_MIN:?}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_bounded() {
        for bad in [Duration::ZERO, Duration::from_millis(49), Duration::MAX] {
            assert!(check_lease(bad).unwrap_err().is_invalid(), "{bad:?}");
        }
        assert!(check_lease(LEASE_MIN).is_ok() && check_lease(LEASE_MAX).is_ok());
    }

    #[test]
    fn a_retention_of_tokens_has_a_lower_bound_and_no_upper_one() {
        assert!(token_retention(Duration::ZERO).unwrap_err().is_invalid());
        assert_eq!(token_retention(Duration::from_micros(1)).unwrap(), 1);
        assert_eq!(token_retention(TOKEN_RETENTION).unwrap(), 2_592_000_000);
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
    fn the_clients_lease_is_the_default() {
        let mut options = Options::new();
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
}
