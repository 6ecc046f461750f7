//! `Client::latch`: callers wait until others have counted down.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockset::{Client, Latch};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::support::{
    BY_MESSAGE, SOON, ask, client, command, idle, listening, patient_client, took_less,
};

struct Scene {
    server: Server,
    ours: Client,
    latch: Latch,
    theirs: Latch,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let (ours, theirs) = (
            patient_client(&server.url()).await,
            patient_client(&server.url()).await,
        );
        let name = unique_name("latch");
        Self {
            latch: ours.latch(&name),
            theirs: theirs.latch(&name),
            server,
            ours,
            name,
        }
    }

    /// Counts down like Redisson 4.7.
    async fn java_counts_down(&self) {
        let script = "local v = redis.call('decr', KEYS[1]) if v <= 0 then redis.call('del', KEYS[1]) end \
                      if v == 0 then redis.call('publish', KEYS[2], '0') end";
        let channel = format!("redisson_countdownlatch__channel__{{{}}}", self.name);
        command(&self.server, &["EVAL", script, "2", &self.name, &channel]).await;
    }

    fn waiter(&self) -> tokio::task::JoinHandle<lockset::Result<()>> {
        let latch = self.latch.clone();
        lockset_testkit::spawn(async move { latch.wait().await })
    }
}

#[tokio::test]
async fn all_waiters_continue_after_the_last_count_down() {
    let scene = Scene::new().await;
    assert!(scene.latch.init(2).await.unwrap());
    assert!(!scene.theirs.init(7).await.unwrap());
    assert_eq!(scene.theirs.count().await.unwrap(), 2);
    let waiters: Vec<_> = (0..5).map(|_| scene.waiter()).collect();
    listening(&scene.server).await;
    scene.theirs.count_down().await.unwrap();
    assert!(!scene.latch.wait_for(Duration::ZERO).await.unwrap());
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    let since = Instant::now();
    scene.theirs.count_down().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap().unwrap();
    }
    took_less(since, BY_MESSAGE);
    assert_eq!(scene.latch.count().await.unwrap(), 0);
    // The latch is open.
    scene.latch.count_down().await.unwrap();
    within(SOON, scene.theirs.wait()).await.unwrap();
    idle(&scene.ours).await;
    eventually(SOON, "no client is subscribed", async || {
        scene.server.pubsub_channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_wait_times_out_after_a_last_attempt() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    let since = Instant::now();
    let limit = Duration::from_millis(150);
    assert!(!scene.latch.wait_for(limit).await.unwrap());
    assert!(since.elapsed() >= limit);
    // The waiter gets no message.
    let waiter = scene.latch.clone();
    let waiter =
        lockset_testkit::spawn(async move { waiter.wait_for(Duration::from_millis(900)).await });
    listening(&scene.server).await;
    command(&scene.server, &["DEL", &scene.name]).await;
    assert!(waiter.await.unwrap().unwrap(), "the last look");
}

#[tokio::test]
async fn java_and_rust_count_together() {
    let scene = Scene::new().await;
    scene.latch.init(2).await.unwrap();
    let waiter = scene.waiter();
    listening(&scene.server).await;
    scene.theirs.count_down().await.unwrap();
    let since = Instant::now();
    scene.java_counts_down().await;
    within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
}

#[tokio::test]
async fn an_id_counts_once_and_not_in_the_next_round() {
    let scene = Scene::new().await;
    assert!(!scene.latch.count_down_as("a").await.unwrap(), "it is open");
    scene.latch.init(2).await.unwrap();
    assert!(scene.latch.count_down_as("a").await.unwrap());
    assert!(!scene.theirs.count_down_as("a").await.unwrap());
    assert_eq!(scene.latch.count().await.unwrap(), 1);
    assert!(scene.theirs.count_down_as("b").await.unwrap());
    scene.latch.init(1).await.unwrap();
    assert!(
        !scene.latch.count_down_as("b").await.unwrap(),
        "a late repeat"
    );
    assert_eq!(scene.latch.count().await.unwrap(), 1);
}

/// The latch is set again before the waiters have checked it.
#[tokio::test]
async fn waiters_of_one_round_are_not_delayed_by_the_next() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    let waiters: Vec<_> = (0..10).map(|_| scene.waiter()).collect();
    listening(&scene.server).await;
    scene.theirs.count_down().await.unwrap();
    scene.theirs.init(1).await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap().unwrap();
    }
    assert_eq!(scene.latch.count().await.unwrap(), 1);
}

/// The server forgets after a minute which call opened the latch last.
#[tokio::test]
async fn a_forgotten_opening_does_not_end_the_next_wait() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    scene.latch.count_down().await.unwrap();
    scene.latch.init(1).await.unwrap();
    let waiter = scene.waiter();
    listening(&scene.server).await;
    let opened = format!("lockset_latch_opened:{{{}}}", scene.name);
    let mut admin = scene.server.admin().await;
    assert_eq!(ask::<u64>(&mut admin, &["DEL", &opened]).await, 1);
    // Redisson tells of its own `trySetCount` like this, and the waiter looks again.
    let channel = format!("redisson_countdownlatch__channel__{{{}}}", scene.name);
    scene.server.reset_stats().await;
    let receivers: u64 = ask(&mut admin, &["PUBLISH", &channel, "1"]).await;
    assert_eq!(receivers, 1);
    eventually(SOON, "it has looked", async || {
        let calls = scene.server.commandstats().await;
        calls.get("evalsha").is_some_and(|calls| *calls >= 1)
    })
    .await;
    // Another look, whose answer comes after that of the first.
    assert_eq!(scene.latch.count().await.unwrap(), 1);
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished(), "the latch is closed");
    scene.theirs.count_down().await.unwrap();
    within(SOON, waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn parties_wait_for_each_other() {
    let scene = Scene::new().await;
    scene.latch.init(3).await.unwrap();
    let all = [&scene.latch, &scene.theirs, &scene.latch].map(Latch::arrive_and_wait);
    for done in within(SOON, join_all(all)).await {
        done.unwrap();
    }
    within(SOON, scene.latch.arrive_and_wait()).await.unwrap();
}

#[tokio::test]
async fn deleting_wakes_everybody() {
    let scene = Scene::new().await;
    assert!(!scene.latch.delete().await.unwrap());
    scene.latch.init(5).await.unwrap();
    let waiter = scene.waiter();
    listening(&scene.server).await;
    let since = Instant::now();
    assert!(scene.theirs.delete().await.unwrap());
    within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
}

#[tokio::test]
async fn bad_input_is_named() {
    let scene = Scene::new().await;
    let long = "x".repeat(2 * lockset::NAME_BYTES_MAX);
    let errors = [
        scene.latch.init(0).await.unwrap_err(),
        scene.latch.init(u64::MAX).await.unwrap_err(),
        scene.latch.count_down_as("").await.unwrap_err(),
        scene.latch.count_down_as(&long).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
    }
    let error = scene.ours.latch("{").wait().await.unwrap_err();
    assert!(error.is_invalid() && error.operation() == "wait", "{error}");
    command(&scene.server, &["HSET", &scene.name, "a", "b"]).await;
    assert!(scene.latch.wait().await.unwrap_err().is_wrong_type());
    assert!(scene.latch.count_down().await.unwrap_err().is_wrong_type());
}

#[tokio::test]
async fn a_shut_down_client_ends_the_wait() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    let waiter = scene.waiter();
    listening(&scene.server).await;
    let since = Instant::now();
    within(SOON, scene.ours.shutdown()).await.unwrap();
    let error = within(SOON, waiter).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error}");
    took_less(since, BY_MESSAGE);
    assert!(scene.latch.count().await.unwrap_err().is_closed());
}

/// The server executed the call, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_counts_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let latch = ours.latch(unique_name("latch"));
    // This loads the scripts.
    latch.init(3).await.unwrap();
    latch.count_down().await.unwrap();
    latch.delete().await.unwrap();
    proxy.swallow_next_reply_then_cut();
    assert!(within(SOON, latch.init(3)).await.unwrap());
    proxy.swallow_next_reply_then_cut();
    within(SOON, latch.count_down()).await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 2);
    proxy.swallow_next_reply_then_cut();
    assert!(within(SOON, latch.count_down_as("a")).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 1);
    assert_eq!(proxy.fired(), 3);
}

#[tokio::test]
async fn calls_without_a_limit_work() {
    let scene = Scene::new().await;
    let latch = scene.latch.clone().give_up_after(Duration::MAX);
    assert!(latch.init(2).await.unwrap());
    latch.count_down().await.unwrap();
    assert!(latch.delete().await.unwrap());
    let barrier = scene.ours.barrier("barrier", 1);
    assert!(barrier.give_up_after(Duration::MAX).wait().await.unwrap());
    let permits = scene.ours.plain_semaphore("permits");
    let permits = permits.give_up_after(Duration::MAX);
    assert!(permits.try_set(1).await.unwrap());
    assert!(permits.release(1).await.unwrap());
    permits.acquire().await.unwrap().release().await.unwrap();
}

/// The server stands still.
#[tokio::test]
async fn a_limited_wait_ends_soon_after_its_limit() {
    let scene = Scene::new().await;
    let limit = Duration::from_millis(50);
    let (barrier, permits) = (
        scene.ours.barrier("barrier", 2),
        scene.ours.plain_semaphore("permits").permits(1),
    );
    scene.latch.init(1).await.unwrap();
    assert!(barrier.wait_for(limit).await.unwrap_err().is_broken());
    drop(permits.try_acquire_for(limit).await.unwrap());
    scene.server.stop();
    let since = Instant::now();
    let (opened, passed, acquired) = tokio::join!(
        scene.latch.wait_for(limit),
        barrier.wait_for(limit),
        permits.try_acquire_for(limit),
    );
    took_less(since, SOON / 2);
    scene.server.cont();
    assert!(opened.unwrap_err().is_io());
    assert!(passed.unwrap_err().is_io());
    assert!(acquired.unwrap_err().is_io());
}

/// The subscription was lost with the connection, and with it the message.
#[tokio::test]
async fn a_cut_connection_delays_a_wait_by_one_poll() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (ours, theirs) = (client(&proxy.url()).await, client(&server.url()).await);
    let name = unique_name("latch");
    theirs.latch(&name).init(1).await.unwrap();
    let latch = ours.latch(&name);
    let waiter = lockset_testkit::spawn(async move { latch.wait().await });
    listening(&server).await;
    proxy.refuse(true);
    proxy.cut();
    theirs.latch(&name).count_down().await.unwrap();
    proxy.refuse(false);
    within(SOON, waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_wait_leaves_nothing() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    let keys = scene.server.keys().await;
    for polls in 1..20 {
        for moment in [Duration::ZERO, Duration::from_millis(5)] {
            let waited = poll_times(
                scene.latch.wait_for(Duration::from_millis(30)),
                (polls, moment),
            );
            assert_ne!(waited.await.transpose().unwrap(), Some(true));
        }
    }
    idle(&scene.ours).await;
    eventually(SOON, "no client is subscribed", async || {
        scene.server.pubsub_channels().await.is_empty()
    })
    .await;
    assert_eq!(scene.server.keys().await, keys);
}

/// Each has asked before the subscription, and asks after it.
#[tokio::test]
async fn waiters_that_begin_together_subscribe_once() {
    const WAITERS: u64 = 50;
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    scene.server.reset_stats().await;
    let waiters: Vec<_> = (0..WAITERS).map(|_| scene.waiter()).collect();
    let mut calls = scene.server.commandstats().await;
    eventually(SOON, "all have asked twice", async || {
        calls = scene.server.commandstats().await;
        // More, if some have polled.
        calls.get("evalsha") >= Some(&(2 * WAITERS))
    })
    .await;
    assert_eq!(calls["subscribe"], 1);
    scene.theirs.count_down().await.unwrap();
    for done in within(SOON, join_all(waiters)).await {
        done.unwrap().unwrap();
    }
}

/// It subscribes, and is polled no more.
#[tokio::test]
async fn a_wait_that_is_not_polled_delays_no_other() {
    let scene = Scene::new().await;
    scene.latch.init(1).await.unwrap();
    let mut kept = Box::pin(scene.latch.wait());
    while scene.server.pubsub_channels().await.is_empty() {
        assert!((&mut kept).now_or_never().is_none());
    }
    let since = Instant::now();
    let limit = Duration::from_millis(50);
    assert!(!scene.latch.wait_for(limit).await.unwrap());
    took_less(since, limit + BY_MESSAGE);
    let waiter = scene.waiter();
    // Its looks until it sleeps.
    scene.latch.count().await.unwrap();
    scene.latch.count().await.unwrap();
    let since = Instant::now();
    scene.theirs.count_down().await.unwrap();
    within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
    within(SOON, kept).await.unwrap();
}

/// Every one of many concurrent count-downs counts, and every waiter continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_count_and_many_wait() {
    let scene = Scene::new().await;
    for _ in 0..10 {
        scene.latch.init(32).await.unwrap();
        let waiters: Vec<_> = (0..16).map(|_| scene.waiter()).collect();
        let counts = (0..32).map(|i| [&scene.latch, &scene.theirs][i % 2].count_down());
        for counted in join_all(counts).await {
            counted.unwrap();
        }
        for waiter in waiters {
            within(SOON, waiter).await.unwrap().unwrap();
        }
    }
    let mut admin = scene.server.admin().await;
    assert_eq!(ask::<u64>(&mut admin, &["EXISTS", &scene.name]).await, 0);
}

/// Redisson leaves a count of 0 or less.
#[tokio::test]
async fn a_latch_at_zero_was_open_before_it_is_deleted() {
    let scene = Scene::new().await;
    command(&scene.server, &["SET", &scene.name, "0"]).await;
    assert_eq!(scene.latch.count().await.unwrap(), 0);
    assert!(!scene.latch.delete().await.unwrap(), "it was open");
    assert!(scene.server.keys().await.is_empty());
}
