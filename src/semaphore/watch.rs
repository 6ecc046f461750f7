//! The task that wakes the queue of a semaphore: at messages, and at its times.

use std::sync::Weak;

use super::client::{ClientSemaphore, InHand};
use super::queue::Event;
use crate::api::backoff::Backoff;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::listen::Listener;

impl ClientSemaphore {
    /// Wakes the queue at messages and at its times, for as long as a request waits.
    pub(super) async fn watch(semaphore: Weak<Self>, polled: Option<Backoff>) {
        let mut listening: Option<(Listener, Mark)> = None;
        while let Some(this) = semaphore.upgrade() {
            let changed = this.changed.mark();
            let Some((wake_at, is_contended)) = this.plan() else {
                return;
            };
            let mut event = Event::Timer;
            if is_contended && polled.is_none() {
                let is_first = listening.is_none();
                let (listener, seen) = listening.get_or_insert_with(|| this.listen());
                let heard = async {
                    // A new subscription has missed earlier messages. One that was there may have delivered a message
                    // before the refusal arrived.
                    if listener.subscribe().await || is_first {
                        return Event::Woken;
                    }
                    listener.wait(*seen, wake_at).await;
                    Event::Timer
                };
                event = tokio::select! {
                    biased;
                    event = heard => event,
                    () = this.changed.changed_since(changed) => Event::Timer,
                    () = this.core.clock.sleep_until(wake_at) => Event::Timer,
                };
                // A message that comes after this look ends the next wait at once.
                let now_seen = listener.mark();
                if now_seen != *seen {
                    (*seen, event) = (now_seen, Event::Woken);
                }
            } else {
                tokio::select! {
                    biased;
                    () = this.core.clock.sleep_until(wake_at) => {}
                    () = this.changed.changed_since(changed) => {}
                }
            }
            this.on(event, InHand::Nothing);
        }
    }

    /// When the queue has to be woken, and whether it needs messages. `None` ends the watch.
    fn plan(&self) -> Option<(Tick, bool)> {
        let mut state = self.state.lock();
        let wake_at = state.queue.wake_at();
        state.is_watched = wake_at.is_some() && !self.core.is_closed();
        state.wakes_at = wake_at.unwrap_or(Tick::NEVER);
        state.listens = state.queue.is_contended();
        state.is_watched.then_some((state.wakes_at, state.listens))
    }

    fn listen(&self) -> (Listener, Mark) {
        let channel = self.origin.name.semaphore_channel();
        let listener = Listener::new(&self.core, self.origin.name.key(), &channel);
        let seen = listener.mark();
        (listener, seen)
    }
}
