//! A wake-up that can be given before, during or after the wait for it.
//!
//! A hint carries no fact: a task that wakes looks again. It is a counter with waiters, so a hint given between the
//! look and the wait is not missed, and a hint without a waiter costs one more look.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Hint {
    count: AtomicU64,
    /// How many messages of the server reported the end of a hold that kept out all others, or of a wait for one.
    ends: AtomicU64,
    /// How many tasks wait, as most hints have no waiter. A waiter counts itself before it looks, and a hint is counted
    /// before this is read, all in one order. So at least one of the two sees the other.
    waiters: AtomicUsize,
    waiting: Notify,
}

/// Counts as waiting until dropped.
struct WaiterCount<'a>(&'a AtomicUsize);

impl<'a> WaiterCount<'a> {
    fn begin(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::SeqCst);
        Self(waiters)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The number of hints given before the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Hint {
    /// Returns the mark for a wait. Take it before looking, so that a change after the look ends the wait.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.count.load(Ordering::SeqCst))
    }

    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.waiting.notify_waiters();
        }
    }

    /// Gives a hint that came as a message: a hold that kept out all others has ended, or a wait for one.
    pub(crate) fn notify_of_end(&self) {
        self.ends.fetch_add(1, Ordering::Release);
        self.notify();
    }

    /// How many such messages have come.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::Acquire)
    }

    /// Resolves once a hint was given after `mark`. Cancel safe.
    pub(crate) async fn changed_since(&self, mark: Mark) {
        let _waits = WaiterCount::begin(&self.waiters);
        loop {
            let woken = self.waiting.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.mark() != mark {
                return;
            }
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

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
        assert_eq!(hint.waiters.load(Ordering::SeqCst), 0);
    }
}
