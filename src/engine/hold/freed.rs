//! Why an operator took a hold away. The reason is left at the server for the holder, next to the record of its
//! client.
//!
//! Invariants: the reason is written before the hold is taken away, and read after the loss was reported. No task
//! waits for it, so it delays neither a loss nor a release. Without the right to read it, or without an answer, the
//! reason stays unknown.

use std::time::Duration;

use futures_util::FutureExt;
use redis::Value;

use super::core::Core;
use super::shell::Hold;
use crate::conn::Lane;
use crate::engine::keys::freed_key;
use crate::observe::events::Event;
use crate::script::millis;

/// Longer than any usual lease. A holder that notices its loss later than this finds no reason.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// If more holds than this are lost at once, no reason is asked for: the server was replaced or lost its data.
const ASKED_MAX: usize = 64;

/// A longer reason is cut off after this number of bytes.
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

impl Hold {
    /// Reads the reason after another process took the hold away, and reports it to the client's observer.
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
