//! Faults caused on purpose in servers, connections and data.

use std::time::{Duration, Instant};

use lockset::{LostReason, Owner};
use lockset_testkit::{ClientKind, Proxy, Server, eventually, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{
    LEASE, SLACK, SOON, client, client_with_lease, command, hasty_client, hold_counts, idle,
    listening, nothing_left, patient_client, took_less, waiting,
};

/// Rounds for a race that goes wrong one time in six without its fix; the same number for each kind
/// of lock.
const ROUNDS: usize = 20;

/// Deletes the keys of a lock.
pub(crate) async fn delete<P: Primitive>(server: &Server, name: &str) {
    for key in P::names(name) {
        command(server, &["DEL", &key]).await;
    }
}

/// Kills the connections of lockset clients whose name contains `part`, and returns how many.
pub(crate) async fn kill_connections(server: &Server, part: &str) -> usize {
    let clients = server.clients(ClientKind::All).await;
    let ours: Vec<_> = clients
        .iter()
        .filter(|line| line.name.starts_with("lockset-") && line.name.contains(part))
        .collect();
    for line in &ours {
        command(server, &["CLIENT", "KILL", "ID", &line.id.to_string()]).await;
    }
    ours.len()
}

async fn scripts_flushed_all_the_time<P: Primitive>() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock"));
    for _ in 0..50 {
        command(&server, &["SCRIPT", "FLUSH"]).await;
        let guard = lock.lock().await.unwrap();
        command(&server, &["SCRIPT", "FLUSH"]).await;
        guard.reenter().await.unwrap().release().await.unwrap();
        guard.release().await.unwrap();
    }
    nothing_left(&server).await;
}

async fn killed_connections_are_replaced<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    let (name, contended) = (unique_name("lock"), unique_name("contended"));
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let held = P::rival(&theirs, &contended).lock().await.unwrap();
    let lock = P::of(&ours, &contended);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    for kind in ["command", "renewal", "push"] {
        assert!(kill_connections(&server, kind).await > 0, "{kind}");
        let inner = within(SOON, guard.reenter()).await.unwrap();
        within(SOON, inner.release()).await.unwrap();
    }
    // After two leases, every hold that had to be renewed has been renewed.
    assert!(tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err());
    assert!(!held.is_lost());
    listening(&server).await;
    held.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// The release message falls into the gap of a killed subscription, several times.
async fn a_lost_message_costs_a_poll_not_the_lock<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let theirs = patient_client(&server.url()).await;
    let name = unique_name("lock");
    for _ in 0..10 {
        let held = P::rival(&theirs, &name).lock().await.unwrap();
        let lock = P::of(&ours, &name);
        let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
        waiting(&ours, 1).await;
        listening(&server).await;
        kill_connections(&server, "push").await;
        held.release().await.unwrap();
        within(SOON, waiter).await.unwrap().release().await.unwrap();
    }
}

/// Freed without a message, as by expiry or by an operator.
async fn a_lock_freed_silently_is_found_by_the_timer<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let theirs = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let held = P::rival(&theirs, &name).lock().await.unwrap();
    let lock = P::of(&ours, &name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    delete::<P>(&server, &name).await;
    let guard = within(SOON, waiter).await.unwrap();
    assert!(held.release().await.unwrap_err().is_not_held());
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// The connection of the subscription stays open but delivers nothing.
async fn a_black_hole_is_left_behind<P: Primitive>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let theirs = patient_client(&server.url()).await;
    let (name, contended) = (unique_name("lock"), unique_name("contended"));
    // A third of it until a renewal, and a sixth until the client knows that no reply comes.
    let lease = LEASE * 2;
    let guard = P::of(&ours, &name).lease(lease).lock().await.unwrap();
    let held = P::rival(&theirs, &contended).lock().await.unwrap();
    let lock = P::of(&ours, &contended).lease(lease);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    proxy.blackhole_existing();
    held.release().await.unwrap();
    let got = within(SOON, waiter).await.unwrap();
    let lost = tokio::time::timeout(lease * 3 / 2, guard.lost());
    assert!(lost.await.is_err());
    got.release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// Requests arrive but replies do not, for longer than a lease.
async fn an_asymmetric_partition_is_a_loss<P: Primitive>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let name = unique_name("lock");
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let cut = Instant::now();
    proxy.drop_replies();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    took_less(cut, LEASE + SLACK);
    drop(guard);
    proxy.pass();
    // Renewals may have been executed all along. The guard's release ends the hold.
    nothing_left(&server).await;
    idle(&ours).await;
}

async fn a_stopped_server_does_not_stop_the_deadline<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("lock");
    let asked = Instant::now();
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let stopped = Instant::now();
    server.stop();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    took_less(stopped, LEASE + SLACK);
    server.cont();
    let next = within(SOON, P::rival(&theirs, &name).lock()).await.unwrap();
    assert!(asked.elapsed() >= LEASE * 9 / 10, "the lease is over");
    assert!(guard.is_lost() && !next.is_lost());
    next.release().await.unwrap();
    drop(guard);
    nothing_left(&server).await;
    idle(&ours).await;
}

async fn a_paused_server_costs_time_only<P: Primitive>() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock"));
    for mode in ["ALL", "WRITE"] {
        let guard = lock.lock().await.unwrap();
        command(&server, &["CLIENT", "PAUSE", "1500", mode]).await;
        // Longer than the reply timeout: the call is retried on a new connection.
        let inner = within(SOON, guard.reenter()).await.unwrap();
        assert_eq!(guard.hold_count(), 2);
        inner.release().await.unwrap();
        guard.release().await.unwrap();
    }
    nothing_left(&server).await;
}

async fn a_server_that_restarts_empty_revokes<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("lock");
    // Long enough for a restart between two renewals.
    let lock = P::of(&ours, &name).lease(LEASE * 5);
    let guard = lock.fenced().lock().await.unwrap();
    server.restart();
    let next = within(SOON, P::rival(&theirs, &name).fenced().lock())
        .await
        .unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LostReason::Revoked, "the first renewal says so");
    assert!(guard.release().await.unwrap_err().is_not_held());
    assert!(!next.is_lost());
    next.release().await.unwrap();
    nothing_left(&server).await;
}

async fn a_deleted_key_is_a_loss<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let name = unique_name("lock");
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let outer = P::of(&ours, &unique_name("other")).lock().await.unwrap();
    delete::<P>(&server, &name).await;
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert!(guard.reenter().await.expect_err("lost").is_not_held());
    assert!(!outer.is_lost(), "the others of its batch are not");
    drop(guard);
    outer.release().await.unwrap();
    nothing_left(&server).await;
}

/// Nothing was sent over the connection that has ended, so the release is in no doubt. On a busy machine the client may
/// see that end too late, so it has longer for that in each further round.
async fn a_release_behind_the_end_of_its_connection_reports_a_loss<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for pause in [100, 500, 3_000] {
        let name = unique_name("lock");
        // Long enough for no renewal to come in between.
        let lock = P::of(&ours, &name).lease(LEASE * 10);
        let guard = lock.lock().await.unwrap();
        delete::<P>(&server, &name).await;
        assert_eq!(kill_connections(&server, "command").await, 1);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if let Err(error) = guard.release().await {
            assert!(error.is_not_held(), "{error}");
            return;
        }
    }
    panic!("no loss was reported");
}

/// Each verb in turn: the server executes the command, the reply is dropped and the connection cut.
async fn a_lost_reply_counts_once<P: Primitive>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let name = unique_name("lock");
    let owner = Owner::new();
    let lock = P::of(&ours, &name).owner(&owner).fenced();
    let names = P::names(&name);
    let count = async || hold_counts(&server, &names).await;
    let each = |count: u32| vec![count; names.len()];
    for round in 1..=5 {
        let fired = proxy.fired();
        proxy.swallow_reply_to(name.as_bytes());
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert_eq!((guard.hold_count(), count().await), (1, each(1)));
        let token = guard.fencing_token();

        // Another lease needs a renewal.
        proxy.swallow_reply_to(name.as_bytes());
        let longer = lock.clone().lease(LEASE * 100);
        let inner = within(SOON, longer.lock()).await.unwrap();
        assert_eq!((inner.hold_count(), count().await), (2, each(1)));
        assert_eq!(inner.fencing_token(), token);
        within(SOON, inner.release()).await.unwrap();
        assert_eq!((guard.hold_count(), count().await), (1, each(1)));

        proxy.swallow_reply_to(name.as_bytes());
        within(SOON, guard.release()).await.unwrap();
        assert_eq!(
            proxy.fired(),
            fired + 3,
            "round {round}: every reply was lost"
        );
        nothing_left(&server).await;
    }
    idle(&ours).await;
}

/// The proxy holds back an acquire, the caller gives up, the connection breaks, the cleanup runs
/// over a new connection, and then the acquire arrives.
async fn a_late_acquire_leaves_no_orphan<P: Primitive>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    for round in 0..ROUNDS {
        // A sixth of it without a reply, and the client asks over another connection.
        let lease = Duration::from_secs(3);
        let ours = client_with_lease(&proxy.url(), lease).await;
        let name = unique_name("lock");
        let lock = P::of(&ours, &name).lease(Duration::from_secs(30));
        proxy.hold_request_containing(name.as_bytes());
        tokio::select! {
            _ = lock.lock() => panic!("its request was caught"),
            () = eventually(SOON, "its request is caught", async || proxy.held() == 1) => {}
        }
        if round % 2 == 0 {
            proxy.cut();
        }
        // Without the cut, the client notices by itself that no reply comes.
        idle(&ours).await;
        proxy.release_held();
        // This round trip on another connection of the proxy is after everything that was released.
        let other = client(&proxy.url()).await;
        assert!(
            !P::of(&other, &name).is_locked().await.unwrap(),
            "an orphan"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(server.keys().await, [""; 0], "an orphan in round {round}");
    }
}

/// Went wrong one time in six: the server is stopped, the connection of the acquire is closed, and
/// the cancellation comes on another connection.
async fn a_cancel_cannot_overtake_its_acquire<P: Primitive>() {
    let server = Server::start();
    for round in 0..ROUNDS {
        let ours = client(&server.url()).await;
        let name = unique_name("lock");
        let lock = P::of(&ours, &name).lease(Duration::from_secs(30));
        // So that the test does not measure loading the scripts or connecting.
        lock.lock().await.unwrap().release().await.unwrap();
        server.stop();
        let call = tokio::time::timeout(Duration::from_millis(20), lock.lock());
        assert!(call.await.is_err());
        // The cancellation gets no reply either, and its connection is replaced.
        tokio::time::sleep(LEASE / 6 + Duration::from_millis(30)).await;
        server.cont();
        idle(&ours).await;
        assert_eq!(server.keys().await, [""; 0], "an orphan in round {round}");
    }
}

async fn an_unreachable_server_is_an_error_in_time<P: Primitive>() {
    let server = Server::start();
    let ours = hasty_client(&server.url()).await;
    let name = unique_name("lock");
    let lock = P::of(&ours, &name);
    let guard = lock.lock().await.unwrap();
    server.kill();
    let started = Instant::now();
    let errors = [
        within(SOON, P::of(&ours, "other").lock())
            .await
            .expect_err("no server"),
        within(SOON, lock.is_locked()).await.unwrap_err(),
        // By now a reader may no longer join the other's hold without asking.
        within(SOON, lock.try_lock()).await.expect_err("no server"),
    ];
    for error in errors {
        assert!(error.is_io(), "{error}");
        assert!(error.lock_name().is_some(), "{error}");
        assert!(error.to_string().contains("server"), "{error}");
    }
    took_less(started, LEASE * 3);
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    drop(guard);
    server.restart();
    eventually(SOON, "the client is as good as new", async || {
        lock.try_lock().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
}

for_every_primitive! {"multi_thread":
    scripts_flushed_all_the_time
    killed_connections_are_replaced
    a_lost_message_costs_a_poll_not_the_lock
    a_lock_freed_silently_is_found_by_the_timer
    a_black_hole_is_left_behind
    an_asymmetric_partition_is_a_loss
    a_stopped_server_does_not_stop_the_deadline
    a_paused_server_costs_time_only
    a_server_that_restarts_empty_revokes
    a_deleted_key_is_a_loss
    a_release_behind_the_end_of_its_connection_reports_a_loss
    a_lost_reply_counts_once
    a_late_acquire_leaves_no_orphan
    a_cancel_cannot_overtake_its_acquire
    an_unreachable_server_is_an_error_in_time
}
