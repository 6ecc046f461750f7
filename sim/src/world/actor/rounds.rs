//! Latches and barriers.

use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use parking_lot::Mutex;

use super::{Actor, patient};
use crate::world::checks::Checks;
use crate::world::names::names;
use crate::world::plan::{Op, Verb};

/// Count-downs that open a latch, and parties of a barrier.
const COUNT: u64 = 3;
const PARTIES: u32 = 2;

/// A party waits for at most this long.
const PARTY_WAIT: Duration = Duration::from_secs(2);

/// A party that waits, for the checks.
struct Waits {
    name: String,
    checks: Arc<Mutex<Checks>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.checks.lock().rounds.leaves(&self.name);
    }
}

impl Actor {
    /// Closes a latch, counts it down, or waits for it.
    pub(super) async fn count(&self, op: &Op) -> Result<()> {
        let name = names(op.kind, op.lock).remove(0);
        let latch = patient!(self.client.latch(&name), op);
        match op.verb {
            Verb::Try => {
                self.ended(latch.init(COUNT)).await?;
            }
            Verb::TryFor(wait) => {
                let seen = self.checks.lock().rounds.waits(&name);
                if self.ended(latch.wait_for(wait)).await? {
                    let wrong = self.checks.lock().rounds.found_open(&name, seen);
                    self.violated(wrong);
                }
            }
            Verb::Lock | Verb::Force | Verb::Evict => {
                self.checks.lock().rounds.counts_down(&name);
                let id = op.is_fenced.then(|| format!("{}", self.process));
                let has_counted = match &id {
                    Some(id) => self.ended(latch.count_down_as(id)).await?,
                    None => self.ended(latch.count_down()).await.map(|()| true)?,
                };
                let mut checks = self.checks.lock();
                let wrong = checks.rounds.counted_down(&name, has_counted, id);
                drop(checks);
                self.violated(wrong);
            }
        }
        Ok(())
    }

    /// Comes to a barrier, and waits for the others.
    pub(super) async fn meet(&self, op: &Op) -> Result<()> {
        let name = names(op.kind, op.lock).remove(0);
        let barrier = patient!(self.client.barrier(&name, PARTIES), op);
        let wait = match op.verb {
            Verb::TryFor(wait) => wait,
            _ => PARTY_WAIT,
        };
        let seen = self.checks.lock().rounds.comes(&name);
        let _waits = Waits {
            name: name.clone(),
            checks: Arc::clone(&self.checks),
        };
        match self.ended(barrier.wait_for(wait)).await {
            Ok(_) => {
                let wrong = self.checks.lock().rounds.passes(&name, seen);
                self.violated(wrong);
                Ok(())
            }
            Err(error) if error.is_broken() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn violated(&self, wrong: Option<String>) {
        wrong
            .into_iter()
            .for_each(|what| self.checks.lock().violate(what));
    }
}
