//! How long a hold stays at the server after its last guard is gone.

use std::time::Duration;

use super::HoldState;
use crate::engine::clock::Tick;
use crate::engine::hold::event::Phase;

impl HoldState {
    /// Notes that a released guard asked to keep the hold until then. Ignored if the hold is lost.
    pub(super) fn ask_to_keep(&mut self, until: Tick) {
        if self.phase == Phase::Held {
            self.kept_until = self.kept_until.max(until);
        }
    }

    /// The time until which to keep the hold if its last share ends now.
    pub(super) fn kept_after(&self, now: Tick) -> Tick {
        if now < self.kept_until {
            self.kept_until
        } else {
            Tick::ZERO
        }
    }

    /// Whether the hold is kept at the server after its end, or was.
    pub(in crate::engine::hold) fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Released | Phase::Lost(_)) && self.kept_until != Tick::ZERO
    }

    /// How much longer the server has to keep the hold, if it is kept.
    pub(in crate::engine::hold) fn kept_for(&self, now: Tick) -> Option<Duration> {
        let is_kept = self.is_kept() && now < self.kept_until;
        is_kept.then(|| now.until(self.kept_until))
    }
}
