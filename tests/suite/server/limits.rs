//! Servers and users with restrictions: full memory, few connections, few rights.

use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Client, LostReason};
use lockset_testkit::{ClientKind, Server, eventually, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::server::rights::doc::{Rights, rows};
use crate::support::{
    LEASE, PATIENCE, SLACK, SOON, ask, client, idle, listening, nothing_left, patient_client,
    took_less, waiting,
};

async fn config(server: &Server, name: &str, value: &str) {
    let mut admin = server.admin().await;
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(name).arg(value);
    let _: () = set.query_async(&mut admin).await.unwrap();
}

async fn a_full_server_renews_and_releases<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let name = unique_name("lock");
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    config(&server, "maxmemory", "1").await;
    let refused = P::of(&ours, "another").try_lock().await.err();
    let refused = refused.expect("there is no room");
    assert!(
        refused.is_refused() && refused.to_string().contains("maxmemory"),
        "{refused}"
    );
    assert!(names_it::<P>("another", refused.lock_name()));
    // Renewals continue.
    assert!(tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err());
    inner.release().await.unwrap();
    guard.reenter().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// They wait for longer than the server keeps a place that is not kept again.
async fn a_full_server_lets_waiters_wait<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    let name = unique_name("lock");
    let held = P::rival(&theirs, &name).lock().await.unwrap();
    let lock = P::of(&ours, &name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await });
    waiting(&ours, 1).await;
    tokio::time::sleep(SLACK).await;
    config(&server, "maxmemory", "1").await;
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished(), "{:?}", waiter.await);
    config(&server, "maxmemory", "0").await;
    held.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The server ends the connection for renewals, and has no room for another.
async fn no_connection_left_for_renewals<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let guard = P::of(&ours, &unique_name("lock")).lock().await.unwrap();
    let mut renewal = server.clients(ClientKind::All).await;
    renewal.retain(|line| line.name.contains("renewal"));
    assert!(!renewal.is_empty());
    let mut admin = server.admin().await;
    let () = ask(&mut admin, &["CONFIG", "SET", "maxclients", "1"]).await;
    for line in renewal {
        let () = ask(&mut admin, &["CLIENT", "KILL", "ID", &line.id.to_string()]).await;
    }
    assert!(tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err());
    guard.release().await.unwrap();
    let () = ask(&mut admin, &["CONFIG", "SET", "maxclients", "100"]).await;
    nothing_left(&server).await;
}

async fn no_connection_left_for_messages<P: Primitive>() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let theirs = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let held = P::rival(&theirs, &name).lock().await.unwrap();
    // Each client has two connections, and the command to change the limit used a fifth.
    config(&server, "maxclients", "1").await;
    let lock = P::of(&ours, &name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await });
    waiting(&ours, 1).await;
    tokio::time::sleep(LEASE).await;
    held.release().await.unwrap();
    // By the waiter's timer, not after the third of a lease for which a command is retried.
    let guard = within(SOON, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The documented rights are enough, on each lane.
async fn a_user_with_the_documented_rights<P: Primitive>() {
    let server = Server::start();
    let rights = rows(P::RIGHTS);
    let rights = &rights
        | &rows(&[
            "every lock",
            "fenced locks, also",
            "waking those who wait",
            "late commands made impossible",
            "scripts loaded with their first call",
            "names in `CLIENT LIST`",
        ]);
    let (ours, theirs) = users(&server, &only(&rights)).await;
    work_together::<P>(&server, &ours, &theirs).await;
}

/// Without the rights that only save time or close gaps, the lock still works by polling.
async fn a_user_with_the_bare_minimum<P: Primitive>() {
    let server = Server::start();
    let rights = &rows(P::RIGHTS) | &rows(&["every lock", "fenced locks, also"]);
    let (ours, theirs) = users(&server, &only(&rights)).await;
    work_together::<P>(&server, &ours, &theirs).await;
}

fn only(rights: &Rights) -> String {
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    format!("resetkeys resetchannels -@all {}", rights.join(" "))
}

async fn a_missing_right_is_named<P: Primitive>() {
    let server = Server::start();
    let (ours, _) = users(&server, "~app:* -@all +eval").await;
    let error = P::of(&ours, "x").lock().await.expect_err("no right");
    assert!(error.is_denied(), "{error}");
    assert!(
        error.to_string().to_lowercase().contains("evalsha"),
        "{error}"
    );
    let (ours, _) = users(&server, "~other:* -@all +eval +evalsha").await;
    let error = P::of(&ours, "x").lock().await.expect_err("no right");
    assert!(error.is_denied(), "{error}");
}

/// A right is revoked while a lock is held: renewals fail until the deadline, then the lock is
/// lost.
async fn a_right_taken_away_is_a_loss<P: Primitive>() {
    let server = Server::start();
    let (ours, _) = users(&server, "~* &* +@all").await;
    let guard = P::of(&ours, "x").lock().await.unwrap();
    let mut admin = server.admin().await;
    let mut revoke = redis::cmd("ACL");
    revoke.arg(&["SETUSER", "locker", "-evalsha", "-eval"]);
    let _: () = revoke.query_async(&mut admin).await.unwrap();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
}

async fn users(server: &Server, rights: &str) -> (Client, Client) {
    let mut admin = server.admin().await;
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "locker", "reset", "on", ">pass"]);
    user.arg(rights.split_whitespace().collect::<Vec<_>>());
    let _: () = user.query_async(&mut admin).await.unwrap();
    let url = format!("redis://locker:pass@{}", server.addr());
    let client = async || {
        let builder = Client::builder(&url).key_prefix("app:").lease(LEASE);
        builder.give_up_after(PATIENCE).build().await.unwrap()
    };
    (client().await, client().await)
}

async fn work_together<P: Primitive>(server: &Server, ours: &Client, theirs: &Client) {
    let lock = P::of(ours, "x").fenced();
    let guard = lock.lock().await.unwrap();
    guard.reenter().await.unwrap().release().await.unwrap();
    let other = P::rival(theirs, "x").fenced();
    assert!(other.try_lock().await.unwrap().is_none());
    let waiter = lockset_testkit::spawn(async move { other.lock().await.unwrap() });
    waiting(theirs, 1).await;
    assert!(tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = within(SOON, waiter).await.unwrap();
    assert!(next.fencing_token() > token);
    let rival = P::rival(ours, "x");
    assert!(rival.is_locked().await.unwrap());
    assert!(rival.force_unlock().await.unwrap());
    drop(next);
    // Cut in the middle of a call, with or without the right to kill the old connection.
    let call = tokio::time::timeout(Duration::from_micros(200), lock.lock());
    drop(call.await);
    eventually(SOON, "it can be taken again", async || {
        lock.try_lock().await.unwrap().is_some()
    })
    .await;
    idle(ours).await;
    nothing_left(server).await;
}

/// Connections are replaced and calls abandoned by a user who may not kill connections: leftovers
/// last for at most a part of the lease.
async fn orphans_are_short_lived_without_the_right_to_kill<P: Primitive>() {
    let server = Server::start();
    let rights = "~* &* +@all -client|kill -client|info";
    drop(users(&server, rights).await);
    let proxy = lockset_testkit::Proxy::start(server.addr()).await;
    let url = format!("redis://locker:pass@{}", proxy.addr());
    let ours = Client::builder(&url).lease(LEASE).build().await.unwrap();
    let theirs = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let lock = P::of(&ours, &name).lease(Duration::from_secs(8));
    proxy.hold_request_containing(name.as_bytes());
    let call = tokio::time::timeout(Duration::from_millis(20), lock.lock());
    assert!(call.await.is_err());
    proxy.cut();
    // The attempt is cancelled over a new connection; then the acquire arrives late.
    tokio::time::sleep(LEASE).await;
    proxy.release_held();
    let next = within(SOON, P::rival(&theirs, &name).lock()).await.unwrap();
    next.release().await.unwrap();
}

/// A server refuses all writes for a while: the release of a dropped guard is retried until then,
/// not until the lease ends.
async fn a_release_outlasts_a_refusal<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock")).lease(Duration::from_secs(60));
    let guard = lock.lock().await.unwrap();
    config(&server, "min-replicas-to-write", "1").await;
    drop(guard);
    let another = P::of(&ours, &unique_name("another"));
    let refused = another.try_lock().await.expect_err("no writes");
    assert!(refused.is_refused(), "{refused}");
    config(&server, "min-replicas-to-write", "0").await;
    nothing_left(&server).await;
    idle(&ours).await;
}

/// Another user's script blocks the server: connections are replaced, and their calls settled.
async fn a_busy_server_is_waited_for<P: Primitive>() {
    let server = Server::start();
    config(&server, "busy-reply-threshold", "50").await;
    let ours = client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock")).lease(Duration::from_secs(60));
    lock.lock().await.unwrap().release().await.unwrap();
    let mut busy = server.admin().await;
    let endless = lockset_testkit::spawn(async move {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end").arg(0);
        eval.query_async::<redis::Value>(&mut busy).await
    });
    let refused = within(SOON, async {
        loop {
            if let Err(error) = lock.try_lock().await {
                return error;
            }
        }
    })
    .await;
    assert!(refused.is_refused() || refused.is_io(), "{refused}");
    let mut admin = server.admin().await;
    let mut kill = redis::cmd("SCRIPT");
    kill.arg("KILL");
    let _: () = kill.query_async(&mut admin).await.unwrap();
    assert!(endless.await.unwrap().is_err());
    lock.lock().await.unwrap().release().await.unwrap();
    // No cancellation is repeated for the rest of the lease.
    idle(&ours).await;
    nothing_left(&server).await;
}

/// The server becomes a replica, and then a primary again.
async fn a_replica_is_refused_and_left<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock"));
    let mut admin = server.admin().await;
    let mut replica = redis::cmd("REPLICAOF");
    replica.arg("127.0.0.1").arg("1");
    let _: () = replica.query_async(&mut admin).await.unwrap();
    let before = server.clients(ClientKind::All).await;
    // A call whose last attempt meets a machine that stands still says so instead.
    eventually(SOON, "it is refused as a replica", async || {
        let refused = lock.try_lock().await.expect_err("a replica");
        assert!(refused.is_refused() || refused.is_io(), "{refused}");
        refused.is_refused() && refused.to_string().contains("primary")
    })
    .await;
    let after = server.clients(ClientKind::All).await;
    let command = |lines: &[lockset_testkit::ClientLine]| -> Vec<u64> {
        let ours = lines.iter().filter(|line| line.name.contains("command"));
        ours.map(|line| line.id).collect()
    };
    assert_ne!(
        command(&before),
        command(&after),
        "a connection of its own each time"
    );
    let mut primary = redis::cmd("REPLICAOF");
    primary.arg("NO").arg("ONE");
    let _: () = primary.query_async(&mut admin).await.unwrap();
    // Attempts to connect pause for up to half a second, longer than a call goes on by default with this lease.
    let lock = lock.give_up_after(SOON);
    lock.lock().await.unwrap().release().await.unwrap();
}

/// The time limit of a call also applies to an owner that already holds the lock.
async fn a_timed_re_entry_times_out<P: Primitive>() {
    let server = Server::start();
    let proxy = lockset_testkit::Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let lock = P::of(&ours, &unique_name("lock")).owner(&lockset::Owner::new());
    let guard = lock.lock().await.unwrap();
    proxy.drop_replies();
    let started = std::time::Instant::now();
    // Another lease needs a renewal.
    let longer = lock.lease(Duration::from_secs(100));
    let error = longer.try_lock_for(Duration::from_millis(10)).await;
    assert!(error.expect_err("silence").is_io());
    took_less(started, Duration::from_secs(4));
    proxy.pass();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

for_every_primitive! {"multi_thread":
    a_full_server_renews_and_releases
    a_full_server_lets_waiters_wait
    no_connection_left_for_renewals
    no_connection_left_for_messages
    a_user_with_the_documented_rights
    a_user_with_the_bare_minimum
    a_missing_right_is_named
    a_right_taken_away_is_a_loss
    orphans_are_short_lived_without_the_right_to_kill
    a_release_outlasts_a_refusal
    a_busy_server_is_waited_for
    a_replica_is_refused_and_left
    a_timed_re_entry_times_out
}

/// Of a fair semaphore too, whose waiter keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_renews_and_releases_permits() {
    for name in ["plain", "fair"] {
        let server = Server::start();
        let ours = client(&server.url()).await;
        let theirs = client(&server.url()).await;
        let [mine, other] = [&ours, &theirs].map(|client| match name {
            "fair" => client.semaphore(name).permits(2).fair(),
            _ => client.semaphore(name).permits(2),
        });
        let [one, two] = [mine.acquire().await, mine.acquire().await].map(Result::unwrap);
        let waiter = lockset_testkit::spawn(async move { other.acquire().await });
        listening(&server).await;
        config(&server, "maxmemory", "1").await;
        tokio::time::sleep(LEASE * 2).await;
        assert!(!one.is_lost() && !two.is_lost(), "{name}");
        assert!(!waiter.is_finished(), "{name}");
        config(&server, "maxmemory", "0").await;
        one.release().await.unwrap();
        let next = within(SOON, waiter).await.unwrap().unwrap();
        config(&server, "maxmemory", "1").await;
        next.release().await.unwrap();
        two.release().await.unwrap();
    }
}

/// Callers that wait for a connection share its result, instead of each trying to connect.
#[tokio::test]
async fn a_server_that_rejects_connections_is_not_stormed() {
    const CALLS: usize = 100;
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    config(&server, "requirepass", "changed").await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal");
    let killed: usize = kill.query_async(&mut admin).await.unwrap();
    assert!(killed >= 2, "{killed}");
    let mut stats = redis::cmd("INFO");
    stats.arg("stats");
    let mut received = async || {
        let stats: String = stats.query_async(&mut admin).await.unwrap();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.expect("a counter").trim().parse::<usize>().unwrap()
    };
    let before = received().await;
    let lock = ours.lock("x");
    let calls = (0..CALLS).map(|_| lock.is_locked());
    for answer in within(SOON, join_all(calls)).await {
        // The first caller finds out that the connection is gone.
        assert!(answer.is_err_and(|error| error.is_denied() || error.is_io()));
    }
    let made = received().await - before;
    assert!((1..CALLS / 10).contains(&made), "{made} connections");
}
