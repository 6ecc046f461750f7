//! Keeps attempts behind the subscriptions that they rely on, where the two take different connections.
//!
//! Invariant: a command that passes the barrier of a slot has waited for every earlier subscription in that slot, at
//! any node.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::hint::{Hint, Mark};

#[derive(Debug, Default)]
pub(super) struct SubscribeBarrier {
    /// The subscriptions in flight, by slot.
    in_flight: Mutex<HashMap<u16, Vec<Arc<Hint>>>>,
}

impl SubscribeBarrier {
    /// Begins a subscription, which ends when the result is dropped.
    pub(super) fn begin(&self, slot: u16) -> Subscribing<'_> {
        let ended = Arc::<Hint>::default();
        let mut in_flight = self.in_flight.lock();
        in_flight.entry(slot).or_default().push(Arc::clone(&ended));
        Subscribing {
            barrier: self,
            slot,
            ended,
        }
    }

    /// The subscriptions that are in flight now.
    pub(super) fn pending(&self, slot: u16) -> Pending {
        let in_flight = self.in_flight.lock();
        let pending = in_flight.get(&slot).into_iter().flatten();
        Pending(
            pending
                .map(|ended| (Arc::clone(ended), ended.mark()))
                .collect(),
        )
    }
}

pub(super) struct Subscribing<'a> {
    barrier: &'a SubscribeBarrier,
    slot: u16,
    ended: Arc<Hint>,
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.barrier.in_flight.lock();
        if let Some(pending) = in_flight.get_mut(&self.slot) {
            pending.retain(|ended| !Arc::ptr_eq(ended, &self.ended));
            if pending.is_empty() {
                in_flight.remove(&self.slot);
            }
        }
        drop(in_flight);
        self.ended.notify();
    }
}

pub(super) struct Pending(Vec<(Arc<Hint>, Mark)>);

impl Pending {
    /// Resolves when all of them have ended.
    pub(super) async fn ended(self) {
        for (ended, mark) in self.0 {
            ended.changed_since(mark).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn an_attempt_waits_for_subscriptions_that_began_before_it_in_its_slot() {
        let barrier = SubscribeBarrier::default();
        let first = barrier.begin(7);
        let second = barrier.begin(7);
        let pending = barrier.pending(7);
        let third = barrier.begin(7);
        let mut passed = Box::pin(pending.ended());
        assert!(barrier.pending(8).ended().now_or_never().is_some());
        drop(second);
        assert!(passed.as_mut().now_or_never().is_none());
        drop(first);
        assert!(passed.now_or_never().is_some(), "the third came later");
        assert!(barrier.pending(7).ended().now_or_never().is_none());
        drop(third);
        assert!(barrier.pending(7).ended().now_or_never().is_some());
        assert!(barrier.in_flight.lock().is_empty());
    }
}
