//! `Client::plain_semaphore`: permits without an owner, shared with Java.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset::{Client, PlainSemaphore};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::failures::process::{Process, started_for};
use crate::support::{
    BY_MESSAGE, SOON, client, command, idle, listening, patient_client, took_less,
};

struct Scene {
    server: Server,
    ours: Client,
    theirs: Client,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let ours = patient_client(&server.url()).await;
        let theirs = patient_client(&server.url()).await;
        let name = unique_name("semaphore");
        Self {
            server,
            ours,
            theirs,
            name,
        }
    }

    fn semaphore(&self, permits: u32) -> PlainSemaphore {
        self.ours.plain_semaphore(&self.name).permits(permits)
    }

    fn other(&self) -> PlainSemaphore {
        self.theirs.plain_semaphore(&self.name)
    }

    /// Redisson's `tryAcquire(k)`.
    async fn java_acquires(&self, count: u32) -> bool {
        let script = "local v = redis.call('get', KEYS[1]) if v ~= false and tonumber(v) >= tonumber(ARGV[1]) then \
                      redis.call('decrby', KEYS[1], ARGV[1]) return 1 end return 0";
        let count = count.to_string();
        let reply = command(&self.server, &["EVAL", script, "1", &self.name, &count]).await;
        reply == redis::Value::Int(1)
    }

    /// Redisson's `release(k)`.
    async fn java_releases(&self, count: u32) {
        let script =
            "local v = redis.call('incrby', KEYS[1], ARGV[1]) redis.call('publish', KEYS[2], v)";
        let (count, channel) = (count.to_string(), format!("redisson_sc:{{{}}}", self.name));
        command(
            &self.server,
            &["EVAL", script, "2", &self.name, &channel, &count],
        )
        .await;
    }

    /// All permits are available, and nothing else is left.
    async fn all_are_back(&self, permits: u32) {
        idle(&self.ours).await;
        idle(&self.theirs).await;
        let other = self.other();
        assert_eq!(other.available().await.unwrap(), permits);
        eventually(SOON, "no client is subscribed", async || {
            self.server.pubsub_channels().await.is_empty()
        })
        .await;
        let keys = self.server.keys().await;
        assert!(!keys.iter().any(|key| key.contains("holds")), "{keys:?}");
    }
}

#[tokio::test]
async fn permits_are_acquired_all_or_none_and_released() {
    let scene = Scene::new().await;
    let semaphore = scene.semaphore(3);
    assert!(
        scene.other().try_acquire().await.unwrap().is_none(),
        "it is not there"
    );
    let two = semaphore.clone().many(2).acquire().await.unwrap();
    assert_eq!((two.count(), two.name()), (2, &*scene.name));
    assert!(scene.other().many(2).try_acquire().await.unwrap().is_none());
    let one = scene.other().try_acquire().await.unwrap().unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 0);
    two.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 2);
    drop(one);
    scene.all_are_back(3).await;
}

#[tokio::test]
async fn a_waiter_is_woken_by_rust_and_by_java() {
    let scene = Scene::new().await;
    let semaphore = scene.semaphore(1);
    let first = semaphore.acquire().await.unwrap();
    let waiter = scene.other();
    let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
    listening(&scene.server).await;
    let since = Instant::now();
    first.release().await.unwrap();
    let second = within(SOON, waiting).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
    second.forget();
    // Java releases permits that Rust acquired, and the reverse.
    let waiting = lockset_testkit::spawn(async move { semaphore.acquire().await });
    listening(&scene.server).await;
    let since = Instant::now();
    scene.java_releases(1).await;
    within(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    took_less(since, BY_MESSAGE);
    assert!(scene.java_acquires(1).await && !scene.java_acquires(1).await);
    assert!(scene.other().try_acquire().await.unwrap().is_none());
    assert!(scene.other().release(1).await.unwrap());
    assert!(scene.java_acquires(1).await);
}

#[tokio::test]
async fn a_wait_times_out_after_a_last_attempt() {
    let scene = Scene::new().await;
    let _one = scene.semaphore(1).acquire().await.unwrap();
    let since = Instant::now();
    let limit = Duration::from_millis(150);
    assert!(
        scene
            .other()
            .try_acquire_for(limit)
            .await
            .unwrap()
            .is_none()
    );
    assert!(since.elapsed() >= limit);
    let waiter = scene.other();
    let waiting =
        lockset_testkit::spawn(
            async move { waiter.try_acquire_for(Duration::from_millis(900)).await },
        );
    listening(&scene.server).await;
    // No message is sent.
    command(&scene.server, &["INCR", &scene.name]).await;
    assert!(waiting.await.unwrap().unwrap().is_some(), "the last look");
}

#[tokio::test]
async fn bad_input_is_named() {
    let scene = Scene::new().await;
    let semaphore = scene.semaphore(2);
    let errors = [
        semaphore.clone().many(0).acquire().await.unwrap_err(),
        semaphore.clone().many(3).try_acquire().await.unwrap_err(),
        scene.semaphore(u32::MAX).acquire().await.unwrap_err(),
        semaphore.try_set(u32::MAX).await.unwrap_err(),
        semaphore.release(0).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
    }
    let error = scene.ours.plain_semaphore("").acquire().await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    command(&scene.server, &["HSET", &scene.name, "a", "b"]).await;
    assert!(semaphore.acquire().await.unwrap_err().is_wrong_type());
}

#[tokio::test]
async fn a_semaphore_deleted_by_java_is_not_recreated() {
    let scene = Scene::new().await;
    let permit = scene.semaphore(1).acquire().await.unwrap();
    command(&scene.server, &["DEL", &scene.name]).await;
    permit.release().await.unwrap();
    assert_eq!(scene.server.keys().await, [""; 0]);
    assert!(!scene.other().release(1).await.unwrap());
    assert!(scene.other().try_set(2).await.unwrap());
    assert!(!scene.other().try_set(5).await.unwrap());
    let permit = scene.other().acquire().await.unwrap();
    // The server loses its data.
    command(&scene.server, &["FLUSHALL"]).await;
    let error = permit.release().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
    assert_eq!(scene.other().available().await.unwrap(), 0);
}

/// The server executed the call, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_counts_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let semaphore = ours.plain_semaphore(unique_name("semaphore")).permits(3);
    semaphore.acquire().await.unwrap().release().await.unwrap();
    semaphore.release(1).await.unwrap();
    proxy.swallow_next_reply_then_cut();
    let permit = within(SOON, semaphore.acquire()).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 3);
    proxy.swallow_next_reply_then_cut();
    within(SOON, permit.release()).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 4);
    proxy.swallow_next_reply_then_cut();
    assert!(within(SOON, semaphore.release(1)).await.unwrap());
    assert_eq!(semaphore.available().await.unwrap(), 5);
    assert_eq!(proxy.fired(), 3);
}

/// Polled any number of times and dropped, with replies that arrive, arrive late, or never arrive.
#[tokio::test]
async fn a_dropped_future_leaves_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (ours, theirs) = (
        client(&proxy.url()).await,
        patient_client(&server.url()).await,
    );
    let scene = Scene {
        name: unique_name("semaphore"),
        server,
        ours,
        theirs,
    };
    let semaphore = scene.semaphore(1);
    assert!(semaphore.try_set(1).await.unwrap());
    let set = |replies: usize| match replies {
        0 => proxy.pass(),
        1 => proxy.delay_replies(Duration::from_millis(20)),
        _ => proxy.drop_replies(),
    };
    for replies in 0..3 {
        for moment in [Duration::ZERO, Duration::from_millis(5)] {
            for polls in 1..8 {
                set(replies);
                let acquired = poll_times(semaphore.try_acquire_for(SOON), (polls, moment)).await;
                let is_acquired = acquired.is_some();
                drop(acquired);
                proxy.pass();
                idle(&scene.ours).await;
                assert_eq!(scene.other().available().await.unwrap(), 1);
                // A dropped release, too.
                let permit = within(SOON, semaphore.acquire()).await.unwrap();
                set(replies);
                let released = poll_times(permit.release(), (polls, moment)).await;
                if let Some(Err(error)) = released {
                    assert!(replies == 2 && error.is_io(), "{error}");
                }
                proxy.pass();
                idle(&scene.ours).await;
                assert_eq!(scene.other().available().await.unwrap(), 1);
                if is_acquired {
                    break;
                }
            }
        }
    }
    scene.all_are_back(1).await;
}

/// Its connection is broken, and nobody polls the call that would send it again.
#[tokio::test]
async fn a_release_that_is_kept_and_not_polled_returns_the_permits() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let semaphore = ours.plain_semaphore(&scene.name).permits(1);
    let permit = semaphore.acquire().await.unwrap();
    proxy.cut();
    let mut release = Box::pin(permit.release());
    assert!((&mut release).now_or_never().is_none());
    let other = scene.semaphore(1);
    eventually(SOON, "it is returned", async || {
        other.available().await.unwrap() == 1
    })
    .await;
    within(SOON, release).await.unwrap();
}

#[tokio::test]
async fn a_dropped_wait_leaves_nothing() {
    let scene = Scene::new().await;
    let semaphore = scene.semaphore(1);
    let held = scene.semaphore(1).acquire().await.unwrap();
    for polls in 1..12 {
        let waited = semaphore.try_acquire_for(Duration::from_millis(20));
        let waited = poll_times(waited, (polls, Duration::from_millis(2))).await;
        assert!(waited.transpose().unwrap().flatten().is_none());
    }
    held.release().await.unwrap();
    scene.all_are_back(1).await;
}

#[tokio::test]
async fn a_shut_down_client_ends_waits_and_releases_dropped_permits() {
    let scene = Scene::new().await;
    let (semaphore, other) = (scene.semaphore(2), scene.other());
    let (kept, dropped) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let waiting = lockset_testkit::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.many(2).acquire().await }
    });
    listening(&scene.server).await;
    drop(dropped);
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    let error = within(SOON, waiting).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(semaphore.try_acquire().await.unwrap_err().is_closed());
    assert_eq!(other.available().await.unwrap(), 1);
    kept.forget();
}

/// The weakness of plain semaphores: the permits of a killed process are lost until permits are
/// added by hand.
#[tokio::test]
async fn a_killed_process_takes_its_permits_with_it() {
    let scene = Scene::new().await;
    let semaphore = scene.semaphore(2);
    assert!(semaphore.try_set(2).await.unwrap());
    let test = "kinds::plain_semaphore::process_holding_a_permit";
    let mut process = Process::start(test, &scene.server, &scene.name);
    assert_eq!(process.answer(), "holds");
    process.kill();
    assert_eq!(semaphore.available().await.unwrap(), 1);
    let permit = semaphore.acquire().await.unwrap();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert!(semaphore.release(1).await.unwrap());
    semaphore.acquire().await.unwrap().release().await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 2);
}

#[tokio::test]
#[ignore = "the other process of a test"]
async fn process_holding_a_permit() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let client = patient_client(&url).await;
    let _permit = client.plain_semaphore(name).acquire().await.unwrap();
    println!("answer:holds");
    std::future::pending::<()>().await;
}

/// At most the existing permits are held at any time, and all are available at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_take_few() {
    let scene = Scene::new().await;
    let held = Arc::new(AtomicU32::new(0));
    let workers = (0..24).map(|worker: u32| {
        let semaphore = [scene.semaphore(3), scene.other().permits(3)][worker as usize % 2].clone();
        let (semaphore, count) = (semaphore.many(1 + worker % 3), 1 + worker % 3);
        let held = Arc::clone(&held);
        lockset_testkit::spawn(async move {
            for turn in 0..8 {
                let permits = semaphore.acquire().await.unwrap();
                assert!(held.fetch_add(count, Ordering::SeqCst) + count <= 3);
                tokio::task::yield_now().await;
                held.fetch_sub(count, Ordering::SeqCst);
                if turn % 2 == 0 {
                    permits.release().await.unwrap();
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        within(SOON * 6, worker).await.unwrap();
    }
    scene.all_are_back(3).await;
}
