//! Listening for the release of a lock without asking for it: for who asks several servers at once.
//!
//! It shares the subscription with those who wait for this lock at this server alone. What it hears is
//! a hint, and so is a gap; that it hears nothing means nothing.

use std::sync::Arc;
use std::time::Duration;

use super::LockRequest;
use super::waiter::{LINGER, push_command, stop_listening};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::hint::Hint;
use crate::hold::local::LocalLock;
use crate::hold::subscription::SubscriptionState;

/// How often it is looked whether the subscription still stands, in times of the poll cap.
const POLLS: u32 = 4;

/// Gives `released` whenever this lock may have become free, until it is dropped.
pub(crate) async fn subscribe(request: LockRequest, released: Arc<Hint>) {
    let local = request
        .core
        .locals
        .get_or_insert(request.protocol.kind(), request.name.key());
    let subscriber = Subscriber::new(&request, &local);
    let clock = request.core.clock;
    loop {
        let mark = local.hint().mark();
        if !request.core.is_closed() && subscriber.subscribe().await {
            // What was told before the server had the subscription was missed.
            released.give();
        }
        let until = clock.now().after(request.core.timing.poll_cap * POLLS);
        tokio::select! {
            () = local.hint().past(mark) => released.give(),
            () = clock.sleep_until(until) => {}
        }
    }
}

/// Counts as listening until dropped.
struct Subscriber<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
}

impl<'a> Subscriber<'a> {
    fn new(request: &'a LockRequest, local: &'a Arc<LocalLock>) -> Self {
        local.subscription.add_listener();
        Self { request, local }
    }

    /// Subscribes if need be. True if that was needed, and done.
    async fn subscribe(&self) -> bool {
        let (core, listening) = (&self.request.core, &self.local.subscription);
        let reply: Duration = core.timing.reply;
        let now: Tick = core.clock.now();
        if !listening.may_subscribe(now) {
            return false;
        }
        let locked = core.clock.within(reply, listening.state.lock());
        let Some(mut subscription) = locked.await else {
            return false;
        };
        let gaps = core.locals.gaps();
        if subscription.since == Some(gaps) {
            return false;
        }
        let channel = self.request.name.lock_channel();
        // Before the next await: whoever gives up from here on leaves it to be taken back.
        listening.mark_subscribed();
        core.locals.listen(&channel, listening);
        let command = push_command(core.channels().subscribe(), &channel);
        *subscription = SubscriptionState {
            channel: Some(channel),
            since: None,
        };
        let route = self.request.name.key();
        let transport = &core.scripts.transport;
        let subscribed = transport.send(Lane::Push, route, &command, reply).await;
        match subscribed {
            Ok(_) => {
                subscription.since = Some(gaps);
                true
            }
            Err(_) => {
                listening.retry_after(core.clock.now().after(core.timing.poll_cap * POLLS));
                false
            }
        }
    }
}

impl Drop for Subscriber<'_> {
    fn drop(&mut self) {
        let listening = &self.local.subscription;
        if listening.remove_listener() {
            stop_listening(self.request, self.local, listening, LINGER);
        }
    }
}
