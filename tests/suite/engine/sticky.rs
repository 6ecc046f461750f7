//! Sticky holds, which stay with the client after the last guard is released, and the waiters that
//! recall them.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use lockset::{Client, Guard, LostReason, STICKY_MAX};
use lockset_testkit::{Redisson, Server, eventually, unique_name, within};

use crate::support::{
    LEASE, SOON, command, idle, nothing_left, patient_client, took_less, waiting,
};
use crate::world::{OnCluster, World};

/// Longer than a test.
const LONG: Duration = Duration::from_secs(40);

/// The number of lock commands that clients sent since the last call.
async fn sent(server: &Server) -> u64 {
    let commands = server.commandstats().await;
    let of_locks = ["restore", "evalsha", "eval", "hdel", "publish"];
    let sent = of_locks.iter().filter_map(|name| commands.get(*name));
    sent.sum()
}

/// Waits until the server has the recall channels of these clients.
async fn listens(server: &Server, client: &Client) {
    let channel = format!("lockset_recall:{}", client.id());
    eventually(SOON, "the client listens for recalls", async || {
        server.pubsub_channels().await.contains(&channel)
    })
    .await;
}

macro_rules! for_sticky_locks {
    ($($test:ident)*) => {
        mod reentrant {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(|client, name| client.lock(name)).await;
            })*
        }
        mod write {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(|client, name| client.rw_lock(name).write_side()).await;
            })*
        }
    };
}

for_sticky_locks! {
    the_next_task_has_it_without_the_server
    a_waiter_of_another_client_is_served_at_once
    a_waiter_that_cannot_recall_is_served_when_the_span_ends
    a_reused_sticky_hold_is_released_in_time
    shutdown_releases_it
    it_is_renewed_until_it_is_released
    a_sticky_hold_lost_by_the_server_is_dropped
    a_multi_lock_of_this_client_does_not_wait_for_it
    no_owner_enters_it
    tokens_grow_from_task_to_task
}

/// The operations that the tests need of a sticky lock.
trait Sticky: lockset::Lock + Clone {
    fn sticky(self, span: Duration) -> Self;
    fn member(&self) -> lockset::Member;
}

impl Sticky for lockset::ReentrantLock {
    fn sticky(self, span: Duration) -> Self {
        Self::sticky(self, span)
    }
    fn member(&self) -> lockset::Member {
        self.into()
    }
}

impl Sticky for lockset::WriteSide {
    fn sticky(self, span: Duration) -> Self {
        Self::sticky(self, span)
    }
    fn member(&self) -> lockset::Member {
        self.into()
    }
}

async fn client(server: &Server) -> Client {
    patient_client(&server.admin_url()).await
}

/// A server, its client, and a lock that is sticky for a long time.
async fn sticky<L: Sticky>(of: impl Fn(&Client, &str) -> L) -> (Server, Client, L) {
    let server = Server::start();
    let client = client(&server).await;
    let lock = of(&client, "lock").sticky(LONG);
    (server, client, lock)
}

/// Shuts the client down and checks what is left.
async fn ends(client: Client, server: &Server) {
    client.shutdown().await.unwrap();
    nothing_left(server).await;
}

async fn the_next_task_has_it_without_the_server<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let (server, client, lock) = sticky(of).await;
    let first = lock.lock().await.unwrap();
    let holder = first.holder_id().to_owned();
    first.release().await.unwrap();
    listens(&server, &client).await;
    server.reset_stats().await;
    for nth in 0..50 {
        let guard = match nth % 3 {
            0 => lock.lock().await.unwrap(),
            1 => lock.try_lock().await.unwrap().expect("it is there"),
            _ => lock.try_lock_for(SOON).await.unwrap().expect("it is there"),
        };
        assert_eq!(guard.holder_id(), holder, "the same hold at the server");
        assert!(!guard.is_lost());
        if nth % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
    }
    assert_eq!(sent(&server).await, 0, "nothing was asked of the server");
    assert_eq!(
        server
            .keys()
            .await
            .iter()
            .filter(|key| *key == "lock")
            .count(),
        1
    );
    ends(client, &server).await;
}

async fn a_waiter_of_another_client_is_served_at_once<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let (client, other) = (client(&server).await, client(&server).await);
    let lock = of(&client, "lock").sticky(LONG);
    lock.lock().await.unwrap().release().await.unwrap();
    listens(&server, &client).await;
    // A caller that does not wait does not recall either.
    assert!(of(&other, "lock").try_lock().await.unwrap().is_none());
    idle(&other).await;
    assert!(!server.commandstats().await.contains_key("publish"));
    let began = Instant::now();
    let theirs = within(SOON, of(&other, "lock").lock()).await.unwrap();
    took_less(began, Duration::from_millis(900));
    // While another client holds the lock, there is nothing to keep.
    let next = of(&client, "lock").try_lock().await.unwrap();
    assert!(next.is_none());
    theirs.release().await.unwrap();
    client.shutdown().await.unwrap();
    other.shutdown().await.unwrap();
    nothing_left(&server).await;
}

async fn a_waiter_that_cannot_recall_is_served_when_the_span_ends<L: Sticky>(
    of: impl Fn(&Client, &str) -> L,
) {
    let server = Server::start();
    let client = client(&server).await;
    let span = Duration::from_millis(300);
    let lock = of(&client, "lock").sticky(span);
    let guard = lock.lock().await.unwrap();
    let began = Instant::now();
    guard.release().await.unwrap();
    // Like Redisson: it tries, and only listens for the release.
    eventually(SOON, "the key is gone", async || {
        !server.keys().await.contains(&"lock".to_owned())
    })
    .await;
    assert!(began.elapsed() >= span, "it stayed");
    took_less(began, span + Duration::from_secs(1));
    idle(&client).await;
}

async fn a_reused_sticky_hold_is_released_in_time<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let client = client(&server).await;
    let span = Duration::from_millis(200);
    let lock = of(&client, "lock").sticky(span);
    let mut first = None;
    let began = Instant::now();
    // One hold after another, each for one span.
    let mut holds = 0;
    while holds < 3 {
        let guard = lock.lock().await.unwrap();
        if first.as_deref() != Some(guard.holder_id()) {
            holds += 1;
            first = Some(guard.holder_id().to_owned());
        }
        guard.release().await.unwrap();
        tokio::task::yield_now().await;
        assert!(began.elapsed() < SOON, "one hold for ever");
    }
    assert!(began.elapsed() >= span * 2, "{:?}", began.elapsed());
    ends(client, &server).await;
}

async fn shutdown_releases_it<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let (server, client, lock) = sticky(of).await;
    lock.lock().await.unwrap().release().await.unwrap();
    assert!(server.keys().await.contains(&"lock".to_owned()));
    client.shutdown().await.unwrap();
    assert!(!server.keys().await.contains(&"lock".to_owned()));
    assert!(lock.lock().await.unwrap_err().is_closed());
    nothing_left(&server).await;
}

async fn it_is_renewed_until_it_is_released<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let client = crate::support::client(&server.url()).await;
    let lock = of(&client, "lock").sticky(LONG);
    let guard = lock.lock().await.unwrap();
    let holder = guard.holder_id().to_owned();
    guard.release().await.unwrap();
    let renewals = client.stats().totals.renewals.renewed;
    eventually(LEASE * 4, "it is renewed", async || {
        client.stats().totals.renewals.renewed >= renewals + 4
    })
    .await;
    let guard = lock.try_lock().await.unwrap().expect("it is there");
    assert_eq!(guard.holder_id(), holder);
    assert!(guard.remaining() > LEASE / 3);
    drop(guard);
    ends(client, &server).await;
}

async fn a_sticky_hold_lost_by_the_server_is_dropped<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let client = crate::support::client(&server.url()).await;
    let lock = of(&client, "lock").sticky(LONG);
    lock.lock().await.unwrap().release().await.unwrap();
    command(&server, &["DEL", "lock"]).await;
    eventually(SOON, "the loss is counted", async || {
        let stats = client.stats();
        stats.totals.losses.of(LostReason::Revoked) == 1 && stats.is_idle()
    })
    .await;
    let guard = within(SOON, lock.lock()).await.unwrap();
    assert!(!guard.is_lost(), "a hold of its own");
    assert!(server.keys().await.contains(&"lock".to_owned()));
    drop(guard);
    ends(client, &server).await;
}

async fn a_multi_lock_of_this_client_does_not_wait_for_it<L: Sticky>(
    of: impl Fn(&Client, &str) -> L,
) {
    let (server, client, lock) = sticky(of).await;
    for wait in [None, Some(SOON)] {
        lock.lock().await.unwrap().release().await.unwrap();
        let both = lockset::MultiLock::new([lock.member(), client.lock("b").into()]).unwrap();
        let guard = match wait {
            None => both.try_lock().await.unwrap(),
            Some(wait) => both.try_lock_for(wait).await.unwrap(),
        };
        guard.expect("no guard has it").release().await.unwrap();
    }
    ends(client, &server).await;
}

async fn no_owner_enters_it<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let client = client(&server).await;
    let me = lockset::Owner::new();
    let lock = of(&client, "lock").sticky(LONG).owner(&me);
    let guard = lock.lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(inner.hold_count(), 1);
    inner.release().await.unwrap();
    let again = lock.lock().await.unwrap();
    assert_eq!(again.hold_count(), 1, "taken, not entered");
    assert_eq!(*again.owner(), me);
    drop(again);
    ends(client, &server).await;
}

async fn tokens_grow_from_task_to_task<L: Sticky>(of: impl Fn(&Client, &str) -> L) {
    let server = Server::start();
    let client = client(&server).await;
    let lock = of(&client, "lock").sticky(LONG).fenced();
    let (mut last, mut holders) = (None, std::collections::BTreeSet::new());
    for _ in 0..40 {
        let guard = lock.lock().await.unwrap();
        let token = guard.fencing_token();
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
        holders.insert(guard.holder_id().to_owned());
        guard.release().await.unwrap();
    }
    // A grant comes with 17 tokens.
    assert_eq!(holders.len(), 3);
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn unsupported_sticky_options_are_refused() {
    let client = Client::builder("redis://127.0.0.1:1").lazy();
    let client = client.build().await.unwrap();
    let lock = client.lock("lock");
    let long = STICKY_MAX + Duration::from_nanos(1);
    for lock in [
        lock.clone().sticky(long),
        lock.sticky(LONG).fixed_lease(LONG),
    ] {
        let refused = lock.try_lock().await.unwrap_err();
        assert!(
            refused.is_invalid() && refused.to_string().contains("sticky"),
            "{refused}"
        );
    }
}

/// A Redisson waiter subscribes and receives the release message.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_redisson_hears_of_the_release() {
    let server = Server::start();
    let client = client(&server).await;
    let redisson = Redisson::connect(&server).await;
    let span = Duration::from_millis(300);
    let lock = client.lock("lock").sticky(span);
    lock.lock().await.unwrap().release().await.unwrap();
    let lease = Duration::from_secs(30);
    assert!(redisson.lock_acquire("lock", 1, lease).await.is_some());
    let listener = redis::Client::open(server.url()).unwrap();
    let mut listener = listener.get_async_pubsub().await.unwrap();
    listener
        .subscribe(Redisson::lock_channel("lock"))
        .await
        .unwrap();
    let mut messages = listener.on_message();
    assert!(within(SOON, messages.next()).await.is_some());
    assert_eq!(redisson.lock_acquire("lock", 1, lease).await, None);
    assert!(lock.try_lock().await.unwrap().is_none());
    redisson.lock_release("lock", 1).await;
}

/// A reader of this client is sent after the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_this_client_does_not_wait_for_a_writer_that_is_gone() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.rw_lock("lock").sticky(LONG);
    for nth in 0..3 {
        lock.write().await.unwrap().release().await.unwrap();
        let reading = match nth {
            0 => lock.read().await.unwrap(),
            1 => lock.try_read().await.unwrap().expect("no guard has it"),
            _ => lock
                .try_read_for(SOON)
                .await
                .unwrap()
                .expect("no guard has it"),
        };
        reading.release().await.unwrap();
    }
    let writing = lock.write().await.unwrap();
    writing.downgrade().await.unwrap().release().await.unwrap();
    idle(&client).await;
    ends(client, &server).await;
}

/// While tasks of this client wait, the lock is handed off to them, as without `sticky`.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_two_clients_takes_turns() {
    let server = Server::start();
    let inside = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
    let mut tasks = tokio::task::JoinSet::new();
    let clients = [client(&server).await, client(&server).await];
    for client in &clients {
        for nth in 0..4 {
            let (client, inside) = (client.clone(), inside.clone());
            tasks.spawn(async move {
                let lock = client.lock("lock").sticky(LONG);
                for round in 0..60 {
                    let guard = match (nth + round) % 5 {
                        0 => lock.try_lock().await.unwrap(),
                        1 => lock.try_lock_for(Duration::from_millis(1)).await.unwrap(),
                        2 => lock.lock().now_or_never().transpose().unwrap(),
                        _ => Some(lock.lock().await.unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    assert!(!guard.is_lost());
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    }
    within(Duration::from_secs(60), async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
    for client in clients {
        client.shutdown().await.unwrap();
    }
    nothing_left(&server).await;
}

/// After the last handle is dropped, the hold ends on time, and the client with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_releases_it_in_time() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("lock").sticky(Duration::from_millis(200));
    lock.lock().await.unwrap().release().await.unwrap();
    drop((client, lock));
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_it_to_its_lease() {
    let server = Server::start();
    let url = server.url();
    let (client, lock) = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let client = patient_client(&url).await;
            let lock = client.lock("lock").sticky(LONG);
            lock.lock().await.unwrap().release().await.unwrap();
            (client, lock)
        })
    })
    .await
    .unwrap();
    assert!(lock.lock().await.unwrap_err().is_closed());
    assert_eq!(client.stats().holds, 0, "nothing keeps it alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_of_this_client_ends_it() {
    let (server, client, lock) = sticky(|client, name| client.lock(name)).await;
    lock.lock().await.unwrap().release().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    let guard = lock.try_lock().await.unwrap().expect("it is free");
    assert!(!guard.is_lost());
    assert_eq!(lock.holder().await.unwrap().unwrap().id, guard.holder_id());
    drop(guard);
    ends(client, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_with_a_minimum_time_are_not_sticky() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("lock").sticky(LONG).at_least(LONG);
    let guard = lock.lock().await.unwrap();
    let first = guard.holder_id().to_owned();
    guard.release().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    let left = lock.holder().await.unwrap().unwrap().id;
    assert!(left != first && left.starts_with(client.id()), "{left}");
}

/// A hold granted until the end of `max_hold` gives the next task its own span.
#[tokio::test(flavor = "multi_thread")]
async fn each_guard_has_its_own_longest_time() {
    let server = Server::start();
    let client = client(&server).await;
    let max = Duration::from_millis(1_200);
    let lock = client.lock("lock").sticky(LONG).max_hold(max);
    let guard = lock.lock().await.unwrap();
    tokio::time::sleep(max / 2).await;
    guard.release().await.unwrap();
    tokio::time::sleep(max).await;
    let began = Instant::now();
    let guard = lock.try_lock().await.unwrap().expect("it is there");
    assert_eq!(within(SOON, guard.lost()).await, LostReason::MaxHold);
    assert!(began.elapsed() >= max / 2);
    took_less(began, max + SOON / 4);
    drop(guard);
    ends(client, &server).await;
}

/// The future is pending without a waiter, and resolves with one.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_learns_of_a_waiter_of_another_client() {
    let server = Server::start();
    let (client, other) = (client(&server).await, client(&server).await);
    let name = unique_name("lock");
    let guard = client.lock(&name).lock().await.unwrap();
    assert!(guard.recalled().now_or_never().is_none());
    listens(&server, &client).await;
    let theirs = {
        let lock = other.lock(&name);
        lockset_testkit::spawn(async move { lock.lock().await })
    };
    within(SOON, guard.recalled()).await;
    // Again, for another guard of the same hold.
    let inner = guard.reenter().await.unwrap();
    assert!(guard.recalled().now_or_never().is_some());
    assert!(inner.recalled().now_or_never().is_some());
    drop(inner);
    guard.release().await.unwrap();
    let theirs = within(SOON, theirs).await.unwrap().unwrap();
    assert!(theirs.recalled().now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_learns_of_a_waiter_of_its_own_client() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.rw_lock("lock");
    let reading = lock.read().await.unwrap();
    let mut recalled = Box::pin(reading.recalled());
    assert!(recalled.as_mut().now_or_never().is_none());
    lock.read().await.unwrap().release().await.unwrap();
    assert!(recalled.as_mut().now_or_never().is_none(), "it let that in");
    let writer = {
        let lock = lock.clone();
        lockset_testkit::spawn(async move { lock.write().await })
    };
    within(SOON, &mut recalled).await;
    drop(recalled);
    writer.abort();
    assert!(writer.await.is_err());
    waiting(&client, 0).await;
    reading.release().await.unwrap();
}

/// All kinds of guards, with a waiter at another client.
#[tokio::test(flavor = "multi_thread")]
async fn every_guard_learns_of_it() {
    async fn learns<L: lockset::Lock>(server: &Server, holder: &Client, mine: L, theirs: L) {
        let guard = mine.lock().await.unwrap();
        assert!(guard.recalled().now_or_never().is_none());
        listens(server, holder).await;
        let waiter = lockset_testkit::spawn(async move { theirs.try_lock_for(SOON * 4).await });
        within(SOON, guard.recalled()).await;
        guard.release().await.unwrap();
        let theirs = within(SOON, waiter).await.unwrap().unwrap();
        theirs.expect("it was released").release().await.unwrap();
    }
    let server = Server::start();
    let (a, b) = (client(&server).await, client(&server).await);
    learns(&server, &a, a.lock("1"), b.lock("1")).await;
    learns(&server, &a, a.fair_lock("2"), b.fair_lock("2")).await;
    learns(
        &server,
        &a,
        a.rw_lock("3").write_side(),
        b.rw_lock("3").write_side(),
    )
    .await;
    let both =
        |client: &Client| lockset::MultiLock::new([client.lock("4"), client.lock("5")]).unwrap();
    learns(&server, &a, both(&a), both(&b)).await;
    let quorum = |client: &Client| {
        let redlock = lockset::Redlock::builder([client.clone()]).persistent_nodes();
        redlock.build().unwrap().lock("6")
    };
    learns(&server, &a, quorum(&a), quorum(&b)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_learn_of_a_writer() {
    let server = Server::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = a.rw_lock("lock").read().await.unwrap();
    let second = a.rw_lock("lock").read().await.unwrap();
    assert!(first.recalled().now_or_never().is_none());
    listens(&server, &a).await;
    let lock = b.rw_lock("lock");
    let writer = lockset_testkit::spawn(async move { lock.write().await });
    within(SOON, first.recalled()).await;
    within(SOON, second.recalled()).await;
    drop((first, second));
    let guard = within(SOON, writer).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The connection for recalls is lost: the client subscribes again.
#[tokio::test(flavor = "multi_thread")]
async fn recalls_work_after_a_reconnect() {
    let server = Server::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let lock = a.lock("lock").sticky(LONG);
    lock.lock().await.unwrap().release().await.unwrap();
    listens(&server, &a).await;
    command(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let guard = within(SOON, b.lock("lock").lock()).await.unwrap();
    listens(&server, &a).await;
    guard.release().await.unwrap();
}

/// A client has one recall channel for locks of all slots and nodes.
#[tokio::test(flavor = "multi_thread")]
async fn recalls_reach_the_client_from_every_node() {
    let world = OnCluster::start().await;
    let (a, b) = (world.patient_client().await, world.patient_client().await);
    let channel = format!("lockset_recall:{}", a.id());
    let name = world.name();
    let mut servers = std::collections::BTreeSet::new();
    for nth in 0..12 {
        let name = format!("{name}:{nth}");
        servers.insert(world.server_of(&name).await.port());
        let lock = a.lock(&name).sticky(LONG);
        lock.lock().await.unwrap().release().await.unwrap();
        eventually(SOON, "the client listens at some node", async || {
            for server in world.primaries().await {
                if server.pubsub_channels().await.contains(&channel) {
                    return true;
                }
            }
            false
        })
        .await;
        let began = Instant::now();
        let theirs = within(SOON, b.lock(&name).lock()).await.unwrap();
        took_less(began, Duration::from_millis(900));
        theirs.release().await.unwrap();
    }
    assert!(servers.len() > 1, "{servers:?}");
    a.shutdown().await.unwrap();
    b.shutdown().await.unwrap();
    world.nothing_left(&name).await;
}

/// A user without the rights to these channels: sticky holds end by time.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_recall_the_time_decides() {
    let server = Server::start();
    let rights = [
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">pass",
        "~*",
        "+@all",
        "resetchannels",
        "&redisson_lock__channel:*",
    ];
    command(&server, &rights).await;
    let url = format!("redis://mute:pass@{}", server.addr());
    let (a, b) = (patient_client(&url).await, patient_client(&url).await);
    let span = Duration::from_millis(300);
    let lock = a.lock("lock").sticky(span);
    let began = Instant::now();
    lock.lock().await.unwrap().release().await.unwrap();
    let guard = within(SOON, b.lock("lock").lock()).await.unwrap();
    assert!(began.elapsed() >= span);
    assert!(guard.recalled().now_or_never().is_none());
    let waiter = {
        let lock = a.lock("lock");
        lockset_testkit::spawn(async move { lock.lock().await })
    };
    waiting(&a, 1).await;
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(a.stats().totals.background_failures, 0);
}

/// Waiters recall rarely if the holder's client is not subscribed.
#[tokio::test(flavor = "multi_thread")]
async fn unsubscribed_holders_are_recalled_rarely() {
    let server = Server::start();
    let (a, b) = (client(&server).await, client(&server).await);
    // Long enough for the subscription to be made.
    let wait = Duration::from_millis(200);
    for nth in 0..20 {
        let name = format!("lock:{nth}");
        let guard = a.lock(&name).lock().await.unwrap();
        let began = Instant::now();
        server.reset_stats().await;
        for asked in [1, 1] {
            let got = b.lock(&name).try_lock_for(wait).await.unwrap();
            assert!(got.is_none());
            let commands = server.commandstats().await;
            if began.elapsed() < Duration::from_millis(800) {
                assert_eq!(commands.get("publish"), Some(&asked), "{commands:?}");
            }
        }
        guard.release().await.unwrap();
        if began.elapsed() < Duration::from_millis(800) {
            return;
        }
    }
    panic!("two waits of {wait:?} took longer than 800 ms each time");
}
