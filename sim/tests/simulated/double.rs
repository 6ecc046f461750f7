//! Servers that belong together as a user's test sees them: failovers that keep holds or forget them, outages, slots
//! that move.

use std::time::Duration;

use lockset::{LostReason, MultiLock};
use lockset_sim::{Cluster, Sentinel};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_replica_that_takes_over_has_what_it_had_received() {
    let servers = Sentinel::new();
    let client = servers.client().await;
    servers.lag(SECOND);
    let kept = client.lock("kept").lock().await.unwrap();
    servers.advance(2 * SECOND).await;
    let forgotten = client.lock("forgotten").lock().await.unwrap();
    let confirmed = client.lock("confirmed").replicated(1, 3 * SECOND);
    let confirmed = confirmed.lock().await.unwrap();
    let late = client.fair_lock("late").lock().await.unwrap();
    servers.fail_over();
    assert_eq!(late.lost().await, LostReason::Revoked);
    servers.advance(40 * SECOND).await;
    assert!(!kept.is_lost() && !confirmed.is_lost());
    // Confirmed were all that came before.
    assert!(!forgotten.is_lost());
    kept.release().await.unwrap();
    confirmed.release().await.unwrap();
    forgotten.release().await.unwrap();
    client.shutdown().await.unwrap();
    servers.advance(SECOND).await;
    let left = servers.keys();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_while_there_is_no_primary_gets_in_once_there_is() {
    let servers = Sentinel::new();
    let (ours, theirs) = (servers.client().await, servers.client().await);
    let held = theirs.lock("a").lock().await.unwrap();
    let waits = ours.lock("a");
    let waiting = tokio::spawn(async move { waits.lock().await });
    servers.advance(SECOND).await;
    servers.kill_primary();
    servers.advance(SECOND).await;
    let other = ours.lock("b").give_up_after(SECOND).try_lock().await;
    assert!(other.is_err_and(|error| error.is_io()));
    servers.fail_over();
    servers.advance(SECOND).await;
    assert!(!held.is_lost() && !waiting.is_finished());
    held.release().await.unwrap();
    let granted = waiting.await.unwrap().unwrap();
    // The old primary is the replica now, and takes over in its turn.
    servers.restart();
    servers.advance(SECOND).await;
    servers.fail_over();
    servers.advance(40 * SECOND).await;
    granted.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "no replica is up")]
async fn nobody_takes_over_from_the_last_one() {
    let servers = Sentinel::new();
    servers.kill_primary();
    servers.fail_over();
    servers.kill_primary();
    servers.fail_over();
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_down_keeps_nobody_from_the_others() {
    let servers = Cluster::new();
    let client = servers.client().await;
    // Their slots are 15495, 3300 and 7365: one in each shard.
    let locks = ["a", "b", "c"].map(|name| client.lock(name));
    servers.kill_primary("a");
    let down = locks[0].try_lock_for(SECOND).await;
    assert!(down.is_err_and(|error| error.is_io()));
    let held = locks[1].lock().await.unwrap();
    let also = locks[2].lock().await.unwrap();
    assert_eq!(servers.keys(), ["b", "c"]);
    servers.fail_over("a");
    locks[0].lock().await.unwrap().release().await.unwrap();
    servers.advance(40 * SECOND).await;
    held.release().await.unwrap();
    also.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_moves_while_it_is_held_and_waited_for() {
    let servers = Cluster::new();
    let (ours, theirs) = (servers.client().await, servers.client().await);
    let held = ours.fair_lock("a").lock().await.unwrap();
    let waits = theirs.fair_lock("a");
    let waiting = tokio::spawn(async move { waits.lock().await });
    servers.advance(SECOND).await;
    servers.move_slot("a");
    servers.advance(40 * SECOND).await;
    assert!(!held.is_lost() && !waiting.is_finished());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reaches_no_server_loses_what_it_holds_in_time() {
    let servers = Sentinel::new();
    let settings = |builder: lockset::ClientBuilder| builder.lease(3 * SECOND);
    let client = servers.client_with(settings).await.unwrap();
    let other = servers.client().await;
    let held = client.lock("a").lock().await.unwrap();
    servers.partition(&client);
    assert_eq!(held.lost().await, LostReason::Expired);
    let theirs = other.lock("a").lock().await.unwrap();
    servers.heal();
    servers.crash(&other);
    drop(theirs);
    // The lease ends without a release.
    assert!(client.lock("a").try_lock().await.unwrap().is_none());
    client
        .lock("a")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_span_of_several_locks_begins_when_all_are_held() {
    let servers = Cluster::new();
    let client = servers.client().await;
    servers.delay(Duration::from_millis(20));
    // Their slots are in three shards, so they are taken one after the other.
    let locks = ["a", "b", "c"].map(|name| client.lock(name));
    let span = Duration::from_millis(150);
    let guard = MultiLock::new(locks).unwrap().max_hold(span);
    let guard = guard.lock().await.unwrap();
    let granted = tokio::time::Instant::now();
    assert!(guard.remaining() > span * 9 / 10, "{:?}", guard.remaining());
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    let held = granted.elapsed();
    assert!(span * 9 / 10 < held && held <= span * 11 / 10, "{held:?}");
    drop(guard);
    servers.advance(SECOND).await;
    assert!(servers.keys().is_empty());
    let locks = ["a", "b", "c"].map(|name| client.lock(name));
    let guard = MultiLock::new(locks).unwrap().max_hold(Duration::MAX);
    guard.lock().await.unwrap().release().await.unwrap();
}
