//! Whether a guard was told of its loss in time.

use super::{Call, Harm, Hit, Limits};
use crate::history::Nanos;

impl Harm {
    fn has_stopped(&self, process: u32) -> bool {
        self.hit == Hit::All || self.hit == Hit::Stopped(process)
    }
}

impl Call {
    /// How long after its end its guard was told of that, or was used without being told. A process that stands still
    /// learns of it when it goes on.
    pub(super) fn late(&self, harms: &[Harm], last: Nanos, limits: &Limits) -> Option<Nanos> {
        self.granted?;
        if harms.iter().any(|harm| harm.has_killed(self.id.0)) {
            return None;
        }
        let lost = self.lost.as_ref().map(|(at, _)| *at);
        let told = lost.or(self.released).unwrap_or(last);
        let mut due = self.vouched;
        let stops = || harms.iter().filter(|harm| harm.has_stopped(self.id.0));
        while let Some(stop) = stops().find(|stop| stop.from <= due + limits.loss && stop.to > due)
        {
            due = stop.to;
        }
        let late = told.saturating_sub(due);
        (late > limits.loss).then_some(late)
    }
}
