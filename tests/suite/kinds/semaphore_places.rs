//! Places in the queue of a fair semaphore: taken in the order of arrival, and left at once.

use std::time::{Duration, Instant};

use lockset::{Client, Semaphore, SemaphoreGuard};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;

use crate::support::{BY_MESSAGE, SOON, ask, client_with_lease, idle, patient_client, took_less};

struct Scene {
    server: Server,
    proxy: Proxy,
    ours: Client,
    /// Behind the proxy.
    theirs: Client,
    name: String,
    admin: MultiplexedConnection,
}

type Waiting = JoinHandle<lockset::Result<SemaphoreGuard>>;

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.addr()).await;
        Self {
            ours: patient_client(&server.url()).await,
            theirs: patient_client(&proxy.url()).await,
            name: unique_name("semaphore"),
            admin: server.admin().await,
            server,
            proxy,
        }
    }

    fn of(&self, client: &Client) -> Semaphore {
        client.semaphore(&self.name).permits(1).fair()
    }

    fn waits(&self, client: &Client) -> Waiting {
        let semaphore = self.of(client);
        lockset_testkit::spawn(async move { semaphore.acquire().await })
    }

    async fn places(&self) -> u64 {
        let queue = format!("lockset_sem_queue:{{{}}}", self.name);
        ask(&mut self.admin.clone(), &["ZCARD", &queue]).await
    }

    /// Waits until there are so many places, less than the server keeps them by itself.
    async fn has_places(&self, count: u64) {
        let since = Instant::now();
        eventually(SOON, "the places", async || self.places().await == count).await;
        took_less(since, BY_MESSAGE);
    }

    /// Waits until a waiter has polled: it does so again in a second.
    async fn polled(&self) {
        let alive = format!("lockset_sem_alive:{{{}}}", self.name);
        let mut admin = self.admin.clone();
        let mut kept = async || -> Vec<String> {
            ask(&mut admin, &["ZRANGE", &alive, "0", "-1", "WITHSCORES"]).await
        };
        let before = kept().await;
        eventually(SOON, "a poll", async || kept().await != before).await;
    }
}

async fn gets(waiting: Waiting) -> SemaphoreGuard {
    within(SOON, waiting).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_later_caller_of_one_client_has_its_place_before_those_that_come_after_it() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours).acquire().await.unwrap();
    let first = scene.waits(&scene.theirs);
    scene.has_places(1).await;
    scene.polled().await;
    let second = scene.waits(&scene.theirs);
    scene.has_places(2).await;
    let third = scene.waits(&scene.ours);
    scene.has_places(3).await;
    held.release().await.unwrap();
    gets(first).await.release().await.unwrap();
    let guard = gets(second).await;
    assert!(!third.is_finished());
    guard.release().await.unwrap();
    gets(third).await.release().await.unwrap();
    idle(&scene.ours).await;
    assert_eq!(scene.places().await, 0);
}

/// It has never asked itself: the first request of its client took its place.
#[tokio::test]
async fn a_dropped_future_leaves_its_place_at_once() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours).acquire().await.unwrap();
    let first = scene.waits(&scene.theirs);
    scene.has_places(1).await;
    let second = scene.waits(&scene.theirs);
    eventually(SOON, "its place", async || scene.places().await == 2).await;
    second.abort();
    scene.has_places(1).await;
    let single = scene.of(&scene.theirs).try_acquire().await.unwrap();
    assert!(single.is_none());
    assert_eq!(scene.places().await, 1);
    held.release().await.unwrap();
    gets(first).await.release().await.unwrap();
}

/// Its client gets the permit that a caller has asked for that is gone.
#[tokio::test]
async fn a_caller_that_gets_the_permit_of_another_leaves_its_place() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours).acquire().await.unwrap();
    let id = held.holder_ids().next().unwrap().to_owned();
    let first = scene.waits(&scene.theirs);
    scene.has_places(1).await;
    let second = scene.waits(&scene.theirs);
    eventually(SOON, "its place", async || scene.places().await == 2).await;
    let queue = format!("lockset_sem_queue:{{{}}}", scene.name);
    // Its next poll: a reply that was still on its way would keep it from asking.
    scene.proxy.hold_request_containing(queue.as_bytes());
    eventually(SOON, "a poll", async || scene.proxy.held() == 1).await;
    scene.proxy.hold_replies();
    held.release().await.unwrap();
    scene.proxy.release_held();
    eventually(SOON, "the first is granted", async || {
        let holders = scene.of(&scene.ours).holders().await.unwrap();
        holders.first().is_some_and(|holder| holder.id != id)
    })
    .await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    scene.proxy.pass();
    let guard = gets(second).await;
    scene.has_places(0).await;
    guard.release().await.unwrap();
    drop(scene.server);
}

/// A client with a short lease asks more often than others, and its places are kept for less time.
#[tokio::test]
async fn a_waiter_with_a_short_heartbeat_ends_no_place_of_another() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours).acquire().await.unwrap();
    let first = scene.waits(&scene.theirs);
    scene.has_places(1).await;
    scene.polled().await;
    let hasty = client_with_lease(&scene.server.url(), Duration::from_millis(300)).await;
    let wait = Duration::from_millis(20);
    assert!(
        scene
            .of(&hasty)
            .try_acquire_for(wait)
            .await
            .unwrap()
            .is_none()
    );
    let [queue, alive] =
        ["queue", "alive"].map(|key| format!("lockset_sem_{key}:{{{}}}", scene.name));
    let mut admin = scene.admin.clone();
    let (seconds, micros): (u64, u64) = ask(&mut admin, &["TIME"]).await;
    let place: Vec<(String, u64)> =
        ask(&mut admin, &["ZRANGE", &alive, "0", "0", "WITHSCORES"]).await;
    let kept_for = place[0].1 - (seconds * 1_000 + micros / 1_000);
    for key in [&queue, &alive] {
        let left: u64 = ask(&mut admin, &["PTTL", key]).await;
        assert!(
            left >= kept_for,
            "{key} for {left} ms, a place in it for {kept_for} ms"
        );
    }
    held.release().await.unwrap();
    gets(first).await.release().await.unwrap();
}
