//! Keeps attempts behind the subscriptions they belong to, where the two take different connections.
//!
//! Invariant: what passes for a slot was asked to wait for every subscription in that slot that began
//! before it, and each of those has ended, wherever the cluster sent it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hint::{Hint, Mark};

#[derive(Debug, Default)]
pub(super) struct Gate {
    /// For each slot the subscriptions under way.
    busy: Mutex<HashMap<u16, Vec<Arc<Hint>>>>,
}

impl Gate {
    /// A subscription begins, and ends when what is returned is dropped.
    pub(super) fn enter(&self, slot: u16) -> Subscribing<'_> {
        let ended = Arc::<Hint>::default();
        let mut busy = self.busy.lock();
        busy.entry(slot).or_default().push(Arc::clone(&ended));
        Subscribing {
            gate: self,
            slot,
            ended,
        }
    }

    /// What is under way now.
    pub(super) fn ahead(&self, slot: u16) -> Ahead {
        let busy = self.busy.lock();
        let ahead = busy.get(&slot).into_iter().flatten();
        Ahead(
            ahead
                .map(|ended| (Arc::clone(ended), ended.mark()))
                .collect(),
        )
    }
}

pub(super) struct Subscribing<'a> {
    gate: &'a Gate,
    slot: u16,
    ended: Arc<Hint>,
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        let mut busy = self.gate.busy.lock();
        if let Some(ahead) = busy.get_mut(&self.slot) {
            ahead.retain(|ended| !Arc::ptr_eq(ended, &self.ended));
            if ahead.is_empty() {
                busy.remove(&self.slot);
            }
        }
        drop(busy);
        self.ended.give();
    }
}

pub(super) struct Ahead(Vec<(Arc<Hint>, Mark)>);

impl Ahead {
    /// Resolves when all of it has ended.
    pub(super) async fn passed(self) {
        for (ended, mark) in self.0 {
            ended.past(mark).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_comes_later_waits_for_what_began_before_in_its_slot() {
        let gate = Gate::default();
        let first = gate.enter(7);
        let second = gate.enter(7);
        let ahead = gate.ahead(7);
        let third = gate.enter(7);
        let mut passed = Box::pin(ahead.passed());
        assert!(gate.ahead(8).passed().now_or_never().is_some());
        drop(second);
        assert!(passed.as_mut().now_or_never().is_none());
        drop(first);
        assert!(passed.now_or_never().is_some(), "the third came later");
        assert!(gate.ahead(7).passed().now_or_never().is_none());
        drop(third);
        assert!(gate.ahead(7).passed().now_or_never().is_some());
        assert!(gate.busy.lock().is_empty());
    }
}
