//! A place in the queue of one lock, and the subscription that goes with it.
//!
//! One subscription serves all waiters of a client. It is made when the head of the queue was
//! refused, and given up by the watchdog task a moment after the last waiter has left.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;

use super::Ask;
use super::attempt::{Candidate, Outcome};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::Result;
use crate::hold::core::Core;
use crate::hold::local::{LocalLock, Subscription};

/// A subscription is kept this long without a waiter: a lock that several processes fight over
/// would else be subscribed to anew for each grant.
const LINGER: Duration = Duration::from_millis(100);

/// One waiter; leaves the queue when dropped.
pub(super) struct Waiter<'a> {
    ask: &'a Ask,
    local: &'a Arc<LocalLock>,
}

impl<'a> Waiter<'a> {
    pub(super) fn enter(ask: &'a Ask, local: &'a Arc<LocalLock>) -> Self {
        local.enter_queue();
        Self { ask, local }
    }

    /// Whether messages about this lock reach us, as far as we know.
    pub(super) async fn is_listening(&self) -> bool {
        let gaps = self.ask.core.locals.gaps();
        *self.local.subscription.lock().await == Subscription::Since(gaps)
    }

    /// Subscribes if need be, and asks the server behind it on the same connection: a release after
    /// the answer is heard.
    pub(super) async fn attempt_listening(
        &self,
        candidate: &mut Candidate<'_>,
        deadline: Option<Tick>,
    ) -> Result<Outcome> {
        let core = &self.ask.core;
        let mut subscription = self.local.subscription.lock().await;
        let gaps = core.locals.gaps();
        if *subscription == Subscription::Since(gaps) {
            drop(subscription);
            return candidate.attempt(Lane::Push, deadline).await;
        }
        // Before the first await: whoever gives up from here on leaves it to be taken back.
        *subscription = Subscription::InDoubt;
        self.local.note_listening();
        let channel = candidate.channel();
        core.locals.listen(&channel, &self.local.hint);
        let command = push_command("SUBSCRIBE", &channel);
        let route = self.ask.name.key();
        let transport = &core.scripts.transport;
        let subscribe = transport.send(Lane::Push, route, &command, core.timing.reply);
        // The first is polled first, and so sent first.
        let (subscribed, outcome) = join(subscribe, candidate.attempt(Lane::Push, deadline)).await;
        if subscribed.is_ok() {
            *subscription = Subscription::Since(gaps);
        }
        outcome
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.local.leave_queue() && self.local.begin_lingering() {
            let work = unsubscribe(
                Arc::clone(&self.ask.core),
                Arc::clone(self.local),
                self.ask.name.key().clone(),
            );
            self.ask.core.watchdog.later(work.boxed());
        }
    }
}

/// Takes the subscription back, unless somebody waits again by then.
async fn unsubscribe(core: Arc<Core>, local: Arc<LocalLock>, route: Arc<str>) {
    tokio::time::sleep(LINGER).await;
    let mut subscription = local.subscription.lock().await;
    if local.waiters() > 0 {
        // The last of them takes it back.
        local.note_listening();
        return;
    }
    let stale = match *subscription {
        Subscription::None => return,
        Subscription::InDoubt => false,
        Subscription::Since(gaps) => gaps != core.locals.gaps(),
    };
    *subscription = Subscription::None;
    for channel in core.locals.ignore(&local.hint) {
        if !stale {
            let command = push_command("UNSUBSCRIBE", &channel);
            let transport = &core.scripts.transport;
            // If it is not answered the connection is replaced, and with it all subscriptions.
            let _ = transport
                .send(Lane::Push, &route, &command, core.timing.reply)
                .await;
        }
    }
}

fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
