//! The lease of each share, and the lease of the hold that follows from them: pure.
//!
//! A hold is renewed while at least one of its shares is. A share with a fixed lease ends at its own deadline,
//! regardless of the others.

use std::time::Duration;

use crate::api::loss::LostReason;
use crate::api::options::{LeasePolicy, lease_for, margin};
use crate::engine::Few;
use crate::engine::clock::Tick;

/// The local deadline of a lease that was requested at `sent`.
pub(crate) fn local_deadline(sent: Tick, lease: Duration) -> Tick {
    sent.after(lease - margin(lease))
}

/// The lease of one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShareLease {
    /// The lease that renewals ask for until the share is released. `None` if it is fixed.
    pub(crate) renewed: Option<Duration>,
    /// When the share ends by itself, by the local clock. [`Tick::NEVER`] if it does not.
    pub(crate) end: Tick,
}

impl ShareLease {
    /// The lease that this policy gives a share that was requested at `sent` and is held from `now`.
    pub(crate) fn of(policy: LeasePolicy, sent: Tick, now: Tick) -> Self {
        match policy {
            LeasePolicy::Renewed(lease) => Self::renewed(lease),
            LeasePolicy::RenewedFor { lease, max } => Self {
                end: now.after(max),
                ..Self::renewed(lease)
            },
            LeasePolicy::Fixed(lease) => Self::fixed(local_deadline(sent, lease)),
        }
    }

    /// Renewed with this lease until the share is released.
    pub(crate) const fn renewed(lease: Duration) -> Self {
        Self {
            renewed: Some(lease),
            end: Tick::NEVER,
        }
    }

    /// Never renewed.
    pub(crate) fn fixed(end: Tick) -> Self {
        Self { renewed: None, end }
    }

    /// Why the share has ended by itself, if it has.
    pub(crate) fn loss_at(self, now: Tick) -> Option<LostReason> {
        (now >= self.end).then_some(match self.renewed {
            Some(_) => LostReason::MaxHold,
            None => LostReason::Expired,
        })
    }
}

/// Returns the lease to request now, if it need not last beyond `end`.
pub(super) fn lease_until(lease: Duration, now: Tick, end: Tick) -> Duration {
    lease.min(lease_for(now.until(end)))
}

/// The leases of all shares, each with the number of shares that have it. The last lease stays listed when its share
/// ends, because the hold ends with that share.
#[derive(Clone, Debug, Hash)]
pub(super) struct ShareLeases(Few<(ShareLease, u32)>);

impl ShareLeases {
    pub(super) fn of(first: ShareLease) -> Self {
        Self(Few::from_buf([(first, 1)]))
    }

    pub(super) fn add(&mut self, lease: ShareLease) {
        match self.0.iter_mut().find(|(other, _)| *other == lease) {
            Some((_, shares)) => *shares += 1,
            None => self.0.push((lease, 1)),
        }
    }

    pub(super) fn remove(&mut self, lease: ShareLease) {
        let Some(at) = self.0.iter().position(|(other, _)| *other == lease) else {
            return;
        };
        if self.0[at].1 > 1 {
            self.0[at].1 -= 1;
        } else if self.0.len() > 1 {
            self.0.swap_remove(at);
        }
    }

    /// Whether a share has this lease.
    pub(super) fn has(&self, lease: ShareLease) -> bool {
        self.all().any(|other| other == lease)
    }

    /// The longest of the renewed leases. `None` if all leases are fixed.
    pub(super) fn lease(&self) -> Option<Duration> {
        self.all().filter_map(|lease| lease.renewed).max()
    }

    /// Why all shares have ended by themselves at `now`, if they have. The share that ends last decides.
    pub(super) fn loss_at(&self, now: Tick) -> Option<LostReason> {
        let last = self.all().max_by_key(|lease| lease.end)?;
        last.loss_at(now)
    }

    /// When the last share ends by itself.
    pub(super) fn end(&self) -> Tick {
        self.all()
            .map(|lease| lease.end)
            .max()
            .unwrap_or(Tick::NEVER)
    }

    fn all(&self) -> impl Iterator<Item = ShareLease> {
        self.0.iter().map(|(lease, _)| *lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leases_are_those_of_the_shares_that_are_there() {
        let ms = Duration::from_millis;
        let at = |millis| Tick::ZERO.after(ms(millis));
        let mut leases = ShareLeases::of(ShareLease::fixed(at(5)));
        assert_eq!((leases.lease(), leases.end()), (None, at(5)));
        for lease in [7, 9] {
            leases.add(ShareLease::renewed(ms(lease)));
            assert_eq!(
                (leases.lease(), leases.end()),
                (Some(ms(lease)), Tick::NEVER)
            );
        }
        leases.add(ShareLease::fixed(at(8)));
        leases.remove(ShareLease::renewed(ms(9)));
        assert_eq!(leases.lease(), Some(ms(7)));
        leases.remove(ShareLease::renewed(ms(7)));
        assert_eq!((leases.lease(), leases.end()), (None, at(8)));
        leases.remove(ShareLease::fixed(at(8)));
        assert_eq!(leases.end(), at(5));
        leases.add(ShareLease::renewed(ms(7)));
        leases.remove(ShareLease::fixed(at(5)));
        assert_eq!(leases.lease(), Some(ms(7)));
    }

    #[test]
    fn what_has_an_end_of_its_own_is_renewed_up_to_that_or_not_at_all() {
        let lease = Duration::from_secs(30);
        let (sent, now) = (Tick::ZERO, Tick::ZERO.after(lease));
        for (policy, renewed, ends) in [
            (LeasePolicy::Renewed(lease), Some(lease), Tick::NEVER),
            (
                LeasePolicy::RenewedFor {
                    lease,
                    max: lease * 2,
                },
                Some(lease),
                now.after(lease * 2),
            ),
            (LeasePolicy::Fixed(lease), None, local_deadline(sent, lease)),
        ] {
            let share = ShareLease::of(policy, sent, now);
            assert_eq!((share.renewed, share.end), (renewed, ends));
        }
    }

    #[test]
    fn the_last_of_them_says_why_all_have_ended() {
        let at = |millis| Tick::ZERO.after(Duration::from_millis(millis));
        let lease = Duration::from_millis(3);
        let end = at(5);
        let longest = ShareLease {
            end: at(8),
            ..ShareLease::renewed(lease)
        };
        let mut leases = ShareLeases::of(ShareLease::fixed(end));
        assert_eq!(leases.loss_at(end), Some(LostReason::Expired));
        leases.add(longest);
        assert_eq!((leases.lease(), leases.end()), (Some(lease), at(8)));
        assert_eq!(leases.loss_at(end), None);
        assert_eq!(leases.loss_at(at(8)), Some(LostReason::MaxHold));
        leases.add(ShareLease::renewed(lease));
        assert_eq!(leases.loss_at(at(9_000_000)), None);
    }

    #[test]
    fn a_renewal_reaches_the_end_and_not_much_further() {
        let (now, lease) = (Tick::ZERO, Duration::from_secs(30));
        for (millis, capped) in [(1_000, true), (29_000, true), (40_000, false)] {
            let end = now.after(Duration::from_millis(millis));
            let asked = lease_until(lease, now, end);
            assert_eq!(asked < lease, capped, "{millis}");
            assert_eq!(local_deadline(now, asked) >= end, capped, "{millis}");
        }
        assert_eq!(lease_until(lease, now, Tick::NEVER), lease);
    }
}
