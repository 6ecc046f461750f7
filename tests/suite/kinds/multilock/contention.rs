//! Many clients and many members: no deadlock, no starvation, exact counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockset::{Client, Member, MultiLock};
use lockset_testkit::{Server, unique_name, within};

use super::{Kind, names};
use crate::support::{idle, nothing_left};

/// One counter per member, protected only by the lock.
pub(super) struct Counters(Vec<AtomicU64>);

impl Counters {
    pub(super) fn new(members: usize) -> Self {
        Self((0..members).map(|_| AtomicU64::new(0)).collect())
    }

    /// Increments a counter in two steps with a yield in between.
    pub(super) async fn write(&self, member: usize) {
        let seen = self.value(member);
        tokio::task::yield_now().await;
        self.0[member].store(seen + 1, Ordering::Relaxed);
    }

    /// Reads a counter twice with a yield in between, and expects the same value.
    async fn read(&self, member: usize) {
        let seen = self.value(member);
        tokio::task::yield_now().await;
        assert_eq!(self.value(member), seen, "another task wrote");
    }

    pub(super) fn value(&self, member: usize) -> u64 {
        self.0[member].load(Ordering::Relaxed)
    }
}

/// A client that tolerates stalls of a busy machine.
async fn client(url: &str) -> Client {
    let builder = Client::builder(url).lease(Duration::from_secs(6));
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reversed_lists_do_not_block_each_other() {
    const ROUNDS: u64 = 5_000;
    let server = Server::start();
    let names = names(3);
    let counters = Arc::new(Counters::new(names.len()));
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let kinds = [Kind::Reentrant, Kind::Write, Kind::Reentrant];
        let mut members: Vec<_> = std::iter::zip(kinds, &names)
            .map(|(kind, name)| kind.member(client, name))
            .collect();
        if number == 1 {
            members.reverse();
        }
        let lock = MultiLock::new(members).unwrap();
        let counters = Arc::clone(&counters);
        tasks.push(lockset_testkit::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.lock().await.unwrap();
                for member in 0..3 {
                    counters.write(member).await;
                }
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within(Duration::from_secs(120), task).await.unwrap();
    }
    for member in 0..3 {
        assert_eq!(counters.value(member), ROUNDS * 2);
    }
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&server).await;
}

/// Two reentrant, two fair and two read-write locks: subsets as multi-locks, and each alone.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_subsets_and_single_locks_are_exact() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let names = Arc::new(names(6));
    let counters = Arc::new(Counters::new(6));
    let written = Arc::new(Counters::new(6));
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..4_u64 {
        let client = client(&server.url()).await;
        for task in 0..3_u64 {
            let (client, names) = (client.clone(), Arc::clone(&names));
            let (counters, written) = (Arc::clone(&counters), Arc::clone(&written));
            let mut random = fastrand::Rng::with_seed(number * 100 + task);
            tasks.push(lockset_testkit::spawn(async move {
                for _ in 0..ROUNDS {
                    // One task of each client uses single locks.
                    let count = if task == 0 { 1 } else { random.usize(2..=4) };
                    let chosen = random.choose_multiple(0..6_usize, count);
                    let chosen = chosen.into_iter().map(|at| {
                        let kind = match at {
                            0 | 1 => Kind::Reentrant,
                            2 | 3 => Kind::Fair,
                            _ if random.bool() => Kind::Read,
                            _ => Kind::Write,
                        };
                        (at, kind)
                    });
                    let chosen: Vec<_> = chosen.collect();
                    let members = chosen
                        .iter()
                        .map(|(at, kind)| kind.member(&client, &names[*at]));
                    let lock = MultiLock::new(members).unwrap();
                    let guard = lock.lock().await.unwrap();
                    for (at, kind) in &chosen {
                        match kind {
                            Kind::Read => counters.read(*at).await,
                            _ => {
                                counters.write(*at).await;
                                written.0[*at].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    assert!(!guard.is_lost());
                    // Alternates between releasing and dropping.
                    if random.bool() {
                        guard.release().await.unwrap();
                    }
                }
            }));
        }
        clients.push(client);
    }
    for task in tasks {
        within(Duration::from_secs(120), task).await.unwrap();
    }
    for member in 0..6 {
        assert!(counters.value(member) > 0);
        assert_eq!(counters.value(member), written.value(member));
    }
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&server).await;
}

/// One client per member uses its single lock without a pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_multi_lock_gets_in_among_single_locks_that_never_pause() {
    const GRANTS: u32 = 20;
    let server = Server::start();
    let name = unique_name("lock");
    for kinds in [
        [Kind::Reentrant, Kind::Reentrant, Kind::Reentrant],
        [Kind::Reentrant, Kind::Fair, Kind::Write],
        [Kind::Fair, Kind::Write, Kind::Read],
    ] {
        let names: Vec<_> = (0..kinds.len()).map(|at| format!("{name}-{at}")).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut users = Vec::new();
        for (kind, name) in std::iter::zip(kinds, &names) {
            let client = client(&server.url()).await;
            let (stop, name) = (Arc::clone(&stop), name.clone());
            users.push(lockset_testkit::spawn(use_without_pause(
                client, kind, name, stop,
            )));
        }
        let ours = client(&server.url()).await;
        let members: Vec<Member> = std::iter::zip(kinds, &names)
            .map(|(kind, name)| kind.member(&ours, name))
            .collect();
        let lock = MultiLock::new(members).unwrap();
        let mut slowest = Duration::ZERO;
        for _ in 0..GRANTS {
            let asked = Instant::now();
            let guard = within(Duration::from_secs(20), lock.lock()).await.unwrap();
            slowest = slowest.max(asked.elapsed());
            guard.release().await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let mut grants = Vec::new();
        for user in users {
            grants.push(user.await.unwrap());
        }
        println!("{kinds:?}: slowest {slowest:?}, users {grants:?}");
        nothing_left(&server).await;
    }
}

async fn use_without_pause(client: Client, kind: Kind, name: String, stop: Arc<AtomicBool>) -> u32 {
    let mut grants = 0;
    while !stop.load(Ordering::Relaxed) {
        let held = kind.keep_out(&client, &name).await;
        tokio::time::sleep(Duration::from_micros(200)).await;
        held.release().await;
        grants += 1;
    }
    grants
}
