//! Members on two servers: acquired in order, within one time limit, and released in reverse.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockset::{Client, LostReason, Member, MultiLock};
use lockset_testkit::{Server, eventually, unique_name, within};

use super::contention::Counters;
use super::{KINDS, Kind};
use crate::support::{
    LEASE, SLACK, SOON, client, command, idle, nothing_left, patient_client, took_less, waiting,
};

/// Two servers, and clients of both.
struct Pair {
    servers: [Server; 2],
    clients: [Client; 2],
}

impl Pair {
    async fn new() -> Self {
        let servers = [Server::start(), Server::start()];
        let clients = Self::clients_of(&servers).await;
        Self { servers, clients }
    }

    async fn clients_of(servers: &[Server; 2]) -> [Client; 2] {
        let [one, two] = servers;
        [client(&one.url()).await, client(&two.url()).await]
    }

    async fn nothing_left(&self) {
        for server in &self.servers {
            nothing_left(server).await;
        }
        for client in &self.clients {
            idle(client).await;
        }
    }

    /// `stem-0` to `stem-3`, alternating between the servers.
    fn four(&self, stem: &str, first: usize) -> MultiLock {
        let members = (0..4).map(|at| {
            let kind = KINDS[(first + at) % KINDS.len()];
            kind.member(&self.clients[at % 2], &format!("{stem}-{at}"))
        });
        MultiLock::new(members).unwrap()
    }
}

#[tokio::test]
async fn one_name_on_two_servers_is_two_members() {
    let pair = Pair::new().await;
    let name = unique_name("both");
    let lock = MultiLock::new(pair.clients.each_ref().map(|client| client.lock(&name))).unwrap();
    let guard = lock.fenced().lock().await.unwrap();
    assert_eq!(guard.names(), [&name, &name]);
    assert!(guard.fencing_tokens().iter().all(Option::is_some));
    for (server, client) in pair.servers.iter().zip(&pair.clients) {
        assert!(server.keys().await.contains(&name));
        assert!(client.lock(&name).try_lock().await.unwrap().is_none());
    }
    let inner = guard.reenter().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(inner.hold_count(), 1);
    assert!(tokio::time::timeout(LEASE * 2, inner.lost()).await.is_err());
    inner.release().await.unwrap();
    pair.nothing_left().await;
}

#[tokio::test]
async fn a_member_held_elsewhere_costs_the_time_and_leaves_nothing() {
    let pair = Pair::new().await;
    let theirs = Pair::clients_of(&pair.servers).await;
    for first in 0..KINDS.len() {
        for busy in 0..4 {
            let stem = unique_name("four");
            let kind = KINDS[(first + busy) % KINDS.len()];
            let name = format!("{stem}-{busy}");
            let blocker = kind.keep_out(&theirs[busy % 2], &name).await;
            let lock = pair.four(&stem, first);
            assert!(lock.try_lock().await.unwrap().is_none());
            let (wait, started) = (Duration::from_millis(100), Instant::now());
            assert!(lock.try_lock_for(wait).await.unwrap().is_none());
            assert!(started.elapsed() >= wait);
            took_less(started, wait + SLACK);
            for client in &pair.clients {
                idle(client).await;
            }
            let others = (0..4).filter(|at| *at != busy);
            for at in others {
                let keys = pair.servers[at % 2].keys().await;
                assert!(!keys.contains(&format!("{stem}-{at}")), "{busy}: {keys:?}");
            }
            let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
            waiting(&pair.clients[busy % 2], 1).await;
            blocker.release().await;
            within(SOON, waiter).await.unwrap().release().await.unwrap();
            pair.nothing_left().await;
        }
    }
}

/// Two members are each held for part of the time limit, together for longer than it.
#[tokio::test]
async fn one_time_limit_covers_all_members() {
    let pair = Pair::new().await;
    let theirs = Pair::clients_of(&pair.servers).await;
    let lock = MultiLock::new([pair.clients[0].lock("a"), pair.clients[1].lock("b")]).unwrap();
    let first = theirs[0].lock("a").lock().await.unwrap();
    let second = theirs[1].lock("b").lock().await.unwrap();
    let started = Instant::now();
    let wait = Duration::from_millis(4_500);
    let free_the_first = async {
        tokio::time::sleep(wait * 2 / 3).await;
        first.release().await.unwrap();
    };
    let (got, ()) = tokio::join!(lock.try_lock_for(wait), free_the_first);
    assert!(got.unwrap().is_none());
    assert!(started.elapsed() >= wait);
    took_less(started, wait * 5 / 3);
    second.release().await.unwrap();
    pair.nothing_left().await;
}

/// The members before the one that is held by another client are held, so other callers cannot
/// acquire them.
#[tokio::test]
async fn members_are_acquired_in_order_and_released_in_reverse() {
    let pair = Pair::new().await;
    let stem = unique_name("four");
    let theirs = Pair::clients_of(&pair.servers).await;
    // None is renewed within the test.
    let lease = Duration::from_secs(30);
    let blocker = theirs[0].rw_lock(format!("{stem}-2")).lease(lease);
    let blocker = blocker.write().await;
    let lock = pair.four(&stem, 0).lease(lease);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&pair.clients[0], 1).await;
    let holds = async |server: usize| {
        let mut keys = pair.servers[server].keys().await;
        keys.retain(|key| key.starts_with(&stem));
        keys
    };
    assert_eq!(holds(0).await, [format!("{stem}-0"), format!("{stem}-2")]);
    assert_eq!(holds(1).await, [format!("{stem}-1")]);
    blocker.unwrap().release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert_eq!(guard.names().len(), 4);
    assert_eq!(
        (holds(0).await.len(), holds(1).await.len()),
        (2, 2),
        "all four"
    );
    for server in &pair.servers {
        server.reset_stats().await;
    }
    guard.release().await.unwrap();
    for server in &pair.servers {
        let stats = server.commandstats().await;
        assert_eq!(stats["evalsha"], 1, "one script for each server");
    }
    pair.nothing_left().await;
}

#[tokio::test]
async fn a_server_that_dies_during_the_wait_is_named_and_nothing_is_left() {
    let pair = Pair::new().await;
    let theirs = Pair::clients_of(&pair.servers).await;
    for kind in KINDS {
        let (near, far) = (unique_name("a"), unique_name("b"));
        let _blocker = kind.keep_out(&theirs[1], &far).await;
        let lock = MultiLock::new([
            Kind::Fair.member(&pair.clients[0], &near),
            kind.member(&pair.clients[1], &far),
        ]);
        let lock = lock.unwrap();
        let waiter = lockset_testkit::spawn(async move { lock.lock().await });
        waiting(&pair.clients[1], 1).await;
        assert!(pair.servers[0].keys().await.contains(&near));
        pair.servers[1].kill();
        let error = within(SOON, waiter).await.unwrap().unwrap_err();
        assert!(error.is_io(), "{error}");
        assert_eq!(error.lock_name(), Some(&*far));
        nothing_left(&pair.servers[0]).await;
        pair.servers[1].restart();
        // The client may be in a back-off before it connects again.
        eventually(SOON, "their client is back", async || {
            theirs[1].lock(&far).is_locked().await.is_ok()
        })
        .await;
        let other = theirs[0].fair_lock(&near).try_lock().await.unwrap();
        other.expect("free").release().await.unwrap();
    }
    pair.nothing_left().await;
}

#[tokio::test]
async fn a_member_lost_on_one_server_frees_those_on_the_other() {
    let pair = Pair::new().await;
    for first in 0..KINDS.len() {
        let stem = unique_name("four");
        let guard = pair.four(&stem, first).lock().await.unwrap();
        let lost = format!("{stem}-1");
        command(&pair.servers[1], &["DEL", &lost]).await;
        let told = within(SOON, guard.lost_member()).await;
        assert_eq!(told, (&*lost, LostReason::Revoked));
        for server in &pair.servers {
            nothing_left(server).await;
        }
        let error = guard.release().await.unwrap_err();
        assert!(error.is_not_held() && error.lock_name() == Some(&lost));
        pair.nothing_left().await;
    }
}

/// A member already acquired is lost during the wait for another, and is acquired again.
#[tokio::test]
async fn a_member_lost_during_the_wait_is_acquired_again() {
    let pair = Pair::new().await;
    let theirs = Pair::clients_of(&pair.servers).await;
    let blocker = theirs[1].lock("b").lock().await.unwrap();
    let lock = MultiLock::new([pair.clients[0].lock("a"), pair.clients[1].lock("b")]).unwrap();
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&pair.clients[1], 1).await;
    let took_it = command(&pair.servers[0], &["HKEYS", "a"]).await;
    command(&pair.servers[0], &["DEL", "a"]).await;
    eventually(SOON, "it is held under a new holder id", async || {
        let now = command(&pair.servers[0], &["HKEYS", "a"]).await;
        now != took_it && now != redis::Value::Array(Vec::new())
    })
    .await;
    blocker.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    pair.nothing_left().await;
}

/// Four processes with lists in every order, over names that exist on both servers.
#[tokio::test(flavor = "multi_thread")]
async fn reversed_lists_over_two_servers_do_not_block_each_other() {
    const ROUNDS: u64 = 125;
    let servers = [Server::start(), Server::start()];
    let stem = unique_name("lock");
    let counters = Arc::new(Counters::new(4));
    let mut tasks = Vec::new();
    let mut all = Vec::new();
    for order in 0..4 {
        let mut clients = Vec::new();
        for server in &servers {
            // A patient client, so that a lease that ends within the test cannot hide a deadlock.
            clients.push(patient_client(&server.url()).await);
        }
        let mut members: Vec<Member> = (0..4)
            .map(|at| {
                let kind = [Kind::Reentrant, Kind::Fair, Kind::Write, Kind::Reentrant][at];
                kind.member(&clients[at % 2], &format!("{stem}-{}", at / 2))
            })
            .collect();
        members.rotate_left(order);
        if order % 2 == 1 {
            members.reverse();
        }
        let lock = MultiLock::new(members).unwrap();
        let counters = Arc::clone(&counters);
        all.extend(clients);
        tasks.push(lockset_testkit::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.lock().await.unwrap();
                for member in 0..4 {
                    counters.write(member).await;
                }
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within(Duration::from_secs(60), task).await.unwrap();
    }
    for member in 0..4 {
        assert_eq!(counters.value(member), ROUNDS * 4);
    }
    for server in &servers {
        nothing_left(server).await;
    }
    for client in &all {
        idle(client).await;
    }
}

/// Names one server by two addresses.
fn two_addresses(server: &Server) -> [String; 2] {
    let url = server.url();
    [url.replace("127.0.0.1", "localhost"), url]
}

#[tokio::test]
async fn one_server_by_two_addresses_is_refused() {
    let server = Server::start();
    let name = unique_name("twice");
    for is_lazy in [false, true] {
        let mut clients = Vec::new();
        for url in two_addresses(&server) {
            let builder = Client::builder(&url);
            let builder = if is_lazy { builder.lazy() } else { builder };
            clients.push(builder.build().await.unwrap());
        }
        let lock = MultiLock::new(clients.iter().map(|client| client.lock(&name)));
        let refused = if is_lazy {
            within(SOON, lock.unwrap().lock()).await.map(drop)
        } else {
            lock.map(drop)
        };
        let refused = refused.unwrap_err();
        assert!(refused.is_invalid(), "{refused}");
        assert_eq!(refused.lock_name(), Some(&*name));
        for host in ["localhost", "127.0.0.1"] {
            let address = format!("{host}:{}", server.port());
            assert!(refused.to_string().contains(&address), "{refused}");
        }
        nothing_left(&server).await;
    }
}

#[tokio::test]
async fn one_name_in_two_databases_of_one_server_is_two_members() {
    let server = Server::start();
    let name = unique_name("both");
    let [one, other] = two_addresses(&server);
    let clients = [client(&one).await, client(&format!("{other}1")).await];
    let lock = MultiLock::new(clients.each_ref().map(|client| client.lock(&name))).unwrap();
    let guard = within(SOON, lock.lock()).await.unwrap();
    assert_eq!(guard.names(), [&name, &name]);
    guard.release().await.unwrap();
}
