//! Counting the events of a hold, and reporting them to the client's observer or to its caller.

use std::sync::Arc;
use std::time::Duration;

use super::shell::Hold;
use crate::api::error::{Error, Kind};
use crate::api::lost::LostReason;
use crate::engine::counts::Mode;
use crate::observe::events::Event;
use crate::observe::group::Group;
use crate::observe::totals::GrantedBy;
use crate::watchdog::FailedRenewals;

impl Hold {
    /// The error for a caller that believed it held the lock.
    pub(crate) fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message = format!(
            "{reason}; what was done under this lock may have overlapped with another \
             holder"
        );
        let error = Error::new(Kind::NotHeld, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }

    /// Counts a grant to a call.
    pub(super) fn count_grant(&self, mode: Mode, by: GrantedBy) {
        let observed = self.core.observed();
        observed.granted(self.protocol.counted(mode), by, self.group.get());
    }

    /// Counts a grant to a call of another task of this client.
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

    /// Reports a renewal, with the time that was left of the lease when the server confirmed it.
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

    /// Reports the renewals that fail at the server of this hold.
    pub(super) fn tell_renewals_failed(&self, renewals: FailedRenewals) {
        let now = self.core.clock.now();
        self.core.observed().tell(|| Event::RenewalFailed {
            lock: self.name().into(),
            left: now.until(self.deadline()),
            holds: renewals.holds,
            server: self.endpoint().into(),
            since: renewals.since.until(now),
            error: renewals.error,
        });
    }
}

/// Reports a background release that was refused or abandoned.
pub(super) fn tell_release_failed(holds: &[Arc<Hold>], error: &Error) {
    let observed = holds[0].core.observed();
    observed.background_failed();
    let names: Vec<_> = holds.iter().map(|hold| hold.name()).collect();
    observed.tell(|| Event::ReleaseFailed {
        lock: Some(names.join(", ").into()),
        error: error.clone(),
    });
}
