//! What a handle may ask for, checked where it is used.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::owner::Owner;

/// Shortest lease that can be kept alive over a network.
pub const LEASE_MIN: Duration = Duration::from_millis(50);

/// Longest lease: a year.
pub const LEASE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// For how long a grant holds and whether it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    Renewed(Duration),
    Fixed(Duration),
}

impl Term {
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
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) owner: Option<Owner>,
    /// The client's lease if nothing is said.
    pub(crate) term: Option<Term>,
    pub(crate) fenced: bool,
}

impl Options {
    pub(crate) const fn new() -> Self {
        Self {
            owner: None,
            term: None,
            fenced: false,
        }
    }

    pub(crate) fn term(&self, default_lease: Duration) -> Result<Term> {
        let term = self.term.unwrap_or(Term::Renewed(default_lease));
        check_lease(term.lease())?;
        Ok(term)
    }
}

pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(());
    }
    Err(Error::invalid(
        "lease",
        format!("a lease of {lease:?} cannot work; give one from {LEASE_MIN:?} to a year"),
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
    fn the_clients_lease_is_the_default() {
        let mut options = Options::new();
        let default = Duration::from_secs(30);
        assert_eq!(options.term(default).unwrap(), Term::Renewed(default));
        options.term = Some(Term::Fixed(LEASE_MIN));
        assert_eq!(options.term(default).unwrap(), Term::Fixed(LEASE_MIN));
    }
}
