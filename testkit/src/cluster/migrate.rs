//! Moves a slot from one primary to another, step by step.
//!
//! Between [`Cluster::begin_migration`] and [`Cluster::end_migration`], the old owner serves the
//! keys it still has and answers ASK for all others. The new owner answers TRYAGAIN to a command
//! with keys on both sides; from Redis 7, so does the old owner.

use std::time::Duration;

use super::Cluster;
use super::form::tell;
use crate::server::Server;
use crate::wait::reached;

/// How long a step of a migration may take.
const BOUND: Duration = Duration::from_secs(20);

/// The number of keys per command.
const BATCH: &str = "100";

/// The time limit of a command that moves keys, in milliseconds.
const MOVE_TIMEOUT: &str = "5000";

/// Every method panics if a server refuses or does not answer, with the command and the error.
impl Cluster {
    /// Moves a slot with all its keys to the primary `to`. Does nothing if it is there already.
    pub async fn migrate(&self, slot: u16, to: &Server) {
        if self.owner_of(slot).await.addr() == to.addr() {
            return;
        }
        self.begin_migration(slot, to).await;
        self.move_keys(slot, to).await;
        self.end_migration(slot, to).await;
    }

    /// First step: marks the slot as importing at `to`, and as migrating at its owner.
    pub async fn begin_migration(&self, slot: u16, to: &Server) {
        let from = self.owner_of(slot).await;
        let (from_id, to_id) = (self.id_of(from), self.id_of(to));
        let number = slot.to_string();
        // In this order, because the owner must not redirect clients before `to` expects them.
        let import = ["CLUSTER", "SETSLOT", &number, "IMPORTING", from_id];
        let migrate = ["CLUSTER", "SETSLOT", &number, "MIGRATING", to_id];
        demand(tell(to, &import).await);
        demand(tell(from, &migrate).await);
    }

    /// Second step, for one key. Does nothing if the owner of the slot does not have the key.
    pub async fn move_key(&self, key: &str, to: &Server) {
        let slot = self.slot(key).await;
        let from = self.owner_of(slot).await;
        send(from, to, &[key.as_bytes().to_vec()]).await;
    }

    /// Second step, for all keys that the owner of the slot still has.
    pub async fn move_keys(&self, slot: u16, to: &Server) {
        let from = self.owner_of(slot).await;
        let number = slot.to_string();
        loop {
            let keys: Vec<Vec<u8>> = from
                .ask(&["CLUSTER", "GETKEYSINSLOT", &number, BATCH])
                .await;
            if keys.is_empty() {
                return;
            }
            send(from, to, &keys).await;
        }
    }

    /// Last step: `to` owns the slot. Returns once every node that answers knows it, within 20 s.
    pub async fn end_migration(&self, slot: u16, to: &Server) {
        let (number, id) = (slot.to_string(), self.id_of(to));
        let command = ["CLUSTER", "SETSLOT", &number, "NODE", id];
        // The new owner first, because otherwise the slot would have no owner for a moment.
        demand(tell(to, &command).await);
        for primary in self.primaries().await {
            if primary.addr() != to.addr() {
                demand(tell(primary, &command).await);
            }
        }
        demand(reached(BOUND, async || self.agreed(slot, to).await).await);
    }

    /// Replaces the last step: the slot stays with its owner, without the keys already moved.
    pub async fn abandon_migration(&self, slot: u16, to: &Server) {
        let number = slot.to_string();
        let command = ["CLUSTER", "SETSLOT", &number, "STABLE"];
        demand(tell(self.owner_of(slot).await, &command).await);
        demand(tell(to, &command).await);
    }
}

#[track_caller]
fn demand(outcome: Result<(), String>) {
    if let Err(reason) = outcome {
        panic!("the migration failed: {reason}");
    }
}

async fn send(from: &Server, to: &Server, keys: &[Vec<u8>]) {
    let mut command = redis::cmd("MIGRATE");
    command
        .arg("127.0.0.1")
        .arg(to.peer_addr().port())
        .arg("")
        .arg(0);
    command.arg(MOVE_TIMEOUT);
    if let Some(password) = to.password() {
        command.arg("AUTH").arg(password);
    }
    command.arg("KEYS").arg(keys);
    let moved = command.query_async::<String>(&mut from.admin().await).await;
    // A reply of NOKEY is fine: the key has expired or was moved already.
    if let Err(error) = moved {
        let (from, to) = (from.addr(), to.addr());
        panic!("MIGRATE from {from} to {to}: {error}");
    }
}
