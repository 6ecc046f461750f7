//! Sends the heartbeats of the waiters of one client in one queue at the server.
//!
//! Invariant: the client's task sends them, so a waiter that is not polled delays no other.

use std::sync::Arc;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::api::holder::HolderId;
use crate::conn::Lane;
use crate::engine::hold::core::Core;
use crate::engine::hold::heartbeats::PLACES_MAX;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::protocol::{HolderRef, Protocol};
use crate::engine::keys::LockName;
use crate::script::{CallBudget, reply};

/// The lock of a queue, and whether its waiters want tokens.
#[derive(Debug)]
struct ServerQueue {
    protocol: &'static dyn Protocol,
    name: LockName,
    fenced: bool,
}

/// Begins to send the heartbeats of this queue, if there are enough waiters and no task does so.
pub(super) fn send_heartbeats(request: &LockRequest) {
    if !request.local.heartbeats.begin() {
        return;
    }
    let queue = ServerQueue {
        protocol: request.protocol,
        name: request.name.clone(),
        fenced: request.options.fenced,
    };
    let (core, local) = (
        Arc::downgrade(&request.core),
        Arc::downgrade(&request.local),
    );
    // Twice in the time for which a place is kept. A waiter whose place was kept asks by itself before the next but one.
    let (clock, every) = (request.core.clock, request.core.timing.poll_cap * 3 / 2);
    let sending = async move {
        loop {
            clock.sleep_until(clock.now().after(every)).await;
            let (Some(core), Some(local)) = (core.upgrade(), local.upgrade()) else {
                return;
            };
            let Some(places) = local.heartbeats.places() else {
                return;
            };
            for places in places.chunks(PLACES_MAX) {
                queue.send_heartbeat(&core, &local, places).await;
            }
        }
    };
    request.core.watchdog.drive_while_needed(sending.boxed());
}

impl ServerQueue {
    async fn send_heartbeat(&self, core: &Core, local: &LocalLock, places: &[HolderId]) {
        let any = HolderRef {
            name: &self.name,
            id: "",
            fenced: self.fenced,
            token_retention: core.timing.token_retention,
        };
        let (heartbeat, publish) = (core.timing.heartbeat, core.channels().publish());
        let Some(call) = self.protocol.heartbeat(&any, heartbeat, publish, places) else {
            return;
        };
        let moved = core.locals.moved.mark();
        let budget = CallBudget::once(core.timing.reply);
        // Without an answer, the waiters ask by themselves.
        let Ok(answer) = core.scripts.run(Lane::Command, &call, budget).await else {
            return;
        };
        if let Ok(answers) = reply::heartbeats(&answer.value, places.len()) {
            local
                .heartbeats
                .answered(places, &answers, answer.sent, moved);
        }
    }
}
