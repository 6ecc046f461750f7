//! Which renewals of a hold may still come about, now or at a server that stands still.

use super::State;
use crate::clock::Tick;
use crate::hold::event::Effects;

impl State {
    /// A renewal was not sent, or was answered, or was given up at this time.
    pub(super) fn end_renewal(&mut self, given_up: Option<Tick>) -> Effects {
        self.at_server.renewal_ended(given_up);
        Effects {
            // Who leaves it to the server waits for that.
            wakes_guards: self.is_kept() && !self.is_being_renewed(),
            ..Effects::default()
        }
    }

    /// Whether a renewal may still be sent, or is waited for.
    pub(in crate::hold) fn is_being_renewed(&self) -> bool {
        self.at_server.is_being_renewed()
    }

    /// Whether the server may still execute a renewal.
    pub(in crate::hold) fn may_be_renewed_late(&self) -> bool {
        self.at_server.may_be_renewed_late()
    }
}
