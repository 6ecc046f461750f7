//! Recalls: a refused waiter notifies the client that holds the lock, and that client notifies its holds.
//!
//! A client has one channel for recalls. Its name contains the UUID of the client, which is the beginning of all its
//! holder ids. The client listens from its first need for recalls until it is closed. A waiter sends a recall by one
//! script in the background: its wait goes on and does not depend on the answer. If no client listens, the recall is
//! not repeated for a while. Invariants: a recall is only a hint, and has no effect if its hold is gone. Without
//! recalls, every hold still ends in its own time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::core::Core;
use super::local::{LocalLock, Locals};
use super::shell::Hold;
use crate::conn::error_reply::is_temporary;
use crate::conn::{Channels, Fault, Lane};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::keys::RECALL_CHANNEL;
use crate::script::{Call, CallBudget, Scripts, catalog, reply};

/// The pause before another subscription if the server refused one.
const REFUSED_FOR: Duration = Duration::from_secs(60);

impl Hold {
    /// Begins to listen for recalls, unless the client listens already.
    pub(super) fn listen_for_recalls(&self) {
        if !self.core.locals.recalls.begin() {
            return;
        }
        let core = &self.core;
        let (route, channel) = (self.name.key(), format!("{RECALL_CHANNEL}{}", core.id()));
        // In a cluster any node will do.
        let place = (Arc::clone(route), channel);
        let (client, locals) = (Arc::downgrade(core), Arc::clone(&core.locals));
        let listening = listen(
            client,
            locals,
            Arc::clone(&core.scripts),
            place,
            core.timing.reply,
        );
        core.watchdog.drive_while_needed(listening.boxed());
    }

    /// Handles a recall: a waiter elsewhere wants this hold.
    pub(super) fn recall(self: &Arc<Self>) {
        self.state().recall();
        self.end_deferral();
        if !self.state().has_guard() {
            self.end_stay();
        }
        self.local.note_wanted();
    }

    /// Resolves when a hold in this mode excludes a waiter, of this client or elsewhere. Cancel safe.
    pub(crate) async fn recalled(&self, mode: Mode) {
        self.listen_for_recalls();
        let wanted = &self.local.rare().wanted;
        loop {
            let mark = wanted.mark();
            if self.state().is_recalled() || self.local.lock().queue().has_waiter_blocked_by(mode) {
                return;
            }
            wanted.changed_since(mark).await;
        }
    }
}

/// Listens for recalls and notifies the recalled holds, until the client is closed. Subscribes again after each gap.
/// Does not keep the client alive.
async fn listen(
    client: Weak<Core>,
    locals: Arc<Locals>,
    scripts: Arc<Scripts>,
    (route, channel): (Arc<str>, String),
    reply: Duration,
) {
    let clock = scripts.clock;
    let send = async |verb: &str| {
        let mut command = redis::cmd(verb);
        command.arg(&channel);
        let transport = &scripts.transport;
        transport.send(Lane::Push, &route, &command, reply).await
    };
    // The number of gaps at the time of the subscription, and when to try again without one.
    let (mut since, mut retry_at) = (None, Tick::ZERO);
    loop {
        let mark = locals.recalls.changed.mark();
        let is_open = client.upgrade().is_some_and(|core| {
            for number in locals.recalls.take() {
                core.watchdog.recall(number);
            }
            !core.is_closed()
        });
        if !is_open {
            // If there is no answer, the connection ends, and the subscription with it.
            let _ = send(Channels::Plain.unsubscribe()).await;
            return;
        }
        let gaps = locals.gaps();
        if since != Some(gaps) && clock.now() >= retry_at {
            let pause = match send(Channels::Plain.subscribe()).await {
                Ok(_) => {
                    since = Some(gaps);
                    Duration::ZERO
                }
                Err(Fault::Answered(no)) if !is_temporary(&no) => REFUSED_FOR,
                Err(_) => reply,
            };
            retry_at = clock.now().after(pause);
        }
        let is_subscribed = since == Some(locals.gaps());
        tokio::select! {
            () = locals.recalls.changed.changed_since(mark) => {}
            () = clock.sleep_until(retry_at), if !is_subscribed => {}
        }
    }
}

/// The pause before the next recall if no client listens.
const IN_VAIN_FOR: Duration = Duration::from_secs(1);

/// The pause on a cluster, where a server does not know the listeners at the other nodes.
const UNHEARD_FOR: Duration = Duration::from_millis(100);

/// The pause before the next recall if the user has no right to send one.
const DENIED_FOR: Duration = Duration::from_secs(60);

/// Notifies the client that holds the lock, unless an earlier answer showed that it does not listen.
pub(crate) fn recall_holder(core: &Core, local: &Arc<LocalLock>, key: &Arc<str>) {
    let (clock, reply) = (core.clock, core.timing.reply);
    {
        let mut state = local.lock();
        let now = clock.now();
        if now < state.recall_after {
            return;
        }
        // Prevents further recalls until this one is answered.
        state.recall_after = now.after(reply);
    }
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
        local.lock().recall_after = clock.now().after(pause);
    };
    core.watchdog.drive_while_needed(recalling.boxed());
}
