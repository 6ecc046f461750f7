//! A `Redlock` on simulated servers: which votes count, and for how long.

use std::time::Duration;

use lockset::{Client, Owner, Redlock};
use lockset_sim::Server;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Of a client with the default settings.
const LEASE: Duration = Duration::from_secs(30);

async fn three() -> ([Server; 3], [Client; 3], Redlock) {
    let servers = [(); 3].map(|()| Server::new());
    let [a, b, c] = &servers;
    let clients = [a.client().await, b.client().await, c.client().await];
    let redlock = Redlock::new(clients.clone()).unwrap();
    (servers, clients, redlock)
}

/// It may have forgotten a vote that is still valid.
#[tokio::test(start_paused = true)]
async fn a_server_without_a_past_has_no_vote_for_a_lease() {
    let (servers, _clients, redlock) = three().await;
    let lock = redlock.lock("a");
    let young = lock.try_lock().await.unwrap_err();
    assert!(young.is_quorum(), "{young}");
    servers[0].advance(LEASE + 2 * SECOND).await;
    let held = lock.try_lock().await.unwrap().expect("three votes");

    let others = [
        servers[0].client().await,
        servers[1].client().await,
        servers[2].client().await,
    ];
    let other = Redlock::new(others).unwrap();
    assert!(other.lock("a").try_lock().await.unwrap().is_none());
    for server in &servers[1..] {
        server.kill();
        server.restart_empty();
    }
    let forgotten = other.lock("a").try_lock().await.unwrap_err();
    assert!(forgotten.is_quorum(), "{forgotten}");
    drop(held);
    servers[0].advance(LEASE * 11 / 10).await;
    let again = other.lock("a").try_lock_for(SECOND).await.unwrap();
    assert!(again.is_some());
}

/// Its validity counts from before it was asked for.
#[tokio::test(start_paused = true)]
async fn a_grant_that_took_as_long_as_its_lease_is_none() {
    let (servers, _clients, redlock) = three().await;
    servers[0].advance(LEASE * 11 / 10).await;
    let lock = redlock.lock("a").fixed_lease(SECOND / 2);
    // The connections are made before it takes long.
    drop(lock.try_lock().await.unwrap().expect("three votes"));
    servers[0].advance(SECOND).await;
    for server in &servers {
        server.delay(SECOND * 26 / 100);
    }
    let late = lock.try_lock().await;
    assert!(!matches!(late, Ok(Some(_))), "{late:?}");
}

/// A waiter of another process usually asks as soon as it is notified of a release; after a failed round, a random
/// pause delays it. Its timer would let it sleep for up to 200 ms.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_notified_of_a_release() {
    let (servers, _clients, redlock) = three().await;
    servers[0].advance(LEASE * 11 / 10).await;
    let [a, b, c] = &servers;
    let other = Redlock::new([a.client().await, b.client().await, c.client().await]).unwrap();
    let lock = other.lock("a");
    for server in &servers {
        server.delay(MS);
    }
    let mut waits = Vec::new();
    for pause in 0..40 {
        let held = redlock.lock("a").lock().await.unwrap();
        let lock = lock.clone();
        let waiting = tokio::spawn(async move {
            let held = lock.lock().await.unwrap();
            (Instant::now(), held)
        });
        // Until its pauses are as long as they get; then at another moment of a pause each time.
        servers[0].advance(SECOND + 7 * pause * MS).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let (granted, held) = waiting.await.unwrap();
        waits.push(granted - released);
        held.release().await.unwrap();
    }
    waits.sort();
    // The release, its message, and two rounds if one came too early.
    assert!(waits[20] <= 20 * MS, "{waits:?}");
}

/// Its turn is over, so its process lets others come first. It hears of their release, as one that was refused does.
#[tokio::test(start_paused = true)]
async fn a_call_that_backs_off_before_it_asks_listens() {
    let (servers, clients, redlock) = three().await;
    servers[0].advance(LEASE * 11 / 10).await;
    let [a, b, c] = &servers;
    let other = Redlock::new([a.client().await, b.client().await, c.client().await]).unwrap();
    let (ours, theirs) = (redlock.lock("a"), other.lock("a"));
    for server in &servers {
        server.delay(20 * MS);
    }
    let held = ours.lock().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock().await.unwrap() });
    servers[0].advance(SECOND).await;
    drop(held);
    // Each asks right behind the release before it, until the turn of these is over.
    let turns = tokio::spawn(async move {
        for _ in 0..100 {
            drop(ours.lock().await.unwrap());
        }
    });
    let theirs = waiting.await.unwrap();
    let listening = clients.map(|client| client.stats().subscriptions);
    assert_eq!(listening, [1, 1, 1]);
    drop(theirs);
    turns.abort();
}

/// A hold that was seen and is over takes no vote of a server that restarts later.
#[tokio::test(start_paused = true)]
async fn a_long_hold_that_is_over_keeps_no_server_from_voting() {
    let (servers, _clients, redlock) = three().await;
    let [a, b, c] = &servers;
    let other = Redlock::new([a.client().await, b.client().await, c.client().await]).unwrap();
    a.advance(LEASE * 11 / 10).await;
    let hour = 3600 * SECOND;
    let job = redlock.lock("job").at_least(12 * hour);
    job.lock().await.unwrap().release().await.unwrap();
    assert!(other.lock("job").try_lock().await.unwrap().is_none());
    a.advance(12 * hour + hour / 5).await;
    for server in &servers[..2] {
        server.kill();
        server.restart_empty();
        a.advance(SECOND).await;
        // How long it has been up is known from when it is seen first.
        let _ = other.lock("b").try_lock().await;
        a.advance(hour).await;
    }
    let taken = other.lock("a").try_lock().await.unwrap();
    assert!(taken.is_some());
}

/// A call that enters a hold again and asks for it to be left is answered by a majority; all servers leave it.
#[tokio::test(start_paused = true)]
async fn what_a_later_call_asks_to_be_left_is_left_at_every_server() {
    let (servers, clients, redlock) = three().await;
    servers[0].advance(LEASE * 11 / 10).await;
    let lock = redlock.lock("a").owner(&Owner::new());
    let first = lock.lock().await.unwrap();
    servers[0].advance(SECOND).await;
    for (server, client) in servers.iter().zip(&clients) {
        assert!(client.lock("a").is_locked().await.unwrap(), "{server:?}");
    }
    let hour = 3600 * SECOND;
    let second = lock.at_least(hour).lock().await.unwrap();
    second.release().await.unwrap();
    first.release().await.unwrap();
    servers[0].advance(LEASE * 2).await;
    for (server, client) in servers.iter().zip(&clients) {
        assert!(client.lock("a").is_locked().await.unwrap(), "{server:?}");
    }
}

/// The vote of a server that was restarted not long ago is not needed then, so nobody has to be heard.
#[tokio::test(start_paused = true)]
async fn a_majority_that_was_up_for_long_waits_for_no_slow_server() {
    let servers = [(); 5].map(|()| Server::new());
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.client().await);
    }
    let redlock = Redlock::new(clients).unwrap();
    servers[0].advance(700 * SECOND).await;
    servers[0].kill();
    servers[0].restart_empty();
    let lock = redlock.lock("a");
    // The connections exist, and the restarted server has a vote, before one of them is slow.
    for _ in 0..2 {
        lock.lock().await.unwrap().release().await.unwrap();
        servers[0].advance(LEASE * 11 / 10).await;
    }
    servers[4].delay(100 * MS);
    for (slow, bound) in [(None, 10 * MS), (Some(3), 210 * MS)] {
        // With two slow servers, the restarted one is needed for a majority of three.
        if let Some(slow) = slow {
            let slow: usize = slow;
            servers[slow].delay(100 * MS);
        }
        let asked = Instant::now();
        let held = lock.lock().await.unwrap();
        let took = asked.elapsed();
        held.release().await.unwrap();
        servers[0].advance(SECOND).await;
        assert!(took <= bound, "{took:?}");
        assert_eq!(took >= 200 * MS, slow.is_some(), "{took:?}");
    }
}
