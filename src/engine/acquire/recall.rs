//! Recalls a lock: a refused waiter notifies the client that holds it.
//!
//! Runs one script in the background. The wait goes on and does not depend on the answer. If no client listens, the
//! recall is not repeated for a while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::conn::{Channels, Lane};
use crate::engine::hold::local::LocalLock;
use crate::engine::keys::RECALL_CHANNEL;
use crate::script::{Call, CallBudget, catalog, reply};

/// Pause before the next recall if no client listens.
const IN_VAIN_FOR: Duration = Duration::from_secs(1);

/// Pause on a cluster, where no server knows the listeners at the other nodes.
const UNHEARD_FOR: Duration = Duration::from_millis(100);

/// Pause if the user has no right to recall.
const DENIED_FOR: Duration = Duration::from_secs(60);

/// Notifies the client that holds the lock, unless an earlier answer showed that it does not listen.
pub(super) fn recall(request: &LockRequest, local: &Arc<LocalLock>) {
    let core = &request.core;
    let (clock, reply) = (core.clock, core.timing.reply);
    if !local.may_recall(clock.now()) {
        return;
    }
    // Blocks further recalls until the answer is there.
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
