//! Slots that move to another node while locks in them are held and waited for.

use std::time::{Duration, Instant};

use lockset::{Client, MultiLock};
use lockset_testkit::{eventually, within};

use super::{
    A_WHILE, LEASE, another, client, listened_to_at, name_at, nothing_left, primaries_alone,
    renewed,
};
use crate::support::{BY_MESSAGE, SOON, ask, command, idle, took_less_until, waiting};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_moves_with_its_slot() {
    let cluster = primaries_alone().await;
    let (ours, theirs) = (client(&cluster, LEASE).await, client(&cluster, LEASE).await);
    let name = "moves";
    // Both clients know the node of the slot.
    let guard = ours.lock(name).lock().await.unwrap();
    assert!(theirs.lock(name).try_lock().await.unwrap().is_none());
    let to = another(&cluster, name).await;
    cluster.migrate(cluster.slot(name).await, to).await;
    assert!(to.keys().await.contains(&name.to_owned()));
    renewed(&guard, LEASE).await;
    assert!(theirs.lock(name).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = theirs.lock(name).try_lock().await.unwrap().expect("free");
    // And back, while the other client holds the lock.
    let back = another(&cluster, name).await;
    cluster.migrate(cluster.slot(name).await, back).await;
    renewed(&guard, LEASE).await;
    assert!(ours.lock(name).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    nothing_left(&cluster, name).await;
    idle(&ours).await;
    idle(&theirs).await;
}

/// The old node answers `ASK` for missing keys, and the new node serves them only after `ASKING`.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_slot_is_half_moved_is_held_and_taken() {
    let cluster = primaries_alone().await;
    let (ours, theirs) = (client(&cluster, LEASE).await, client(&cluster, LEASE).await);
    // Three keys of one slot: one has moved, one has not, and one does not exist yet.
    let [moved, stayed, new] = ["{half}moved", "{half}stayed", "{half}new"];
    let first = ours.lock(moved).lock().await.unwrap();
    let second = theirs.lock(stayed).lock().await.unwrap();
    let (slot, to) = (cluster.slot(moved).await, another(&cluster, moved).await);
    cluster.begin_migration(slot, to).await;
    cluster.move_key(moved, to).await;
    assert!(to.keys().await.contains(&moved.to_owned()));
    renewed(&first, LEASE).await;
    renewed(&second, LEASE).await;
    assert!(theirs.lock(moved).try_lock().await.unwrap().is_none());
    assert!(ours.lock(stayed).try_lock().await.unwrap().is_none());
    let third = ours.lock(new).try_lock().await.unwrap().expect("free");
    assert!(to.keys().await.contains(&new.to_owned()));
    assert!(theirs.lock(new).try_lock().await.unwrap().is_none());
    for guard in [first, second, third] {
        guard.release().await.unwrap();
    }
    for name in [moved, stayed] {
        let guard = ours.lock(name).try_lock().await.unwrap().expect("free");
        renewed(&guard, LEASE).await;
        guard.release().await.unwrap();
    }
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    nothing_left(&cluster, "{half}").await;
    idle(&ours).await;
    idle(&theirs).await;
}

/// A writer or a queued waiter holds by one key at the server, whose lease is renewed.
#[tokio::test(flavor = "multi_thread")]
async fn holds_of_other_kinds_outlast_a_slot_that_is_half_moved() {
    let cluster = primaries_alone().await;
    let client = client(&cluster, LEASE).await;
    let [fair, written, stayed] = ["{kinds}fair", "{kinds}written", "{kinds}stayed"];
    let first = client.fair_lock(fair).lock().await.unwrap();
    let second = client.rw_lock(written).write().await.unwrap();
    let third = client.rw_lock(stayed).write().await.unwrap();
    let (slot, to) = (cluster.slot(fair).await, another(&cluster, fair).await);
    cluster.begin_migration(slot, to).await;
    cluster.move_key(fair, to).await;
    cluster.move_key(written, to).await;
    let lost = async {
        tokio::select! {
            reason = first.lost() => reason,
            reason = second.lost() => reason,
            reason = third.lost() => reason,
        }
    };
    let lost = tokio::time::timeout(LEASE * 2, lost).await;
    assert!(lost.is_err(), "lost: {lost:?}");
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    first.release().await.unwrap();
    second.release().await.unwrap();
    third.release().await.unwrap();
    nothing_left(&cluster, "kinds").await;
    idle(&client).await;
}

/// One script renews them as long as one node has them all.
#[tokio::test(flavor = "multi_thread")]
async fn holds_of_one_client_outlast_a_slot_that_is_half_moved() {
    let cluster = primaries_alone().await;
    let client = client(&cluster, LEASE).await;
    // Granted by one script, and so due at the same time.
    let names = ["{outlast}a", "{outlast}b", "{outlast}c"];
    let all = MultiLock::new(names.map(|name| client.lock(name))).unwrap();
    let guard = all.lock().await.unwrap();
    let (slot, to) = (
        cluster.slot(names[0]).await,
        another(&cluster, names[0]).await,
    );
    cluster.begin_migration(slot, to).await;
    cluster.move_key(names[1], to).await;
    // No lease lasts this long without renewals.
    let lost = tokio::time::timeout(LEASE * 2, guard.lost_member()).await;
    assert!(lost.is_err(), "lost: {lost:?}");
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    guard.release().await.unwrap();
    nothing_left(&cluster, "outlast").await;
    idle(&client).await;
}

/// A slot moves with its keys, so holders of locks in other slots have nothing to check.
#[tokio::test(flavor = "multi_thread")]
async fn many_slots_that_move_cause_no_storm() {
    const SLOTS: usize = 20;
    let cluster = primaries_alone().await;
    let client = client(&cluster, LONG * 4).await;
    let (from, to) = (cluster.node(0), cluster.node(1));
    let mut guards = Vec::new();
    for _ in 0..SLOTS {
        let name = name_at(&cluster, from).await;
        guards.push(client.lock(&name).lock().await.unwrap());
    }
    let scripts_run = async || {
        let mut all = 0;
        for node in cluster.nodes() {
            let stats = node.commandstats().await;
            all += ["eval", "evalsha"]
                .iter()
                .filter_map(|verb| stats.get(*verb))
                .sum::<u64>();
        }
        all
    };
    let before = scripts_run().await;
    for guard in &guards {
        let slot = cluster.slot(guard.name()).await;
        cluster.migrate(slot, to).await;
        assert!(client.lock(guard.name()).is_locked().await.unwrap());
    }
    // Only these calls and no renewals: the first renewal is due after a third of the lease.
    assert_eq!(scripts_run().await, before + SLOTS as u64);
    for guard in guards {
        guard.release().await.unwrap();
    }
    nothing_left(&cluster, "lock").await;
    idle(&client).await;
}

/// Both nodes refuse a script with keys on both sides until the slot has moved. A release needs no such script.
#[tokio::test(flavor = "multi_thread")]
async fn locks_wait_for_the_end_of_the_move() {
    let cluster = primaries_alone().await;
    let client = client(&cluster, LONG).await;
    let names = ["{several}a", "{several}b"];
    let both = MultiLock::new(names.map(|name| client.lock(name))).unwrap();
    let guard = both.lock().await.unwrap();
    let (slot, to) = (
        cluster.slot(names[0]).await,
        another(&cluster, names[0]).await,
    );
    cluster.begin_migration(slot, to).await;
    cluster.move_key(names[0], to).await;
    within(A_WHILE, guard.release()).await.unwrap();
    let taking = lockset_testkit::spawn(async move { both.lock().await });
    // At least one of the nodes answered `TRYAGAIN`.
    eventually(SOON, "the attempt was refused", async || {
        let mut refused = 0;
        for node in cluster.nodes() {
            let mut info = redis::cmd("INFO");
            info.arg("errorstats");
            let mut admin = node.admin().await;
            let stats: String = info.query_async(&mut admin).await.unwrap();
            refused += stats.matches("errorstat_TRYAGAIN").count();
        }
        refused > 0
    })
    .await;
    assert!(!taking.is_finished());
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    let guard = within(A_WHILE, taking).await.unwrap().unwrap();
    guard.release().await.unwrap();
    nothing_left(&cluster, "{several}").await;
    idle(&client).await;
}

/// The leases of readers are separate keys that move one by one, after their lock: a missing key is
/// not an expired lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_while_the_leases_of_readers_are_on_their_way() {
    let cluster = primaries_alone().await;
    let (ours, also) = (client(&cluster, LONG).await, client(&cluster, LONG).await);
    let (theirs, asks) = (client(&cluster, LONG).await, client(&cluster, LONG).await);
    let name = "read";
    let guard = ours.rw_lock(name).read().await.unwrap();
    let leaves = also.rw_lock(name).read().await.unwrap();
    let lock = theirs.rw_lock(name);
    let writer = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    waiting(&theirs, 1).await;
    let (slot, to) = (cluster.slot(name).await, another(&cluster, name).await);
    let noted = format!("lockset_rw_waiting:{{{name}}}");
    let owner = cluster.primary_of(name).await;
    eventually(SOON, "the writer is noted", async || {
        owner.keys().await.contains(&noted)
    })
    .await;
    cluster.begin_migration(slot, to).await;
    cluster.move_key(name, to).await;
    cluster.move_key(&noted, to).await;
    let lock = asks.rw_lock(name);
    assert!(lock.try_write().await.unwrap().is_none());
    // A reader that leaves does not take the others for dead either.
    leaves.release().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(!guard.is_lost() && !writer.is_finished());
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    guard.release().await.unwrap();
    let written = within(A_WHILE, writer).await.unwrap();
    written.release().await.unwrap();
}

/// The release message is published at the node with the key. A waiter subscribed at the other node
/// polls.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_a_lock_whose_slot_is_half_moved() {
    let cluster = primaries_alone().await;
    let (ours, theirs) = (client(&cluster, LONG).await, client(&cluster, LONG).await);
    let name = "waited";
    let guard = ours.lock(name).lock().await.unwrap();
    let lock = theirs.lock(name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&theirs, 1).await;
    let (slot, to) = (cluster.slot(name).await, another(&cluster, name).await);
    listened_to_at(cluster.primary_of(name).await, name).await;
    cluster.begin_migration(slot, to).await;
    cluster.move_key(name, to).await;
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    cluster.move_keys(slot, to).await;
    cluster.end_migration(slot, to).await;
    guard.release().await.unwrap();
    nothing_left(&cluster, name).await;
    idle(&theirs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_subscribes_at_the_new_node_of_the_slot() {
    let cluster = primaries_alone().await;
    let (ours, theirs) = (client(&cluster, LONG).await, client(&cluster, LONG).await);
    let name = "listened";
    let guard = ours.lock(name).lock().await.unwrap();
    let fair = ours.fair_lock("{listened}fair").lock().await.unwrap();
    // Each waiter has its own subscription.
    let mut waiters = Vec::new();
    let lock = theirs.lock(name);
    waiters.push(lockset_testkit::spawn(async move {
        lock.lock().await.unwrap().release().await.unwrap();
        Instant::now()
    }));
    let lock = theirs.fair_lock("{listened}fair");
    waiters.push(lockset_testkit::spawn(async move {
        lock.lock().await.unwrap().release().await.unwrap();
        Instant::now()
    }));
    waiting(&theirs, 2).await;
    let (slot, to) = (cluster.slot(name).await, another(&cluster, name).await);
    let from = cluster.primary_of(name).await;
    listened_to_at(from, name).await;
    cluster.migrate(slot, to).await;
    listened_to_at(to, "redisson_lock__channel:{listened}").await;
    listened_to_at(to, "{listened}fair").await;
    let mut released = vec![Instant::now()];
    guard.release().await.unwrap();
    released.push(Instant::now());
    fair.release().await.unwrap();
    for (waiter, released) in waiters.into_iter().zip(released) {
        let got = within(SOON, waiter).await.unwrap();
        // By a message, not by a timer.
        took_less_until(got, released, BY_MESSAGE);
    }
    nothing_left(&cluster, name).await;
    idle(&ours).await;
    idle(&theirs).await;
}

/// As where the nodes do not know sharded channels. Messages on plain ones reach every node, so the waiter need not
/// subscribe at another.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_on_a_plain_channel_hears_of_a_lock_whose_slot_has_moved() {
    let cluster = primaries_alone().await;
    let rules = ["on", ">p", "~*", "&*", "+@all", "-pubsub"];
    for node in cluster.nodes() {
        command(node, &[&["ACL", "SETUSER", "u"][..], &rules].concat()).await;
    }
    let addrs = cluster.addrs().into_iter().map(|addr| addr.to_string());
    let url = addrs.collect::<Vec<_>>().join(",");
    let url = format!("redis+cluster://u:p@{url}");
    let connected = async || Client::builder(&url).lease(LONG).build().await.unwrap();
    let (ours, theirs) = (connected().await, connected().await);
    let name = "listened";
    let guard = ours.lock(name).lock().await.unwrap();
    let lock = theirs.lock(name);
    let waiter = lockset_testkit::spawn(async move {
        lock.lock().await.unwrap().release().await.unwrap();
        Instant::now()
    });
    let (slot, to) = (cluster.slot(name).await, another(&cluster, name).await);
    let mut from = cluster.primary_of(name).await.admin().await;
    let is_heard = async || {
        let words = ["PUBSUB", "CHANNELS", "redisson_lock__channel:{listened}"];
        ask::<Vec<String>>(&mut from, &words).await.len() == 1
    };
    eventually(A_WHILE, "it listens on a plain channel", is_heard).await;
    cluster.migrate(slot, to).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let got = within(SOON, waiter).await.unwrap();
    took_less_until(got, released, BY_MESSAGE);
    nothing_left(&cluster, name).await;
    idle(&ours).await;
    idle(&theirs).await;
}
