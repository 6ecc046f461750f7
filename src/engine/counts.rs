//! Hold counts, by mode.

/// The mode of a share: alone, or beside others of this mode. Writers and readers; locks of one holder are always
/// exclusive. The stronger mode is the lesser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// The hold counts of one owner, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Counts([u32; 2]);

impl Counts {
    /// One hold in this mode.
    pub(crate) fn one(mode: Mode) -> Self {
        let mut counts = Self::default();
        counts.raise(mode);
        counts
    }

    pub(crate) fn of(self, mode: Mode) -> u32 {
        self.0[mode as usize]
    }

    /// In all modes.
    pub(crate) fn total(self) -> u32 {
        self.0.iter().sum()
    }

    pub(crate) fn raise(&mut self, mode: Mode) {
        self.0[mode as usize] += 1;
    }

    pub(crate) fn lower(&mut self, mode: Mode) {
        self.0[mode as usize] -= 1;
    }

    /// The strongest mode of them, if there are any.
    pub(crate) fn strongest(self) -> Option<Mode> {
        let modes = [Mode::Exclusive, Mode::Shared];
        modes.into_iter().find(|mode| self.of(*mode) > 0)
    }

    pub(crate) fn is_none(self) -> bool {
        self.total() == 0
    }
}
