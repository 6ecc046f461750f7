//! The errors of calls, in worlds where nothing goes wrong.

use lockset::Error;

use super::{Checks, Name};

impl Checks {
    /// A call for these locks failed. `is_hasty`: it gives up before some round trips are over.
    pub(in crate::world) fn failed(&mut self, names: &[Name], error: &Error, is_hasty: bool) {
        self.note(|| error.to_string());
        self.unconfirmed += u64::from(error.is_not_replicated());
        let is_forced = names.iter().any(|name| self.is_forced(name));
        let may_fail = error.is_not_replicated()
            || error.is_upgrade()
            || error.is_not_held() && is_forced
            || (error.is_io() || error.is_quorum()) && is_hasty;
        if self.is_still && !may_fail {
            self.violate(format!("a call fails, and nothing went wrong: {error}"));
        }
    }
}
