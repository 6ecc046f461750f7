//! The facts that are noted about holds, and the reason that an operator gave for taking a hold away. The reason is
//! left at the server for the holder, next to the record of its client.
//!
//! Invariants: the reason is written before the hold is taken away, and read after the loss was noted. No task waits
//! for the reason, so it delays neither a loss nor a release. Without the right to read it, or without an answer, the
//! reason stays unknown.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use redis::Value;

use super::core::Core;
use super::handoff::known;
use super::local::LocalLock;
use super::shell::Hold;
use crate::api::error::{Error, Kind};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::keys::freed_key;
use crate::observe::counts::{Fact, GrantedBy};
use crate::observe::events::Event;
use crate::observe::group::Group;
use crate::script::millis;

/// How long a reason is kept, which is longer than any usual lease. A holder that notices its loss later finds no
/// reason.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// No reason is asked for while more pieces of work than this are under way. If more holds than this are lost at once,
/// the server was replaced or has lost its data.
const ASKED_MAX: usize = 64;

/// A reason is cut off after this number of bytes.
const REASON_MAX: usize = 1024;

/// Leaves the reason for the holder with this id. Does nothing if the id is not a holder id.
pub(crate) async fn leave(core: &Core, holder: &str, reason: &str) {
    let Some(key) = freed_key(holder).filter(|_| !reason.is_empty()) else {
        return;
    };
    let mut set = redis::cmd("SET");
    let mut ends = (0..=reason.len().min(REASON_MAX)).rev();
    let end = ends.find(|end| reason.is_char_boundary(*end));
    let reason = &reason[..end.unwrap_or_default()];
    set.arg(&key).arg(reason).arg("PX").arg(millis(KEPT));
    let (transport, limit) = (&core.scripts.transport, core.timing.reply);
    // A failure only means that the holder finds no reason.
    let _ = transport.send(Lane::Command, &key, &set, limit).await;
}

/// Notes that a release of this lock in the background was refused or abandoned.
pub(super) fn note_release_failed(core: &Core, name: &str, error: Error) {
    let lock = Some(name.into());
    let failed = Event::ReleaseFailed { lock, error };
    core.observed().note(Fact::event(failed));
}

impl LocalLock {
    /// The live holds of this client.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let live = state.grants.live();
        live.filter_map(|grant| known(grant.hold()?)).collect()
    }
}

impl Hold {
    /// The holder id, which follows from the number of the hold.
    pub(super) fn holder(&self) -> HolderId {
        HolderId::new(self.core.id(), self.number)
    }

    pub(crate) fn holder_id(&self) -> &str {
        self.holder_id.get_or_init(|| (*self.holder()).into())
    }

    /// The time since the lock was requested.
    pub(super) fn age(&self) -> Duration {
        self.requested().until(self.core.clock.now())
    }

    /// When the granted request was sent.
    pub(crate) fn requested(&self) -> Tick {
        self.local.lock().grants[self.slot].requested
    }

    /// The error for a caller that believed it held the lock.
    pub(crate) fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message = format!(
            "{reason}; what was done under this lock may have overlapped with another \
             holder"
        );
        let error = Error::new(Kind::NotHeld, operation, message).of_lock(self.name());
        error.at(&self.endpoint())
    }

    /// Notes that a call got the lock.
    pub(super) fn note_grant(&self, mode: Mode, by: GrantedBy) {
        let (kind, group) = (self.protocol.counted(mode), self.group.get());
        let observed = self.core.observed();
        observed.note(Fact::Granted { kind, by, group });
    }

    /// Notes that another task of this client, in this group, got the lock by a hand-off.
    pub(super) fn note_handoff(&self, mode: Mode, group: Group) {
        self.group.set(group);
        self.note_grant(mode, GrantedBy::Handoff);
    }

    pub(super) fn note_loss(&self, reason: LostReason) {
        let (held, group) = (self.age(), self.group.get());
        note_loss(
            &self.core,
            self.name(),
            self.holder_id(),
            reason,
            held,
            group,
        );
    }
}

/// Notes that a holder has lost this lock, or a permit, after the time `held`. If the server no longer has the holder,
/// asks why.
pub(crate) fn note_loss(
    core: &Core,
    lock: &str,
    holder: &str,
    reason: LostReason,
    held: Duration,
    group: Group,
) {
    let lost = Event::Lost {
        lock: lock.into(),
        holder: holder.into(),
        reason,
        held,
    };
    core.observed().note(Fact::Event(lost, group));
    if reason == LostReason::Revoked {
        ask_why(core, lock, holder);
    }
}

/// Reads the reason after another process took this holder away, and reports it to the client's observer.
pub(crate) fn ask_why(core: &Core, lock: &str, holder: &str) {
    let (observed, watchdog) = (core.observed(), &core.watchdog);
    if !observed.is_on() || watchdog.pending() > ASKED_MAX {
        return;
    }
    let Some(key) = freed_key(holder) else {
        return;
    };
    let (scripts, limit) = (core.scripts.clone(), core.timing.reply);
    let (lock, holder) = (lock.to_owned(), holder.to_owned());
    let asking = async move {
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let asked = scripts.transport.send(Lane::Command, &key, &get, limit);
        let Ok(Value::BulkString(reason)) = asked.await else {
            return;
        };
        let reason = String::from_utf8_lossy(&reason);
        let freed = Event::Freed {
            lock: lock.into(),
            holder: holder.into(),
            reason,
        };
        scripts.observed.note(Fact::event(freed));
    };
    watchdog.drive(asking.boxed());
}
