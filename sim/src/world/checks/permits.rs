//! The checks' notes about permits.

use lockset::LostReason;

use super::Checks;
use crate::world::permits::Taken;
use crate::world::plan::Kind;

impl Checks {
    /// Permits were given out. Returns the number under which they are known.
    pub(in crate::world) fn permits_granted(&mut self, name: &str, taken: Taken) -> u64 {
        self.note(|| format!("process {} has {} of {name}", taken.process, taken.count));
        self.must_be_open(name, Kind::Permits, taken.process);
        let (number, wrong) = self.permits.granted(name, taken);
        wrong.into_iter().for_each(|what| self.violate(what));
        number
    }

    /// Permits were lost.
    pub(in crate::world) fn permits_lost(&mut self, name: &str, number: u64, reason: LostReason) {
        self.losses += 1;
        let is_closed = |process| self.closed.contains_key(&process);
        let wrong = self
            .permits
            .lost(name, number, reason, self.may_fail, is_closed);
        wrong.into_iter().for_each(|what| self.violate(what));
    }
}
