//! On which terms the shares of one hold are held: pure.
//!
//! A hold is renewed as long as one of them is. One that is fixed ends at its own time, whatever the
//! others do.

use std::time::Duration;

use crate::clock::Tick;
use crate::lost::LostReason;

/// How long one share is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// Until it is given back, by renewals of this lease.
    Renewed(Duration),
    /// Until then by the local clock.
    Until(Tick),
}

impl Stay {
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

/// The terms of all shares. The last one stays when its share goes: then the hold is over.
#[derive(Debug)]
pub(super) struct Terms {
    first: Stay,
    /// Most holds have one share.
    others: Vec<Stay>,
}

impl Terms {
    pub(super) fn of(first: Stay) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, stay: Stay) {
        self.others.push(stay);
    }

    pub(super) fn remove(&mut self, stay: Stay) {
        if let Some(at) = self.others.iter().position(|other| *other == stay) {
            self.others.swap_remove(at);
        } else if self.first == stay
            && let Some(other) = self.others.pop()
        {
            self.first = other;
        }
    }

    /// The longest lease that has to be renewed, if any has.
    pub(super) fn lease(&self) -> Option<Duration> {
        let leases = self.all().filter_map(|stay| match stay {
            Stay::Renewed(lease) => Some(lease),
            Stay::Until(_) => None,
        });
        leases.max()
    }

    /// When the last of them ends by itself.
    pub(super) fn end(&self) -> Tick {
        self.all().map(Stay::end).max().unwrap_or(Tick::NEVER)
    }

    fn all(&self) -> impl Iterator<Item = Stay> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_are_those_of_the_shares_that_are_there() {
        let ms = Duration::from_millis;
        let at = |millis| Tick::ZERO.after(ms(millis));
        let mut terms = Terms::of(Stay::Until(at(5)));
        assert_eq!((terms.lease(), terms.end()), (None, at(5)));
        for lease in [7, 9] {
            terms.add(Stay::Renewed(ms(lease)));
            assert_eq!((terms.lease(), terms.end()), (Some(ms(lease)), Tick::NEVER));
        }
        terms.add(Stay::Until(at(8)));
        terms.remove(Stay::Renewed(ms(9)));
        assert_eq!(terms.lease(), Some(ms(7)));
        terms.remove(Stay::Renewed(ms(7)));
        assert_eq!((terms.lease(), terms.end()), (None, at(8)));
        terms.remove(Stay::Until(at(8)));
        assert_eq!(terms.end(), at(5));
        terms.add(Stay::Renewed(ms(7)));
        terms.remove(Stay::Until(at(5)));
        assert_eq!(terms.lease(), Some(ms(7)));
    }
}
