//! Until when a hold is left at the server if its last guard goes before.
//!
//! Invariant: what is lost as a whole is not left, and takes away nothing that a guard of its own has asked for.

use crate::clock::Tick;

/// What guards have asked for; [`Tick::ZERO`] is nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptUntil {
    own: Tick,
    as_member: Tick,
}

impl KeptUntil {
    pub(crate) const NOT: Self = Self::own(Tick::ZERO);

    /// For a guard of this lock alone.
    pub(crate) const fn own(until: Tick) -> Self {
        let as_member = Tick::ZERO;
        Self {
            own: until,
            as_member,
        }
    }

    /// For a guard of several locks, or of a lock on several servers.
    pub(crate) const fn as_member(until: Tick) -> Self {
        Self {
            as_member: until,
            ..Self::NOT
        }
    }

    /// One more guard.
    pub(super) fn ask(&mut self, more: Self) {
        self.own = self.own.max(more.own);
        self.as_member = self.as_member.max(more.as_member);
    }

    /// That of which it is a member is lost.
    pub(super) fn waive(&mut self) {
        self.as_member = Tick::ZERO;
    }

    pub(super) fn end(self) -> Tick {
        self.own.max(self.as_member)
    }
}
