//! How long each share of one hold is held, and so the hold: pure.
//!
//! A hold is renewed as long as one of its shares is. A share with a fixed lease ends at its own time,
//! whatever the others do.

use std::time::Duration;

use crate::clock::Tick;
use crate::lost::LostReason;
use crate::options::LeasePolicy;

/// Local deadlines end this much before the server's: clocks that differ by one percent in rate,
/// and the time a server takes to notice an expiry.
fn margin(lease: Duration) -> Duration {
    (lease / 100 + Duration::from_millis(2)).min(lease / 4)
}

/// Until when a lease is certain that was asked for at `sent`.
pub(crate) fn local_deadline(sent: Tick, lease: Duration) -> Tick {
    sent.after(lease - margin(lease))
}

/// How long one share is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareLease {
    /// Until it is given back, by renewals of this lease.
    Renewed(Duration),
    /// Until then by the local clock.
    Until(Tick),
}

impl ShareLease {
    /// On this policy, if it was asked for at `sent`.
    pub(super) fn of(policy: LeasePolicy, sent: Tick) -> Self {
        match policy {
            LeasePolicy::Renewed(lease) => Self::Renewed(lease),
            LeasePolicy::Fixed(lease) => Self::Until(local_deadline(sent, lease)),
        }
    }

    /// When it ends by itself.
    pub(crate) fn end(self) -> Tick {
        match self {
            Self::Renewed(_) => Tick::NEVER,
            Self::Until(end) => end,
        }
    }

    pub(crate) fn is_renewed(self) -> bool {
        matches!(self, Self::Renewed(_))
    }

    /// Whether it has ended by itself.
    pub(crate) fn loss_at(self, now: Tick) -> Option<LostReason> {
        (!self.is_renewed() && now >= self.end()).then_some(LostReason::Expired)
    }
}

/// The leases of all shares. The last one stays when its share goes: then the hold is over.
#[derive(Debug)]
pub(super) struct ShareLeases {
    first: ShareLease,
    /// Most holds have one share.
    others: Vec<ShareLease>,
}

impl ShareLeases {
    pub(super) fn of(first: ShareLease) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, lease: ShareLease) {
        self.others.push(lease);
    }

    pub(super) fn remove(&mut self, lease: ShareLease) {
        if let Some(at) = self.others.iter().position(|other| *other == lease) {
            self.others.swap_remove(at);
        } else if self.first == lease
            && let Some(other) = self.others.pop()
        {
            self.first = other;
        }
    }

    /// The longest lease that has to be renewed, if any has.
    pub(super) fn lease(&self) -> Option<Duration> {
        let leases = self.all().filter_map(|lease| match lease {
            ShareLease::Renewed(lease) => Some(lease),
            ShareLease::Until(_) => None,
        });
        leases.max()
    }

    /// When the last of them ends by itself.
    pub(super) fn end(&self) -> Tick {
        self.all().map(ShareLease::end).max().unwrap_or(Tick::NEVER)
    }

    fn all(&self) -> impl Iterator<Item = ShareLease> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leases_are_those_of_the_shares_that_are_there() {
        let ms = Duration::from_millis;
        let at = |millis| Tick::ZERO.after(ms(millis));
        let mut leases = ShareLeases::of(ShareLease::Until(at(5)));
        assert_eq!((leases.lease(), leases.end()), (None, at(5)));
        for lease in [7, 9] {
            leases.add(ShareLease::Renewed(ms(lease)));
            assert_eq!(
                (leases.lease(), leases.end()),
                (Some(ms(lease)), Tick::NEVER)
            );
        }
        leases.add(ShareLease::Until(at(8)));
        leases.remove(ShareLease::Renewed(ms(9)));
        assert_eq!(leases.lease(), Some(ms(7)));
        leases.remove(ShareLease::Renewed(ms(7)));
        assert_eq!((leases.lease(), leases.end()), (None, at(8)));
        leases.remove(ShareLease::Until(at(8)));
        assert_eq!(leases.end(), at(5));
        leases.add(ShareLease::Renewed(ms(7)));
        leases.remove(ShareLease::Until(at(5)));
        assert_eq!(leases.lease(), Some(ms(7)));
    }
}
