//! `Client::barrier`: parties wait for each other, round after round.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockset::{Barrier, Client};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::failures::process::{Process, started_for};
use crate::support::{
    BY_MESSAGE, LEASE, SLACK, SOON, ask, client, client_with_lease, command, idle, listening,
    patient_client, took_less,
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
        let name = unique_name("barrier");
        Self {
            server,
            ours,
            theirs,
            name,
        }
    }

    fn barrier(&self, parties: u32) -> Barrier {
        self.ours.barrier(&self.name, parties)
    }

    fn other(&self, parties: u32) -> Barrier {
        self.theirs.barrier(&self.name, parties)
    }

    fn waits(&self, barrier: Barrier) -> tokio::task::JoinHandle<lockset::Result<bool>> {
        lockset_testkit::spawn(async move { barrier.wait().await })
    }

    fn arrived(&self) -> String {
        format!("lockset_barrier_arrived:{{{}}}", self.name)
    }

    /// Waits until `count` parties wait at the server.
    async fn have_come(&self, count: u64) {
        let key = self.arrived();
        let mut admin = self.server.admin().await;
        eventually(SOON, "the parties come", async || {
            ask::<u64>(&mut admin.clone(), &["ZCARD", &key]).await == count
        })
        .await;
        drop(ask::<String>(&mut admin, &["PING"]).await);
    }

    async fn no_party_is_left(&self) {
        idle(&self.ours).await;
        idle(&self.theirs).await;
        self.have_come(0).await;
        eventually(SOON, "no client is subscribed", async || {
            self.server.pubsub_channels().await.is_empty()
        })
        .await;
        let keys = self.server.keys().await;
        let is_over = |key: &String| key.starts_with("lockset_barrier_over");
        assert!(keys.iter().all(is_over), "{keys:?}");
    }
}

#[tokio::test]
async fn all_parties_continue_when_the_last_one_arrives() {
    let scene = Scene::new().await;
    for _ in 0..5 {
        let early = [scene.waits(scene.barrier(3)), scene.waits(scene.other(3))];
        scene.have_come(2).await;
        assert!(early.iter().all(|waiter| !waiter.is_finished()));
        listening(&scene.server).await;
        let since = Instant::now();
        let mut leaders = usize::from(within(SOON, scene.other(3).wait()).await.unwrap());
        for waiter in early {
            leaders += usize::from(within(SOON, waiter).await.unwrap().unwrap());
        }
        took_less(since, BY_MESSAGE);
        assert_eq!(leaders, 1);
    }
    assert!(scene.barrier(1).wait().await.unwrap());
    scene.no_party_is_left().await;
}

/// Tasks of two clients without pauses: no party is a round ahead, and each round has one leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rounds_of_many() {
    let scene = Scene::new().await;
    let parties: Vec<_> = (0..8)
        .map(|party| {
            let barrier = [scene.barrier(8), scene.other(8)][party % 2].clone();
            lockset_testkit::spawn(async move {
                let mut led = 0;
                for _ in 0..25 {
                    led += usize::from(barrier.wait().await.unwrap());
                }
                led
            })
        })
        .collect();
    let led = within(SOON * 6, join_all(parties)).await;
    let led: usize = led.into_iter().map(Result::unwrap).sum();
    assert_eq!(led, 25);
    scene.no_party_is_left().await;
}

#[tokio::test]
async fn a_party_that_dies_breaks_the_round_for_all() {
    let scene = Scene::new().await;
    let test = "kinds::barrier::process_that_waits";
    let mut process = Process::start(test, &scene.server, &scene.name);
    scene.have_come(1).await;
    let waiters = [scene.waits(scene.barrier(4)), scene.waits(scene.other(4))];
    scene.have_come(3).await;
    process.kill();
    let since = Instant::now();
    for waiter in waiters {
        let error = within(LEASE + SOON, waiter).await.unwrap().unwrap_err();
        assert!(error.is_broken(), "{error}");
        assert!(error.to_string().contains("worker-7"), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
        assert!(!error.is_transient() && !error.is_invalid());
    }
    took_less(since, LEASE + SLACK * 2);
    // The next round.
    let pair = join_all([scene.barrier(2), scene.other(2)].map(|b| async move { b.wait().await }));
    let leaders = within(SOON, pair).await.into_iter().map(Result::unwrap);
    assert_eq!(leaders.filter(|is_leader| *is_leader).count(), 1);
    scene.no_party_is_left().await;
}

#[tokio::test]
#[ignore = "the other process of a test"]
async fn process_that_waits() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let client = client(&url).await;
    let _ = client.barrier(name, 4).party("worker-7").wait().await;
}

/// It stood still until the server forgot that its round has passed: it must not count in the next one.
#[tokio::test]
async fn a_party_that_stood_still_joins_no_later_round() {
    let scene = Scene::new().await;
    let frozen = scene.barrier(2).party("frozen");
    let mut frozen = Box::pin(frozen.wait());
    while frozen.as_mut().now_or_never().is_none() {
        let waits: u64 = ask(
            &mut scene.server.admin().await,
            &["ZCARD", &scene.arrived()],
        )
        .await;
        if waits == 1 && !scene.server.pubsub_channels().await.is_empty() {
            break;
        }
    }
    assert!(within(SOON, scene.other(2).wait()).await.unwrap());
    for key in scene.server.keys().await {
        command(&scene.server, &["DEL", &key]).await;
    }
    let next = scene.waits(scene.other(2));
    scene.have_come(1).await;
    let error = within(SOON, frozen).await.unwrap_err();
    assert!(error.is_broken(), "{error}");
    assert!(error.to_string().contains("too late"), "{error}");
    assert!(!next.is_finished());
    assert!(within(SOON, scene.barrier(2).wait()).await.unwrap());
    assert!(!within(SOON, next).await.unwrap().unwrap());
    scene.no_party_is_left().await;
}

#[tokio::test]
async fn a_party_that_times_out_breaks_the_round_for_all() {
    let scene = Scene::new().await;
    let waiter = scene.waits(scene.barrier(3));
    scene.have_come(1).await;
    listening(&scene.server).await;
    let (since, limit) = (Instant::now(), Duration::from_millis(200));
    let impatient = scene.other(3).party("impatient");
    let error = impatient.wait_for(limit).await.unwrap_err();
    assert!(since.elapsed() >= limit);
    assert!(
        error.is_broken() && error.to_string().contains("200ms"),
        "{error}"
    );
    let error = within(SOON, waiter).await.unwrap().unwrap_err();
    assert!(
        error.is_broken() && error.to_string().contains("impatient"),
        "{error}"
    );
    took_less(since, limit + BY_MESSAGE);
    let error = scene.barrier(2).wait_for(Duration::ZERO).await.unwrap_err();
    assert!(error.is_broken(), "{error}");
    scene.no_party_is_left().await;
}

#[tokio::test]
async fn a_dropped_future_withdraws_its_party() {
    let scene = Scene::new().await;
    // The client checks again after 150 ms.
    let ours = client(&scene.server.url()).await;
    for polls in 1..10 {
        for moment in [Duration::ZERO, Duration::from_millis(5)] {
            let barrier = ours.barrier(&scene.name, 2);
            let waited = poll_times(barrier.wait(), (polls, moment)).await;
            assert!(waited.is_none());
        }
    }
    scene.no_party_is_left().await;
    // The others keep waiting.
    let waiter = scene.waits(scene.other(2));
    scene.have_come(1).await;
    poll_times(scene.barrier(3).wait(), (1, Duration::ZERO)).await;
    assert!(within(SOON, scene.barrier(2).wait()).await.unwrap());
    assert!(!within(SOON, waiter).await.unwrap().unwrap());
    scene.no_party_is_left().await;
}

/// As in a `select!` in a loop: nothing runs between the drop and the next call.
#[tokio::test]
async fn a_party_that_stops_waiting_and_comes_again_counts_once() {
    let scene = Scene::new().await;
    let waiter = scene.waits(scene.other(3));
    scene.have_come(1).await;
    let barrier = scene.barrier(3);
    let mut waits = Box::pin(barrier.wait());
    for again in 0..10 {
        let key = scene.arrived();
        let mut admin = scene.server.admin().await;
        while ask::<u64>(&mut admin, &["ZCARD", &key]).await < 2 {
            let came = waits.as_mut().now_or_never();
            assert!(came.is_none(), "{again}: {came:?}");
        }
        drop(waits);
        waits = Box::pin(barrier.wait());
        let came = waits.as_mut().now_or_never();
        assert!(came.is_none(), "{again}: {came:?}");
    }
    let third = scene.waits(scene.other(3));
    assert!(within(SOON, waits).await.is_ok());
    for party in [waiter, third] {
        assert!(within(SOON, party).await.unwrap().is_ok());
    }
    scene.no_party_is_left().await;
}

/// The server executed the call, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_counts_once() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let ours = client(&proxy.url()).await;
    assert!(ours.barrier(&scene.name, 1).wait().await.unwrap());
    for _ in 0..3 {
        let waiter = scene.waits(scene.other(2));
        scene.have_come(1).await;
        proxy.swallow_next_reply_then_cut();
        assert!(
            within(SOON, ours.barrier(&scene.name, 2).wait())
                .await
                .unwrap()
        );
        assert!(!within(SOON, waiter).await.unwrap().unwrap());
        scene.have_come(0).await;
    }
    assert_eq!(proxy.fired(), 3);
}

/// The messages sent during the disconnection were missed.
#[tokio::test]
async fn a_cut_connection_delays_a_party_by_a_look() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let ours = client(&proxy.url()).await;
    let waiter = scene.waits(ours.barrier(&scene.name, 2));
    scene.have_come(1).await;
    proxy.refuse(true);
    proxy.cut();
    assert!(within(SOON, scene.other(2).wait()).await.unwrap());
    proxy.refuse(false);
    assert!(!within(SOON, waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_shut_down_client_withdraws_its_parties() {
    let scene = Scene::new().await;
    let (ours, theirs) = (scene.waits(scene.barrier(3)), scene.waits(scene.other(3)));
    scene.have_come(2).await;
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert!(within(SOON, ours).await.unwrap().unwrap_err().is_closed());
    scene.have_come(1).await;
    assert!(scene.barrier(3).wait().await.unwrap_err().is_closed());
    theirs.abort();
    assert!(theirs.await.unwrap_err().is_cancelled());
    scene.no_party_is_left().await;
}

#[tokio::test]
async fn bad_input_is_named() {
    let scene = Scene::new().await;
    let waiter = scene.waits(scene.other(3));
    scene.have_come(1).await;
    let errors = [
        scene.barrier(0).wait().await.unwrap_err(),
        scene.barrier(1_001).wait().await.unwrap_err(),
        scene.barrier(2).wait().await.unwrap_err(),
        scene.barrier(3).party("").wait().await.unwrap_err(),
        scene
            .barrier(3)
            .party("x".repeat(300))
            .wait()
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
    }
    assert!(
        scene
            .ours
            .barrier("{", 2)
            .wait()
            .await
            .unwrap_err()
            .is_invalid()
    );
    waiter.abort();
    let key = format!("lockset_barrier:{{{}}}", scene.name);
    eventually(SOON, "it is withdrawn", async || {
        !scene.server.keys().await.contains(&key)
    })
    .await;
    command(&scene.server, &["HSET", &key, "a", "b"]).await;
    assert!(scene.barrier(2).wait().await.unwrap_err().is_wrong_type());
}

/// A party of a client with the shortest lease is alive for as long as it is polled.
#[tokio::test]
async fn a_party_with_the_shortest_lease_waits() {
    let scene = Scene::new().await;
    let ours = client_with_lease(&scene.server.url(), Duration::from_millis(50)).await;
    for round in 0..40_u32 {
        let barrier = ours.barrier(&scene.name, 2);
        let waiting = lockset_testkit::spawn(async move { barrier.wait().await });
        tokio::time::sleep(Duration::from_millis(100 + u64::from(round % 10) * 5)).await;
        let other = scene.theirs.barrier(&scene.name, 2);
        let came = tokio::time::timeout(SOON, other.wait()).await;
        assert!(came.unwrap().unwrap(), "round {round}");
        assert!(!within(SOON, waiting).await.unwrap().unwrap());
    }
}
