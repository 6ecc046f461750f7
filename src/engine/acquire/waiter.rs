//! A waiter for one lock and its subscription.
//!
//! All waiters of a client for one lock share one subscription. Where the lock queues at the server, each waiter has
//! its own. The client begins to listen when the head of the queue was refused, and stops when the last waiter has
//! left. Messages, gaps and the beginning of the subscription are hints. Silence proves nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::OptionFuture;

use super::local::wait_for_owner;
use super::request::LockRequest;
use crate::api::holder::HolderId;
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark, OwnersWaiter};
use crate::engine::hold::bound::Silence;
use crate::engine::hold::followers::Resting;
use crate::engine::hold::handoff::HandoffRequest;
use crate::engine::hold::protocol::Queue;
use crate::engine::hold::queue::place::QueuePlace;
use crate::engine::hold::subscription::{GrantMessage, Subscription};
use crate::engine::listen::{LINGER, Listener, end_later};

/// Counts as a waiter until dropped.
pub(crate) struct Waiter<'a> {
    request: &'a LockRequest,
    /// The waiter's own subscription, if the lock queues at the server.
    own: Option<Arc<Subscription>>,
    /// The entry of a call with an owner among the waiters of that owner.
    owner_waiters: Option<OwnersWaiter<'a>>,
}

/// The marks of all hints that end a wait. Take them before a check, so that an event after the check ends the wait.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    messages: Mark,
    owner_waiters: Option<Mark>,
    closing: Mark,
}

/// The event that ended a wait.
pub(crate) enum Woken {
    /// Another task of this client handed the lock to this waiter.
    HandedOff,
    /// The lock may be free: ask the server.
    Hint,
    /// There may be a hold of the owner to enter, or the client is being closed.
    Gained,
    Timer,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(request: &'a LockRequest) -> Self {
        request.local.waiting.fetch_add(1, Ordering::SeqCst);
        let waiter = Self {
            request,
            own: (request.protocol.queue() == Queue::Server).then(Arc::default),
            owner_waiters: wait_for_owner(request),
        };
        waiter.subscription().add_listener();
        waiter
    }

    fn subscription(&self) -> &Arc<Subscription> {
        self.own
            .as_ref()
            .unwrap_or(&self.request.local.subscription)
    }

    /// The silence of the server towards the waiters that share this subscription.
    pub(super) fn silence(&self) -> &Silence {
        &self.subscription().silence
    }

    fn owner_waiters(&self) -> Option<&Hint> {
        self.owner_waiters.as_ref().map(OwnersWaiter::hint)
    }

    /// Describes this waiter for the list of waiters that rest with a place at the server. The server keeps the place
    /// until `kept_until` at least. `None` if the waiter queues in its client.
    pub(super) fn resting(
        &self,
        channel: &str,
        follows: Option<(HolderId, HandoffRequest)>,
        kept_until: Tick,
    ) -> Option<Resting> {
        let waiter = Arc::clone(self.own.as_ref()?);
        let is_listening = self.is_listening(channel);
        Some(Resting::new(waiter, is_listening, follows, kept_until))
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            owner_waiters: self.owner_waiters().map(Hint::mark),
            closing: self.request.core.closing.mark(),
        }
    }

    /// Marks as of now, except for messages, which keep the mark of `before`.
    pub(super) fn marks_but_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: before.messages,
            ..self.marks()
        }
    }

    /// Notes in the local queue that this waiter need not come before `until`, and may be handed the lock.
    pub(crate) fn rest(&self, marks: Marks, place: Option<&QueuePlace<'_>>, until: Tick) {
        if let Some(place) = place {
            place.rest(marks.messages, until);
        }
    }

    /// The marks of `before`, with messages as of now.
    pub(crate) fn marks_after_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            ..before
        }
    }

    /// Waits for an event after `marks`, for a hand-off to the waiter's place, or for the time `at`.
    pub(crate) async fn wait(
        &self,
        marks: Marks,
        place: Option<&QueuePlace<'_>>,
        at: Tick,
    ) -> Woken {
        let handoff = OptionFuture::from(place.map(QueuePlace::handed_off));
        let owner_waiters = self.owner_waiters().zip(marks.owner_waiters);
        // Boxed: most calls have no owner.
        let gained = owner_waiters.map(|(hint, mark)| Box::pin(hint.changed_since(mark)));
        let gained = OptionFuture::from(gained);
        // Boxed: most waiters wait for their turn instead.
        Box::pin(async {
            tokio::select! {
                biased;
                Some(()) = handoff => Woken::HandedOff,
                () = self.subscription().hint.changed_since(marks.messages) => Woken::Hint,
                Some(()) = gained => Woken::Gained,
                () = self.request.core.closing.changed_since(marks.closing) => Woken::Gained,
                () = self.request.core.clock.sleep_until(at) => Woken::Timer,
            }
        })
        .await
    }

    /// The message that handed the lock over, if one came on this channel.
    pub(super) fn take_grant_message(&self, channel: &str) -> Option<GrantMessage> {
        self.subscription().take_grant_message(channel)
    }

    /// Whether messages on this channel reach the client, as far as it knows.
    pub(super) fn is_listening(&self, channel: &str) -> bool {
        let gaps = self.request.core.locals.gaps();
        self.subscription().is_heard(channel, gaps)
    }

    /// Whether messages on this channel reach the client. If they do not, the client begins to listen, and the waiter
    /// gets a hint once they do.
    pub(super) fn listen(&self, channel: &str) -> bool {
        let is_polled = self.request.options.polled.is_some();
        !is_polled && (self.is_listening(channel) || self.listener(channel).subscribe())
    }

    /// As [`listen`](Self::listen), after a sleep without a message: also checks that the connection for messages is
    /// alive. False if the waiter has only now begun to listen.
    pub(super) fn check_connection(&self, channel: &str) -> bool {
        let is_heard = self.listen(channel);
        if is_heard {
            self.listener(channel).check_connection();
        }
        is_heard || self.request.options.polled.is_some()
    }

    fn listener(&self, channel: &str) -> Listener {
        let LockRequest { core, local, .. } = self.request;
        Listener::of_waiter(core, local, self.subscription(), channel)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let core = &self.request.core;
        let subscription = self.subscription();
        if subscription.remove_listener() {
            let linger = match self.own {
                None => LINGER,
                Some(_) => Duration::ZERO,
            };
            let local = Some(Arc::clone(&self.request.local));
            end_later(core, subscription, self.request.name.key(), local, linger);
        }
        self.request.local.waiting.fetch_sub(1, Ordering::SeqCst);
        if core.is_closed() {
            core.locals.waiter_left.notify();
        }
    }
}
