//! The simulated server as a user's test sees it: every kind of lock, and every fault.

use std::time::Duration;

use lockset::{Client, LostReason, Member, MultiLock};
use lockset_sim::Server;

const SECOND: Duration = Duration::from_secs(1);

async fn two() -> (Server, Client, Client) {
    let server = Server::new();
    let clients = (server.client().await, server.client().await);
    (server, clients.0, clients.1)
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_lock_excludes_and_is_given_back() {
    let (server, ours, theirs) = two().await;
    let held = ours.lock("a").fenced().lock().await.unwrap();
    assert!(theirs.lock("a").try_lock().await.unwrap().is_none());
    held.release().await.unwrap();

    let held = ours.fair_lock("b").lock().await.unwrap();
    let waits = theirs.fair_lock("b");
    let waiting = tokio::spawn(async move { waits.lock().await });
    server.advance(SECOND).await;
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    let (read, also) = (ours.rw_lock("c"), theirs.rw_lock("c"));
    let reads = (read.read().await.unwrap(), also.read().await.unwrap());
    assert!(also.try_write().await.unwrap().is_none());
    drop(reads);
    server.advance(SECOND).await;
    also.write().await.unwrap().release().await.unwrap();

    let members = [
        Member::from(ours.lock("d")),
        Member::from(ours.fair_lock("e")),
    ];
    let all = MultiLock::new(members).unwrap().lock().await.unwrap();
    assert_eq!(server.keys().iter().filter(|key| key.len() == 1).count(), 2);
    all.release().await.unwrap();

    ours.shutdown().await.unwrap();
    theirs.shutdown().await.unwrap();
    server.advance(40 * SECOND).await;
    let left = server.keys();
    assert!(
        left.iter()
            .all(|key| key.starts_with("redisson_lock_token")),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_for_as_long_as_its_guard_lives() {
    let (server, ours, theirs) = two().await;
    let held = ours.lock("a").lock().await.unwrap();
    let before = server.time();
    server.advance(3600 * SECOND).await;
    assert!(server.time() - before >= 3600 * SECOND);
    assert!(!held.is_lost());
    assert!(theirs.lock("a").try_lock().await.unwrap().is_none());
    drop(held);
    let next = theirs.lock("a").try_lock_for(SECOND).await.unwrap();
    assert!(next.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_key_is_noticed_at_once() {
    let (server, ours, _) = two().await;
    let held = ours.lock("a").lock().await.unwrap();
    assert!(server.lose_lease("a"));
    assert!(!server.lose_lease("a"));
    let lost = tokio::time::timeout(SECOND, held.lost())
        .await
        .expect("noticed");
    assert_eq!(lost, LostReason::Revoked);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_semaphore_is_noticed_too() {
    let (server, ours, theirs) = two().await;
    let permit = ours.semaphore("s").permits(1).acquire().await.unwrap();
    assert!(server.lose_lease("s"));
    let lost = tokio::time::timeout(SECOND, permit.lost())
        .await
        .expect("noticed");
    assert_eq!(lost, LostReason::Revoked);
    let next = theirs.semaphore("s").permits(1);
    assert!(next.try_acquire().await.unwrap().is_some());
    assert!(server.lose_lease("s"));
    assert!(!server.lose_lease("s"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_killed_has_its_keys_back_if_it_kept_them() {
    let (server, ours, theirs) = two().await;
    let held = ours.lock("a").lock().await.unwrap();
    server.kill();
    assert!(theirs.lock("a").try_lock().await.unwrap_err().is_io());
    server.restart();
    assert!(theirs.lock("a").try_lock().await.unwrap().is_none());
    server.advance(40 * SECOND).await;
    assert!(!held.is_lost());

    server.kill();
    server.restart_empty();
    assert!(theirs.lock("a").try_lock().await.unwrap().is_some());
    let lost = tokio::time::timeout(15 * SECOND, held.lost())
        .await
        .expect("noticed");
    assert_eq!(lost, LostReason::Revoked);
}

#[tokio::test(start_paused = true)]
async fn behind_a_partition_nothing_is_known_until_it_ends() {
    let (server, ours, theirs) = two().await;
    // So that it is connected.
    ours.ping().await.unwrap();
    server.lose_replies(&ours);
    assert!(ours.lock("a").try_lock().await.unwrap_err().is_io());
    assert_eq!(server.keys(), ["a"]);
    server.heal();
    // The attempt was executed, and is undone.
    let free = theirs.lock("a").try_lock_for(5 * SECOND).await.unwrap();
    assert!(free.is_some());

    server.partition(&theirs);
    let held = free.unwrap();
    let lost = tokio::time::timeout(31 * SECOND, held.lost())
        .await
        .expect("noticed");
    assert_eq!(lost, LostReason::Expired);
    let next = ours.lock("a").try_lock_for(SECOND).await.unwrap();
    assert!(next.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_distance_takes_time_and_a_call_one_round_trip() {
    let (server, ours, _) = two().await;
    let way = Duration::from_millis(20);
    server.delay(way);
    ours.lock("a")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let (commands, began) = (server.commands(), server.time());
    let held = ours.lock("a").lock().await.unwrap();
    assert_eq!(server.commands() - commands, 1);
    let took = server.time() - began;
    assert!(
        (2 * way..2 * way + Duration::from_millis(3)).contains(&took),
        "{took:?}"
    );
    drop(held);
}

/// The clock is tokio's, so it also works on a runtime with threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_two_threads_have_it_one_at_a_time() {
    let (_server, ours, theirs) = two().await;
    let inside = std::sync::Arc::new(tokio::sync::Mutex::new(0));
    let tasks = (0..20).map(|at| {
        let client = if at % 2 == 0 {
            ours.clone()
        } else {
            theirs.clone()
        };
        let inside = std::sync::Arc::clone(&inside);
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = client.lock("a").lock().await.unwrap();
                let mut count = inside.try_lock().expect("nobody else is inside");
                tokio::task::yield_now().await;
                *count += 1;
                drop(count);
                guard.release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(*inside.lock().await, 400);
}

/// The task that blocks may have had its view from the writer.
#[tokio::test(start_paused = true)]
async fn a_view_of_the_loss_of_a_writer_goes_on_with_the_reader() {
    let (server, ours, theirs) = two().await;
    let lock = ours.rw_lock("a");
    let writer = lock.write().await.unwrap();
    let loss = writer.loss();
    let reader = writer.downgrade().await.unwrap();
    assert!(!loss.is_lost());
    // Its lease is not renewed, and another client gets it.
    server.partition(&ours);
    let next = theirs.rw_lock("a").write().await.unwrap();
    assert!(loss.is_lost() && reader.is_lost());
    assert_eq!(loss.wait().await, LostReason::Expired);
    drop((reader, next));
}

/// The hold ends with its lease. The places of the tasks that it was handed on to do not.
#[tokio::test(start_paused = true)]
async fn used_places_go_once_the_server_is_back() {
    let server = Server::new();
    let client = server.client().await;
    let lock = client.fair_lock("a");
    let held = lock.lock().await.unwrap();
    let next = tokio::spawn(async move { lock.lock().await });
    server.advance(SECOND / 10).await;
    held.release().await.unwrap();
    let held = next.await.unwrap().unwrap();
    server.kill();
    drop(held);
    server.advance(60 * SECOND).await;
    server.restart();
    server.advance(SECOND).await;
    let left = server.keys();
    assert!(left.is_empty(), "{left:?}");
}
