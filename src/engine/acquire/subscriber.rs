//! Subscribes to the releases of a lock, for a caller that asks several servers at once and so waits at none of them.
//!
//! The subscription is shared with the waiters for this lock at this server alone. Messages and gaps are hints. Silence
//! proves nothing.

use std::sync::Arc;

use super::recall::recall;
use super::request::LockRequest;
use super::subscribe::{LINGER, subscribing, unsubscribe_later};
use crate::conn::Lane;
use crate::engine::hint::Hint;
use crate::engine::hold::local::LocalLock;

/// The number of poll caps between two checks of the subscription.
const POLLS: u32 = 4;

/// Gives `released` each time the lock may have become free, until dropped.
pub(crate) async fn subscribe(request: LockRequest, released: Arc<Hint>) {
    let local = &request.local;
    let subscriber = Subscriber::new(&request);
    let clock = request.core.clock;
    loop {
        let mark = local.hint().mark();
        if !request.core.is_closed() {
            recall(&request, local);
        }
        if !request.core.is_closed() && subscriber.subscribe().await {
            // A message sent before the subscription began was missed.
            released.give();
        }
        let until = clock.now().after(request.core.timing.poll_cap * POLLS);
        tokio::select! {
            biased;
            () = local.hint().past(mark) => released.give(),
            () = clock.sleep_until(until) => {}
        }
    }
}

/// Counts as a listener until dropped.
struct Subscriber<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
}

impl<'a> Subscriber<'a> {
    fn new(request: &'a LockRequest) -> Self {
        let local = &request.local;
        local.subscription.add_listener();
        Self { request, local }
    }

    /// Subscribes if it is necessary. Returns whether it made a new subscription.
    async fn subscribe(&self) -> bool {
        let (core, subscription) = (&self.request.core, &self.local.subscription);
        let reply = core.timing.reply;
        if !subscription.may_subscribe(core.clock.now()) {
            return false;
        }
        let locked = core.clock.within(reply, subscription.state.lock());
        let Some(mut state) = locked.await else {
            return false;
        };
        let gaps = core.locals.gaps();
        if state.since == Some(gaps) {
            return false;
        }
        let channel = self.request.name.lock_channel();
        let command = subscribing(core, subscription, &mut state, channel);
        let route = self.request.name.key();
        let transport = &core.scripts.transport;
        let subscribed = transport.send(Lane::Push, route, &command, reply).await;
        if subscribed.is_ok() {
            state.since = Some(gaps);
        } else {
            subscription.retry_after(core.clock.now().after(core.timing.poll_cap * POLLS));
        }
        subscribed.is_ok()
    }
}

impl Drop for Subscriber<'_> {
    fn drop(&mut self) {
        let subscription = &self.local.subscription;
        if subscription.remove_listener() {
            unsubscribe_later(self.request, self.local, subscription, LINGER);
        }
    }
}
