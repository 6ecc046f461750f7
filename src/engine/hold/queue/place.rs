//! The place of one task in the local queue of a lock, or in the queue at its server.
//!
//! Invariant: a share that was handed to a place is dropped without the mutex if its task leaves.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{Entry, Queue, Stage, Wants};
use crate::api::holder::HolderId;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::hold::followers::{Followers, Resting};
use crate::engine::hold::handoff::Handoff;
use crate::engine::hold::local::LocalLock;

/// A place in the local queue of a lock. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace<'a> {
    lock: &'a LocalLock,
    number: u64,
}

impl<'a> QueuePlace<'a> {
    /// See [`Queue::push`].
    pub(crate) fn take(lock: &'a LocalLock, wants: Wants) -> Self {
        let number = lock.lock().with_queue(|queue| queue.push(wants));
        Self { lock, number }
    }

    /// The number of the place. Later places have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is at the head. Counts as coming: a waiter that was passed over is next again.
    pub(crate) fn is_head(&self) -> bool {
        self.with_queue(|queue| queue.come(self.number))
    }

    /// Whether a waiter before it wants the lock alone.
    pub(crate) fn is_behind_alone(&self) -> bool {
        let first = self.lock.lock().queue().first_alone;
        first.is_some_and(|first| first < self.number)
    }

    /// Resolves when this place is at the head, or when the client is closed. Cancel safe.
    pub(crate) async fn turn(&self) {
        let turn = |context: &mut Context<'_>| {
            self.with_queue(|queue| {
                if queue.come(self.number) || queue.is_closed {
                    return Poll::Ready(());
                }
                queue.entry(self.number).wait(context);
                Poll::Pending
            })
        };
        poll_fn(turn).await;
    }

    /// Resolves when this place was handed a share. Cancel safe.
    pub(crate) async fn handed_off(&self) {
        let handed_off = |context: &mut Context<'_>| {
            self.with(|entry| {
                if let Stage::Handed(_) = entry.stage {
                    return Poll::Ready(());
                }
                entry.wait(context);
                Poll::Pending
            })
        };
        poll_fn(handed_off).await;
    }

    /// Takes out the share that this place was handed.
    pub(crate) fn take_handoff(&self) -> Option<Handoff> {
        self.with(Entry::take_handoff)
    }

    /// Takes out the share that this place was handed. If there is none, notes that the waiter now asks the server: it
    /// is handed nothing until it rests again.
    pub(crate) fn begin_attempt(&self) -> Option<Handoff> {
        self.with(|entry| {
            let handoff = entry.take_handoff();
            if handoff.is_none() {
                entry.stage = Stage::Asking;
            }
            handoff
        })
    }

    /// Notes that the waiter no longer asks the server. It need not come until there is a hint after `seen`, or `until`
    /// is reached.
    pub(crate) fn rest(&self, seen: Mark, until: Tick) {
        self.with(|entry| {
            if !matches!(entry.stage, Stage::Handed(_)) {
                entry.stage = Stage::Resting(seen, until);
            }
        });
    }

    fn with<X>(&self, change: impl FnOnce(&mut Entry) -> X) -> X {
        self.with_queue(|queue| {
            let entry = queue.entry(self.number);
            entry.missed = 0;
            change(entry)
        })
    }

    fn with_queue<X>(&self, work: impl FnOnce(&mut Queue) -> X) -> X {
        self.lock.lock().with_queue(work)
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let left = self.with_queue(|queue| queue.leave(self.number));
        // Dropped outside the mutex: its hand-off is released, or handed off again.
        drop(left);
    }
}

/// A waiter that rests with a place at the server. Listed until dropped.
#[derive(Debug)]
pub(crate) struct RestingPlace<'a> {
    lock: &'a LocalLock,
    place: HolderId,
}

impl<'a> RestingPlace<'a> {
    pub(crate) fn take(lock: &'a LocalLock, place: HolderId, waiter: Resting) -> Self {
        (lock.lock()).with_followers(|followers, _| followers.rest(place, waiter));
        Self { lock, place }
    }

    /// Whether something wakes the waiter when it has to ask.
    pub(crate) fn is_told(&self) -> bool {
        self.with(|followers, place| followers.is_told(place))
    }

    pub(crate) fn with<X>(&self, work: impl FnOnce(&mut Followers, &HolderId) -> X) -> X {
        (self.lock.lock()).with_followers(|followers, _| work(followers, &self.place))
    }
}

impl Drop for RestingPlace<'_> {
    fn drop(&mut self) {
        let left = self.with(Followers::end_rest);
        // Dropped outside the mutex, as above.
        drop(left);
    }
}
