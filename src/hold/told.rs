//! What of a hold is counted, and told to whoever observes the client, or lost it.

use std::sync::Arc;
use std::time::Duration;

use super::shell::Hold;
use crate::counts::Mode;
use crate::error::{Error, Kind};
use crate::events::Event;
use crate::group::Group;
use crate::lost::LostReason;
use crate::totals::GrantedBy;

impl Hold {
    /// For a caller who took it for held.
    pub(crate) fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message = format!(
            "{reason}; what was done under this lock may have overlapped with another \
             holder"
        );
        let error = Error::new(Kind::NotHeld, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }

    /// A call got it.
    pub(super) fn count_grant(&self, mode: Mode, by: GrantedBy) {
        let observed = self.core.observed();
        observed.granted(self.protocol.counted(mode), by, self.group.get());
    }

    /// A call of another task of this client got it.
    pub(super) fn count_handoff(&self, mode: Mode, group: Group) {
        self.group.set(group);
        self.count_grant(mode, GrantedBy::Handoff);
    }

    pub(super) fn tell_lost(&self, reason: LostReason) {
        let observed = self.core.observed();
        observed.lost(reason, self.group.get());
        observed.tell(|| Event::Lost {
            lock: self.name().into(),
            holder: self.holder_id().into(),
            reason,
            held: self.age(),
        });
        if reason == LostReason::Revoked {
            self.ask_why();
        }
    }

    /// What it has left of a lease when the server has confirmed the next.
    pub(super) fn tell_renewed(&self, left: Duration, lease: Duration) {
        let observed = self.core.observed();
        if observed.renewed(left, lease) {
            observed.tell(|| Event::RenewalLate {
                lock: self.name().into(),
                left,
                lease,
            });
        }
    }

    /// It is tried again until the lease ends.
    pub(super) fn tell_renewal_failed(&self) {
        let observed = self.core.observed();
        observed.renewal_failed();
        observed.tell(|| Event::RenewalFailed {
            lock: self.name().into(),
            left: self.core.clock.now().until(self.deadline()),
        });
    }
}

/// A release that no caller waits for was refused or given up.
pub(super) fn tell_release_failed(holds: &[Arc<Hold>], error: &Error) {
    let observed = holds[0].core.observed();
    observed.background_failed();
    let names: Vec<_> = holds.iter().map(|hold| hold.name()).collect();
    observed.tell(|| Event::ReleaseFailed {
        lock: Some(names.join(", ").into()),
        error: error.clone(),
    });
}
