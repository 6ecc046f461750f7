//! The load: tasks of one client that acquire locks of all kinds, some with a timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use lockset::{Client, Guard, Lock, MultiLock, Redlock};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::Result;

const TASKS: usize = 64;

/// Locks per kind: few enough that tasks wait for each other.
const NAMES: usize = 16;

/// Short, so that a restarted server soon has a vote again.
const LEASE: Duration = Duration::from_secs(3);

const WAIT: Duration = Duration::from_secs(1);

/// An upper bound for a call: the wait, and the time limit for a server that does not answer.
const CALL_MAX: Duration = Duration::from_secs(10);

/// The results of the tasks so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) grants: u64,
    pub(crate) errors: u64,
    /// The number of calls that took longer than `CALL_MAX`.
    pub(crate) overdue: u64,
}

#[derive(Default)]
struct Counters {
    grants: AtomicU64,
    errors: AtomicU64,
    overdue: AtomicU64,
}

#[derive(Clone)]
enum Locks {
    Client(Client),
    Quorum(Redlock),
}

pub(crate) struct Load {
    clients: Vec<Client>,
    counters: Arc<Counters>,
    ends: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    pub(crate) async fn start(urls: &[String]) -> Result<Self> {
        let build = |url: &String| {
            Client::builder(url)
                .lease(LEASE)
                .key_prefix("soak:")
                .build()
        };
        let clients = try_join_all(urls.iter().map(build)).await?;
        let locks = match &clients[..] {
            [client] => Locks::Client(client.clone()),
            several => Locks::Quorum(Redlock::new(several.iter().cloned())?),
        };
        let counters = Arc::<Counters>::default();
        let ends = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (locks, counters, ends) = (locks.clone(), Arc::clone(&counters), Arc::clone(&ends));
            tasks.spawn(async move {
                let mut turn = task;
                while !ends.load(Relaxed) {
                    call(&locks, &counters, turn).await;
                    turn += TASKS + 1;
                }
            });
        }
        Ok(Self {
            clients,
            counters,
            ends,
            tasks,
        })
    }

    pub(crate) fn done(&self) -> Done {
        Done {
            grants: self.counters.grants.load(Relaxed),
            errors: self.counters.errors.load(Relaxed),
            overdue: self.counters.overdue.load(Relaxed),
        }
    }

    /// Lets the tasks finish and shuts the clients down.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.ends.store(true, Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task?;
        }
        for client in self.clients {
            client.shutdown().await?;
        }
        Ok(())
    }
}

/// One call. Every eighth is dropped after a few milliseconds.
async fn call(locks: &Locks, counters: &Counters, turn: usize) {
    let limit = match turn % 8 {
        0 => Duration::from_millis(turn as u64 % 5),
        _ => CALL_MAX,
    };
    match timeout(limit, take(locks, turn)).await {
        Ok(Ok(true)) => counters.grants.fetch_add(1, Relaxed),
        Ok(Ok(false)) => return,
        Ok(Err(_)) => {
            // A pause, as a program would make until the server is back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            counters.errors.fetch_add(1, Relaxed)
        }
        Err(_) if limit == CALL_MAX => counters.overdue.fetch_add(1, Relaxed),
        Err(_) => return,
    };
}

/// Holds one of the locks briefly.
async fn take(locks: &Locks, turn: usize) -> lockset::Result<bool> {
    let name = format!("{}", turn % NAMES);
    let client = match locks {
        Locks::Quorum(redlock) => return hold(redlock.lock(name), turn).await,
        Locks::Client(client) => client,
    };
    match turn / NAMES % 5 {
        0 => hold(client.fair_lock(format!("fair:{name}")), turn).await,
        1 => hold(client.rw_lock(format!("rw:{name}")).read_side(), turn).await,
        2 => hold(client.rw_lock(format!("rw:{name}")).write_side(), turn).await,
        3 => {
            let next = (turn + 1) % NAMES;
            let names = [format!("all:{name}"), format!("all:{next}")];
            hold(MultiLock::new(names.map(|name| client.lock(name)))?, turn).await
        }
        _ => hold(client.lock(name).fenced(), turn).await,
    }
}

/// Acquires a lock and releases it. Every second guard is dropped instead. Returns `false` if the
/// lock was held elsewhere.
async fn hold(lock: impl Lock, turn: usize) -> lockset::Result<bool> {
    let Some(guard) = lock.try_lock_for(WAIT).await? else {
        return Ok(false);
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    if turn.is_multiple_of(2) && !guard.is_lost() {
        guard.release().await?;
    }
    Ok(true)
}
