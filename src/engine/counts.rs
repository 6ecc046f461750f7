//! Hold counts, by mode.

/// The mode of a share: alone, or beside others of this mode. Writers and readers; locks of one holder are always
/// exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// The hold counts of one owner in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    pub(crate) exclusive: u32,
    pub(crate) shared: u32,
}

impl Counts {
    pub(crate) const NONE: Self = Self {
        exclusive: 0,
        shared: 0,
    };

    /// One hold in this mode.
    pub(crate) fn one(mode: Mode) -> Self {
        Self::NONE.raised(mode)
    }

    pub(crate) fn of(self, mode: Mode) -> u32 {
        match mode {
            Mode::Exclusive => self.exclusive,
            Mode::Shared => self.shared,
        }
    }

    pub(crate) fn raised(self, mode: Mode) -> Self {
        self.with(mode, self.of(mode) + 1)
    }

    pub(crate) fn lowered(self, mode: Mode) -> Self {
        self.with(mode, self.of(mode) - 1)
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            exclusive: self.exclusive + other.exclusive,
            shared: self.shared + other.shared,
        }
    }

    /// What the server counts for these.
    pub(crate) fn at_server(self) -> Self {
        if self.exclusive > 0 {
            Self::one(Mode::Exclusive)
        } else if self.shared > 0 {
            Self::one(Mode::Shared)
        } else {
            Self::NONE
        }
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn with(self, mode: Mode, count: u32) -> Self {
        match mode {
            Mode::Exclusive => Self {
                exclusive: count,
                ..self
            },
            Mode::Shared => Self {
                shared: count,
                ..self
            },
        }
    }
}
