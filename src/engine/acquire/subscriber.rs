//! Subscribes to the releases of a lock, for a caller that asks several servers at once and so waits at none of them.
//!
//! The subscription is shared with the waiters for this lock at this server alone. Messages and gaps are hints. Silence
//! proves nothing.

use std::sync::Arc;

use super::recall::recall;
use super::request::LockRequest;
use super::subscribe::{LINGER, unsubscribe_later};
use crate::engine::hint::Hint;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscribing;

/// The number of poll caps between two checks of the subscription.
const POLLS: u32 = 4;

/// Counts as a listener until dropped: a subscription of its client to the lock does not end.
pub(crate) struct Subscriber<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
}

impl<'a> Subscriber<'a> {
    pub(crate) fn new(request: &'a LockRequest) -> Self {
        let local = &request.local;
        local.subscription.add_listener();
        Self { request, local }
    }

    /// Gives `released` each time the lock may have become free. Never ends.
    pub(crate) async fn listen(&self, released: &Hint) {
        let (core, local) = (&self.request.core, self.local);
        loop {
            let mark = local.hint().mark();
            if !core.is_closed() {
                recall(self.request, local);
            }
            if !core.is_closed() && self.subscribe().await {
                // A message sent before the subscription began was missed.
                released.notify();
            }
            let until = core.clock.now().after(core.timing.poll_cap * POLLS);
            tokio::select! {
                biased;
                () = local.hint().changed_since(mark) => released.notify(),
                () = core.clock.sleep_until(until) => {}
            }
        }
    }

    /// Subscribes if it is necessary. Returns whether it made a new subscription.
    async fn subscribe(&self) -> bool {
        let (core, subscription) = (&self.request.core, &self.local.subscription);
        let reply = core.timing.reply;
        if !subscription.may_subscribe(core.clock.now()) {
            return false;
        }
        if subscription.state.lock().since == Some(core.locals.gaps()) {
            return false;
        }
        let (route, channel) = (self.request.name.key(), self.request.name.lock_channel());
        let is_subscribed =
            subscribing::subscribe(core, subscription, route, &channel, reply).await;
        if !is_subscribed {
            subscription.retry_after(core.clock.now().after(core.timing.poll_cap * POLLS));
        }
        is_subscribed
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
