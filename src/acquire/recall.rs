//! A waiter that was refused tells whoever holds the lock that somebody waits.
//!
//! One script, in the background: the wait goes on meanwhile, and without an answer. Where nobody listens, it is
//! not repeated for a while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::conn::{Channels, Lane};
use crate::hold::local::LocalLock;
use crate::keys::RECALL_CHANNEL;
use crate::script::{Call, CallBudget, catalog, reply};

/// If nobody listens, those who hold a lock are not recalled again before this.
const IN_VAIN_FOR: Duration = Duration::from_secs(1);

/// The same where more servers than one pass messages on, and none knows who listens at another.
const UNHEARD_FOR: Duration = Duration::from_millis(100);

/// The same for a user who may not.
const DENIED_FOR: Duration = Duration::from_secs(60);

/// Recalls the lock from whoever holds it, unless it is known that nobody would hear that.
pub(super) fn recall(request: &LockRequest, local: &Arc<LocalLock>) {
    let core = &request.core;
    let (clock, reply) = (core.clock, core.timing.reply);
    if !local.may_recall(clock.now()) {
        return;
    }
    // Until there is an answer.
    local.recall_after(clock.now().after(reply));
    let key = request.name.key();
    let call = Call::new(&catalog::RECALL, key, &[key])
        .arg(RECALL_CHANNEL)
        .arg(Channels::Plain.publish());
    let (scripts, local) = (Arc::clone(&core.scripts), Arc::clone(local));
    let recalling = async move {
        let answer = scripts.run(Lane::Command, &call, CallBudget::once(reply));
        let told = answer.await.ok();
        let told = told.and_then(|answer| reply::released(&answer.value).ok());
        let pause = match told {
            Some(reply::Released::Done { receivers }) if receivers > 0 => Duration::ZERO,
            Some(reply::Released::NotHeld) => DENIED_FOR,
            Some(reply::Released::Done { .. }) if !scripts.transport.is_single_server() => {
                UNHEARD_FOR
            }
            _ => IN_VAIN_FOR,
        };
        local.recall_after(clock.now().after(pause));
    };
    core.watchdog.drive_while_needed(recalling.boxed());
}
