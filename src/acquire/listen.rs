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
use crate::script::Patience;

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
    pub(super) fn is_listening(&self) -> bool {
        let gaps = self.ask.core.locals.gaps();
        // While it is being changed, it is nothing to rely on.
        let subscription = self.local.subscription.try_lock();
        subscription.is_ok_and(|subscription| subscription.since == Some(gaps))
    }

    /// Whether to listen at all: not right after it failed, nor when the time left is so short that
    /// a slow answer would pass for a dead connection.
    pub(super) fn may_listen(&self, deadline: Option<Tick>) -> bool {
        let core = &self.ask.core;
        let now = core.clock.now();
        let enough = now.after(core.timing.reply / 8);
        self.local.may_listen(now) && deadline.is_none_or(|deadline| enough <= deadline)
    }

    /// Subscribes if need be, and asks the server behind it on the same connection: a release after
    /// the answer is heard. One attempt; a connection that does not work is no reason to wait.
    pub(super) async fn attempt_listening(
        &self,
        candidate: &mut Candidate<'_>,
        deadline: Option<Tick>,
    ) -> Result<Outcome> {
        let core = &self.ask.core;
        let left = deadline.map(|deadline| core.clock.now().until(deadline));
        let reply = left.map_or(core.timing.reply, |left| left.min(core.timing.reply));
        let patience = Patience::once(reply);
        let subscription = core.clock.within(reply, self.local.subscription.lock());
        let Some(mut subscription) = subscription.await else {
            // It is being given up, on a connection that does not answer.
            return candidate.attempt(Lane::Push, patience).await;
        };
        if subscription.since == Some(core.locals.gaps()) {
            drop(subscription);
            return candidate.attempt(Lane::Push, patience).await;
        }
        // Before the first await: whoever gives up from here on leaves it to be taken back.
        let channel = candidate.channel();
        self.local.note_listening();
        core.locals.listen(&channel, &self.local.hint);
        let command = push_command("SUBSCRIBE", &channel);
        *subscription = Subscription {
            channel: Some(channel),
            since: None,
        };
        let mut again = true;
        loop {
            let gaps = core.locals.gaps();
            let route = self.ask.name.key();
            let transport = &core.scripts.transport;
            let subscribe = transport.send(Lane::Push, route, &command, reply);
            // The first is polled first, and so sent first.
            let (subscribed, outcome) =
                join(subscribe, candidate.attempt(Lane::Push, patience)).await;
            match (&subscribed, &outcome) {
                (Ok(_), _) => subscription.since = Some(gaps),
                // The first found the connection dead and the second made a new one: once more.
                (Err(_), Ok(Outcome::Refused { .. })) if again => {
                    again = false;
                    continue;
                }
                _ => {}
            }
            return outcome;
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.local.leave_queue() && self.local.take_listening() {
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
    // In this order: whoever leaves after the look at the waiters finds it to be taken back.
    local.note_listening();
    if local.waiters() > 0 || !local.take_listening() {
        return;
    }
    let Subscription { channel, .. } = std::mem::take(&mut *subscription);
    let Some(channel) = channel else {
        return;
    };
    core.locals.ignore(&channel);
    let command = push_command("UNSUBSCRIBE", &channel);
    let transport = &core.scripts.transport;
    // If it is not answered the connection is replaced, and with it all subscriptions.
    let _ = transport
        .send(Lane::Push, &route, &command, core.timing.reply)
        .await;
}

fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
