//! A client that is shut down while its process has holds and waits for others: what has to be left of it.

use std::sync::Arc;

use lockset::Client;
use parking_lot::Mutex;

use super::checks::Checks;
use super::left::lock_of;
use super::rounds::is_of_rounds;
use super::running::Running;
use crate::deployment::{Deployment, Layout};
use crate::net::State;
use crate::store::{Data, Store};

impl Running {
    /// Begins to shut the clients of a process down; the process may be paused or end during that.
    pub(super) fn shut_down(&self, process: usize) {
        let clients = self.clients[process].clone();
        let (checks, deployment) = (Arc::clone(&self.checks), Arc::clone(&self.deployment));
        // The checks report its failures.
        drop(self.processes[process].spawn(Box::pin(async move {
            shut_down(process, clients, &checks, &deployment).await;
        })));
    }
}

async fn shut_down(
    process: usize,
    clients: Vec<Client>,
    checks: &Mutex<Checks>,
    deployment: &Deployment,
) {
    let has = checks.lock().closes(process);
    let is_one = matches!(deployment.layout, Layout::Apart(1) | Layout::Primary { .. });
    for client in clients {
        let id = client.id().to_owned();
        let closed = client.shutdown().await;
        let mut checks = checks.lock();
        checks.note(|| format!("a client of process {process} is shut down: {closed:?}"));
        if closed.is_ok() && is_one && !checks.leaves_parts {
            // The lease of a guard that was alive goes on.
            let may_stay = |name: &str| has.contains(name) || checks.left.may_have(name);
            let left = |state: &mut State| left_of(&id, &state.node(0).store, may_stay);
            if let Some(key) = deployment.net.with(left) {
                checks.violate(format!("a client is shut down, and {key} knows it yet"));
            }
        }
    }
    let mut checks = checks.lock();
    checks.leaves_leases |= !has.is_empty();
    checks.closed(process);
}

/// A key that names the client with this id: a place in a queue, or a hold of a lock that is not to stay. What latches
/// and barriers note of a call stays for a time.
fn left_of(id: &str, keys: &Store, may_stay: impl Fn(&str) -> bool) -> Option<String> {
    let is_its = |word: &[u8]| word.starts_with(id.as_bytes());
    let names = |key: &str| match keys.get(key.as_bytes()) {
        Some(Data::Hash(fields)) => fields.iter().any(|(field, _)| is_its(field)),
        Some(Data::List(items)) => items.iter().any(|item| is_its(item)),
        Some(Data::Sorted(members)) => members.iter().any(|(_, member)| is_its(member)),
        // The lease of a reader, or none of a client.
        _ => key.contains(id),
    };
    let is_hold = |key: &str| {
        !matches!(
            keys.get(key.as_bytes()),
            Some(Data::List(_) | Data::Sorted(_))
        )
    };
    let all = keys.keys().into_iter();
    let mut all = all.map(|key| String::from_utf8_lossy(&key).into_owned());
    all.find(|key| {
        let lock = lock_of(key);
        let stays = is_hold(key) && may_stay(lock) || is_of_rounds(key);
        names(key) && !stays
    })
}
