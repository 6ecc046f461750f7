//! Until when a hold is left at the server, once no guard has it.

use std::time::Duration;

use super::{Phase, State};
use crate::clock::Tick;

impl State {
    /// A guard asks for that when it is released, unless it is lost.
    pub(super) fn ask_to_keep(&mut self, until: Tick) {
        if self.phase == Phase::Held {
            self.kept_until = self.kept_until.max(until);
        }
    }

    /// Until when it is to be left if its last share ends now.
    pub(super) fn kept_after(&self, now: Tick) -> Tick {
        if now < self.kept_until {
            self.kept_until
        } else {
            Tick::ZERO
        }
    }

    /// Whether it is to be left at the server, or was.
    pub(in crate::hold) fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Released | Phase::Lost(_)) && self.kept_until != Tick::ZERO
    }

    /// For how long it is to be left at the server, if it is.
    pub(in crate::hold) fn kept_for(&self, now: Tick) -> Option<Duration> {
        let is_kept = self.is_kept() && now < self.kept_until;
        is_kept.then(|| now.until(self.kept_until))
    }
}
