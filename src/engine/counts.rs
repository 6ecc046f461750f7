//! Hold counts, by mode.

/// The mode of a share: alone, as a writer, or beside others of this mode, as a reader. Shares of locks with one holder
/// are always exclusive. In the order, the stronger mode is the lesser.
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

    /// The sum over all modes.
    pub(crate) fn total(self) -> u32 {
        self.0.iter().sum()
    }

    pub(crate) fn raise(&mut self, mode: Mode) {
        self.0[mode as usize] += 1;
    }

    pub(crate) fn lower(&mut self, mode: Mode) {
        self.0[mode as usize] -= 1;
    }

    /// The strongest mode that occurs. `None` if all counts are zero.
    pub(crate) fn strongest(self) -> Option<Mode> {
        let modes = [Mode::Exclusive, Mode::Shared];
        modes.into_iter().find(|mode| self.of(*mode) > 0)
    }

    pub(crate) fn is_none(self) -> bool {
        self.total() == 0
    }
}
