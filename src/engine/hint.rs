//! Wake-ups between the tasks of a client, and a value that one task waits for.
//!
//! A hint can be given before, during or after the wait for it. It carries no fact: a task that wakes looks again. It
//! is a counter with waiters, so a hint given between the look and the wait is not missed, and a hint without a waiter
//! costs one more look.
//!
//! When a task gets the lock, the waiters with the same owner are woken, because they can enter the hold. Invariant: a
//! waiter is listed before it looks for a hold of its owner, and a hold has a guard before its owner is looked up here.
//! So either the waiter finds the hold or the hold finds the waiter. A grant wakes no waiter of other owners.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::api::holder::Owner;

#[derive(Debug, Default)]
pub(crate) struct Hint {
    count: AtomicU32,
    /// Made by the first waiter, because most hints have none. A waiter makes it before it reads the count, and
    /// `notify` counts before it reads this, each with a fence between the two. So at least one of them sees the other.
    waiting: OnceLock<Box<Notify>>,
}

/// The number of hints that were given before the last look. It would be equal again only after 2^32 hints in one wait,
/// and each wait has a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Mark(u32);

impl Hint {
    /// Returns the mark for a wait. Take it before looking, so that a change after the look ends the wait.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.count.load(Ordering::SeqCst))
    }

    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(waiting) = self.waiting.get() {
            waiting.notify_waiters();
        }
    }

    /// Resolves once a hint was given after `mark`. Cancel safe.
    pub(crate) fn changed_since(&self, mark: Mark) -> impl Future<Output = ()> + Send {
        // Not an `async fn`, which would store its arguments twice in each waiter.
        let waiting = self.waiting.get_or_init(Box::default);
        fence(Ordering::SeqCst);
        async move {
            loop {
                let mut woken = pin!(waiting.notified());
                woken.as_mut().enable();
                if self.mark() != mark {
                    return;
                }
                woken.await;
            }
        }
    }
}

/// A value that one task waits for, and the waker of that task. Only the first value counts.
#[derive(Debug)]
pub(crate) struct Arrival<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Default for Arrival<T> {
    fn default() -> Self {
        Self(Mutex::new((None, None)))
    }
}

impl<T> Arrival<T> {
    pub(crate) fn put(&self, value: T) {
        let waiting = {
            let (arrived, waiting) = &mut *self.0.lock();
            arrived.get_or_insert(value);
            waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Takes out the value, or stores the waker of this task for when it arrives.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<T> {
        let (arrived, waiting) = &mut *self.0.lock();
        if let Some(value) = arrived.take() {
            return Poll::Ready(value);
        }
        set_waker(waiting, context);
        Poll::Pending
    }
}

/// Stores the waker of this task, in place of any other.
pub(crate) fn set_waker(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
}

/// The hint of each owner that has waiters, and the number of its waiters.
#[derive(Debug, Default)]
pub(crate) struct OwnerWaiters(Mutex<FxHashMap<Owner, (Arc<Hint>, usize)>>);

/// Counts as a waiter of its owner until dropped.
#[derive(Debug)]
pub(crate) struct OwnersWaiter<'a> {
    all: &'a OwnerWaiters,
    owner: &'a Owner,
    hint: Arc<Hint>,
}

impl OwnerWaiters {
    /// Lists a waiter of this owner.
    pub(crate) fn wait_as<'a>(&'a self, owner: &'a Owner) -> OwnersWaiter<'a> {
        let mut by_owner = self.0.lock();
        let (hint, waiters) = by_owner.entry(owner.clone()).or_default();
        *waiters += 1;
        OwnersWaiter {
            all: self,
            owner,
            hint: Arc::clone(hint),
        }
    }

    /// Wakes the waiters of an owner that has just got the lock.
    pub(crate) fn notify(&self, owner: &Owner) {
        let known = self.0.lock().get(owner).cloned();
        if let Some((hint, _)) = known {
            hint.notify();
        }
    }
}

impl OwnersWaiter<'_> {
    /// Signalled when another task of the owner gets the lock.
    pub(crate) fn hint(&self) -> &Hint {
        &self.hint
    }
}

impl Drop for OwnersWaiter<'_> {
    fn drop(&mut self) {
        let mut by_owner = self.all.0.lock();
        if let Some((_, waiters)) = by_owner.get_mut(self.owner) {
            *waiters -= 1;
            if *waiters == 0 {
                by_owner.remove(self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test]
    async fn a_hint_given_before_the_wait_is_not_missed() {
        let hint = Hint::default();
        let mark = hint.mark();
        hint.notify();
        assert!(hint.changed_since(mark).now_or_never().is_some());
        assert!(hint.changed_since(hint.mark()).now_or_never().is_none());
    }

    #[tokio::test]
    async fn one_hint_wakes_everybody_who_waits() {
        let hint = Hint::default();
        let mark = hint.mark();
        let both = async { tokio::join!(hint.changed_since(mark), hint.changed_since(mark)) };
        tokio::join!(both, async { hint.notify() });
    }

    /// One thread gives the hint while another begins to wait.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hint_given_at_the_same_moment_is_not_missed() {
        let hint = Arc::new(Hint::default());
        for round in 0..2_000 {
            let mark = hint.mark();
            let giver = Arc::clone(&hint);
            let giving = tokio::spawn(async move { giver.notify() });
            let waited =
                tokio::time::timeout(Duration::from_secs(20), hint.changed_since(mark)).await;
            assert!(waited.is_ok(), "round {round}");
            giving.await.unwrap();
        }
    }

    #[test]
    fn a_grant_wakes_the_waiters_of_its_owner_alone() {
        let owner_waiters = OwnerWaiters::default();
        let owners = [Owner::new(), Owner::new()];
        let waiters = [0, 0, 1].map(|at: usize| owner_waiters.wait_as(&owners[at]));
        let marks = waiters.each_ref().map(|waiter| waiter.hint().mark());
        owner_waiters.notify(&owners[0]);
        let woken = [0, 1, 2].map(|at| waiters[at].hint().mark() != marks[at]);
        assert_eq!(woken, [true, true, false]);
        let [first, second, third] = waiters;
        drop((first, third));
        assert_eq!(owner_waiters.0.lock().len(), 1);
        drop(second);
        assert!(owner_waiters.0.lock().is_empty());
    }

    /// A grant wakes the waiters of its owner while the last of them leaves.
    #[test]
    fn nothing_is_kept_of_an_owner_whose_last_waiter_leaves_beside_a_grant() {
        let owner_waiters = OwnerWaiters::default();
        let owner = Owner::new();
        let waiter = owner_waiters.wait_as(&owner);
        let granted = owner_waiters.0.lock().get(&owner).cloned();
        drop(waiter);
        drop(granted);
        assert!(owner_waiters.0.lock().is_empty());
    }
}
