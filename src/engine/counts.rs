//! Hold counts, by mode.

/// The mode of a share: alone, or beside others of this mode. Writers and readers; locks of one holder are always
/// exclusive. The stronger mode is the lesser.
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

    /// The strongest mode of them, if there are any.
    pub(crate) fn strongest(self) -> Option<Mode> {
        let modes = [Mode::Exclusive, Mode::Shared];
        modes.into_iter().find(|mode| self.of(*mode) > 0)
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
