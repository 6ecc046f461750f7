//! A slot moves from one primary to another, step by step.
//!
//! Between [`Cluster::begin_migration`] and [`Cluster::end_migration`] the old owner answers for the keys
//! it still has and says ASK for all others. A command with some keys here and some there gets TRYAGAIN
//! from the new owner, and from Redis 7 on from the old one too.

use std::time::Duration;

use super::Cluster;
use super::form::tell;
use crate::server::Server;
use crate::wait::reached;

/// How long a step of a migration may take.
const BOUND: Duration = Duration::from_secs(20);

/// How many keys are moved by one command.
const BATCH: &str = "100";

/// How long one command that moves keys may take, in milliseconds.
const MOVE_TIMEOUT: &str = "5000";

/// Every method panics, with the command and the error, when a server refuses or does not answer.
impl Cluster {
    /// Moves a slot with all its keys to the primary `to`. Nothing is moved when it is there already.
    pub async fn migrate(&self, slot: u16, to: &Server) {
        if self.owner_of(slot).await.addr() == to.addr() {
            return;
        }
        self.begin_migration(slot, to).await;
        self.move_keys(slot, to).await;
        self.end_migration(slot, to).await;
    }

    /// First step: `to` expects the slot, and its owner gives it away.
    pub async fn begin_migration(&self, slot: u16, to: &Server) {
        let from = self.owner_of(slot).await;
        let (from_id, to_id) = (self.id_of(from), self.id_of(to));
        let number = slot.to_string();
        // In this order: the owner must not send clients on before they are expected.
        let import = ["CLUSTER", "SETSLOT", &number, "IMPORTING", from_id];
        let migrate = ["CLUSTER", "SETSLOT", &number, "MIGRATING", to_id];
        demand(tell(to, &import).await);
        demand(tell(from, &migrate).await);
    }

    /// Second step, for one key. Does nothing when the owner of its slot does not have it.
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

    /// Last step: `to` owns the slot. Returns when every node that answers knows it; within 20 s.
    pub async fn end_migration(&self, slot: u16, to: &Server) {
        let (number, id) = (slot.to_string(), self.id_of(to));
        let command = ["CLUSTER", "SETSLOT", &number, "NODE", id];
        // The new owner first: else the slot would be nobody's for a moment.
        demand(tell(to, &command).await);
        for primary in self.primaries().await {
            if primary.addr() != to.addr() {
                demand(tell(primary, &command).await);
            }
        }
        demand(reached(BOUND, async || self.agreed(slot, to).await).await);
    }

    /// Instead of the last step: the slot stays where it was. Keys moved already stay lost to it.
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
    // NOKEY: somebody was faster.
    if let Err(error) = moved {
        let (from, to) = (from.addr(), to.addr());
        panic!("MIGRATE from {from} to {to}: {error}");
    }
}
