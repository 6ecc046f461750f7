//! Why an operator took a hold away: left at the server for whoever had it, beside the record of its client.
//!
//! Invariants: it is left before the hold is taken away, and asked for after the loss was told; nobody waits for
//! it, so it delays no loss and no release; without the right, or without an answer, nothing is known.

use std::time::Duration;

use futures_util::FutureExt;
use redis::Value;

use super::core::Core;
use super::shell::Hold;
use crate::conn::Lane;
use crate::events::Event;
use crate::keys::freed_key;
use crate::script::millis;

/// A holder that learns later of its loss was away for longer than any usual lease.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// Of more holds that are gone at once nobody asks why: the server was replaced, or lost its data.
const ASKED_MAX: usize = 64;

/// The first so many bytes of a reason are left.
const REASON_MAX: usize = 1024;

/// Leaves the reason for the holder with this id, if it is one.
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
    // What cannot be left is not there.
    let _ = transport.send(Lane::Command, &key, &set, limit).await;
}

impl Hold {
    /// It was taken away by somebody else: tells whoever observes the client why, if that was left.
    pub(super) fn ask_why(&self) {
        let (observed, watchdog) = (self.core.observed(), &self.core.watchdog);
        if !observed.is_on() || watchdog.pending() > ASKED_MAX {
            return;
        }
        let Some(key) = freed_key(self.holder_id()) else {
            return;
        };
        let (scripts, limit) = (self.core.scripts.clone(), self.core.timing.reply);
        let (name, holder) = (self.name.clone(), self.holder);
        let asking = async move {
            let mut get = redis::cmd("GET");
            get.arg(&key);
            let asked = scripts.transport.send(Lane::Command, &key, &get, limit);
            let Ok(Value::BulkString(reason)) = asked.await else {
                return;
            };
            let reason = String::from_utf8_lossy(&reason);
            scripts.observed.tell(|| Event::Freed {
                lock: name.as_str().into(),
                holder: (&*holder).into(),
                reason,
            });
        };
        watchdog.drive(asking.boxed());
    }
}
