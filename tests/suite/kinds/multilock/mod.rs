//! The multi-lock: members of any kind, on one server or two, taken and lost together.
//!
//! The generic suites test everything it shares with single locks.

mod contention;
mod loss;
mod members;
mod native;
mod owners;
mod repeated;
mod servers;
mod undone;

use lockset::{Client, FairGuard, Member, MultiLock, ReadGuard, ReentrantGuard, WriteGuard};
use lockset_testkit::Server;

/// A lock as a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reentrant,
    Fair,
    Read,
    Write,
}

const KINDS: [Kind; 4] = [Kind::Reentrant, Kind::Fair, Kind::Read, Kind::Write];

impl Kind {
    fn member(self, client: &Client, name: &str) -> Member {
        match self {
            Self::Reentrant => client.lock(name).into(),
            Self::Fair => client.fair_lock(name).into(),
            Self::Read => client.rw_lock(name).read_side().into(),
            Self::Write => client.rw_lock(name).write_side().into(),
        }
    }

    /// Holds a lock that blocks a member of this kind.
    async fn keep_out(self, client: &Client, name: &str) -> Held {
        match self {
            Self::Reentrant => Held::Reentrant(client.lock(name).lock().await.unwrap()),
            Self::Fair => Held::Fair(client.fair_lock(name).lock().await.unwrap()),
            Self::Read => Held::Write(client.rw_lock(name).write().await.unwrap()),
            Self::Write => Held::Read(client.rw_lock(name).read().await.unwrap()),
        }
    }
}

/// A single lock held by another client.
enum Held {
    Reentrant(ReentrantGuard),
    Fair(FairGuard),
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Held {
    async fn release(self) {
        match self {
            Self::Reentrant(guard) => guard.release().await,
            Self::Fair(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
        .unwrap();
    }
}

/// Members of one client with alternating kinds, starting with `first`.
fn mixed(client: &Client, names: &[String], first: usize) -> MultiLock {
    let members = names
        .iter()
        .enumerate()
        .map(|(at, name)| KINDS[(first + at) % KINDS.len()].member(client, name));
    MultiLock::new(members).unwrap()
}

/// `count` names in the order of their keys.
fn names(count: usize) -> Vec<String> {
    let stem = lockset_testkit::unique_name("multi");
    (0..count).map(|at| format!("{stem}-{at:03}")).collect()
}

/// The names of the locks that are held at the server.
async fn held<'a>(server: &Server, names: &'a [String]) -> Vec<&'a str> {
    let keys = server.keys().await;
    let held = names.iter().filter(|name| keys.contains(name));
    held.map(String::as_str).collect()
}
