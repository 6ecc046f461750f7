//! The operator's actions: ending all holds of a lock, or the hold of one holder.

use lockset::operator::Holds;

use super::Actor;
use crate::world::names::names;
use crate::world::plan::{Kind, Op};

impl Actor {
    pub(super) async fn force(&self, op: &Op) {
        let name = &names(op.kind, op.lock)[0];
        self.checks.lock().forces(name);
        let freed = async {
            match op.kind {
                Kind::Fair => self.client.fair_lock(name).force_unlock().await,
                Kind::Read => self.client.rw_lock(name).read_side().force_unlock().await,
                Kind::Write => self.client.rw_lock(name).write_side().force_unlock().await,
                _ => self.client.lock(name).force_unlock().await,
            }
        };
        let freed = self.ended(freed).await;
        let mut checks = self.checks.lock();
        checks.note(|| format!("process {} forces {name}: {freed:?}", self.process));
        if freed.is_ok() {
            checks.forced(name);
        }
    }

    /// Takes the lock away from one holder, if there is one.
    pub(super) async fn evict(&self, op: &Op) {
        let name = &names(op.kind, op.lock)[0];
        let Some(holder) = self.checks.lock().holder_of(name) else {
            return;
        };
        self.checks.lock().forces(name);
        let (client, holder) = (&self.client, &*holder);
        let freed = async {
            match op.kind {
                Kind::Fair => end(Holds::from(&client.fair_lock(name)), holder).await,
                Kind::Read | Kind::Write => end(Holds::from(&client.rw_lock(name)), holder).await,
                _ => end(Holds::from(&client.lock(name)), holder).await,
            }
        };
        let freed = self.ended(freed).await;
        let mut checks = self.checks.lock();
        let process = self.process;
        checks.note(|| format!("process {process} takes {name} away from {holder}: {freed:?}"));
        if freed.is_ok() {
            checks.forced(name);
        }
    }
}

/// As the crate `lockset-operator` does.
async fn end(holds: Holds<'_>, holder: &str) -> lockset::Result<bool> {
    holds.end("release_holder", holder).await
}
