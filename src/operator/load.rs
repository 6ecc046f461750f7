//! The rate of commands of other clients between two looks at the servers. Pure.

use crate::engine::clock::Tick;

/// The commands of the servers until one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commands {
    pub(super) at: Tick,
    /// All commands that the servers have executed.
    pub(super) executed: u64,
    /// The commands of the survey among them.
    pub(super) sent: u64,
}

impl Commands {
    /// The commands of others per second since an earlier moment. `None` if a server was restarted in between.
    pub(super) fn rate_since(&self, earlier: &Self) -> Option<u64> {
        let executed = self.executed.checked_sub(earlier.executed)?;
        let others = executed.saturating_sub(self.sent - earlier.sent);
        let ms = u64::try_from(earlier.at.until(self.at).as_millis()).ok()?;
        others.saturating_mul(1000).checked_div(ms)
    }
}
