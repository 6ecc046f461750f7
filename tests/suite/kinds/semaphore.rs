//! `Client::semaphore`: permits with leases, on the wire of Redisson's expirable semaphore.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset::{Backoff, Client, LostReason, Semaphore};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::support::{
    BY_MESSAGE, LEASE, SOON, ask, client, command, idle, listening, patient_client, took_less,
};

const SECOND: Duration = Duration::from_secs(1);

/// Between two polls of a future that is dropped then.
const MOMENT: Duration = Duration::from_millis(2);

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

    fn of(&self, client: &Client, permits: u32) -> Semaphore {
        client.semaphore(&self.name).permits(permits)
    }

    /// All permits are free, and nothing is left but their number.
    async fn all_are_free(&self, permits: u32) {
        idle(&self.ours).await;
        idle(&self.theirs).await;
        let other = self.theirs.semaphore(&self.name);
        assert_eq!(other.available().await.unwrap(), permits);
        assert_eq!(other.holders().await.unwrap(), []);
        eventually(SOON, "no client listens", async || {
            self.server.pubsub_channels().await.is_empty()
        })
        .await;
        let mut admin = self.server.admin().await;
        let free: String = ask(&mut admin, &["GET", &self.name]).await;
        assert_eq!(free, permits.to_string());
        assert_eq!(
            self.server.keys().await,
            [&*self.name],
            "and nothing besides"
        );
    }
}

#[tokio::test]
async fn permits_are_taken_all_or_none_and_released() {
    let scene = Scene::new().await;
    let (ours, theirs) = (scene.of(&scene.ours, 3), scene.of(&scene.theirs, 3));
    let two = ours.clone().many(2).acquire().await.unwrap();
    assert_eq!((two.count(), two.name()), (2, &*scene.name));
    assert!(
        theirs
            .clone()
            .many(2)
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let one = theirs.try_acquire().await.unwrap().unwrap();
    assert_eq!(ours.available().await.unwrap(), 0);
    let mut holders: Vec<String> = theirs
        .holders()
        .await
        .unwrap()
        .into_iter()
        .map(|h| h.id)
        .collect();
    let mut ids: Vec<String> = two
        .holder_ids()
        .chain(one.holder_ids())
        .map(str::to_owned)
        .collect();
    holders.sort();
    ids.sort();
    assert_eq!(holders, ids);
    assert!(two.remaining() > SECOND && !two.is_lost());
    two.release().await.unwrap();
    assert_eq!(ours.available().await.unwrap(), 2);
    drop(one);
    scene.all_are_free(3).await;
}

#[tokio::test]
async fn another_number_of_permits_is_an_error_that_names_both() {
    let scene = Scene::new().await;
    let undeclared = scene
        .ours
        .semaphore(&scene.name)
        .acquire()
        .await
        .unwrap_err();
    assert!(undeclared.is_invalid(), "{undeclared}");
    assert!(undeclared.to_string().contains("permits"), "{undeclared}");
    let held = scene.of(&scene.ours, 3).acquire().await.unwrap();
    let error = scene.of(&scene.theirs, 5).acquire().await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let message = error.to_string();
    assert!(message.contains("with 3 permits, not with 5"), "{message}");
    assert_eq!(error.lock_name(), Some(&*scene.name));
    held.release().await.unwrap();
    scene.ours.semaphore(&scene.name).resize(5).await.unwrap();
    scene
        .of(&scene.theirs, 5)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    scene.all_are_free(5).await;
}

#[tokio::test]
async fn numbers_that_cannot_work_are_refused() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let semaphore = || client.semaphore("x");
    for bad in [
        semaphore().permits(0),
        semaphore().permits(u32::MAX),
        semaphore().permits(3).many(0),
        semaphore().permits(3).many(4),
        semaphore().permits(5_000).many(2_000),
        semaphore().permits(3).lease(Duration::from_millis(1)),
        semaphore().permits(3).per(Duration::ZERO),
        semaphore().permits(3).polled(Duration::ZERO),
        client.semaphore("").permits(3),
    ] {
        let error = bad.try_acquire().await.unwrap_err();
        assert!(error.is_invalid(), "{bad:?}: {error}");
    }
    assert!(semaphore().resize(u32::MAX).await.unwrap_err().is_invalid());
    let taken = semaphore().permits(2).acquire().await.unwrap();
    for undeclared in [semaphore(), semaphore().fair()] {
        let error = undeclared.many(3).acquire().await.unwrap_err();
        assert!(error.is_invalid(), "{error}");
    }
    taken.release().await.unwrap();
    command(&server, &["SET", "x", "a text"]).await;
    let error = semaphore().permits(3).acquire().await.unwrap_err();
    assert!(!error.is_io(), "{error}");
    command(&server, &["DEL", "x"]).await;
    command(&server, &["LPUSH", "x", "a"]).await;
    let error = semaphore().permits(3).acquire().await.unwrap_err();
    assert!(error.is_wrong_type(), "{error}");
    assert_eq!(server.keys().await, ["x"]);
}

#[tokio::test]
async fn a_waiter_of_another_client_is_woken() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let waiter = scene.of(&scene.theirs, 1);
    let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
    listening(&scene.server).await;
    let since = Instant::now();
    held.release().await.unwrap();
    let next = within(SOON, waiting).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
    drop(next);
    scene.all_are_free(1).await;
}

/// Counts holders at each moment, in three clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_there_are() {
    const PERMITS: u32 = 4;
    let scene = Scene::new().await;
    let third = client(&scene.server.url()).await;
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for client in [&scene.ours, &scene.theirs, &third] {
        for task in 0..12_u32 {
            let count = 1 + task % 3;
            let semaphore = scene.of(client, PERMITS).many(count);
            let inside = Arc::clone(&inside);
            tasks.push(lockset_testkit::spawn(async move {
                for round in 0..20 {
                    let guard = match round % 5 {
                        0 => semaphore.try_acquire().await.unwrap(),
                        1 => {
                            let wait = Duration::from_millis(3);
                            semaphore.try_acquire_for(wait).await.unwrap()
                        }
                        _ => Some(semaphore.acquire().await.unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    let now = inside.fetch_add(count, Ordering::SeqCst) + count;
                    assert!(now <= PERMITS, "{now} of {PERMITS}");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(count, Ordering::SeqCst);
                    if round % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.release().await.unwrap();
                    }
                }
            }));
        }
    }
    for task in tasks {
        within(SOON * 4, task).await.unwrap();
    }
    idle(&third).await;
    scene.all_are_free(PERMITS).await;
}

#[tokio::test]
async fn a_dropped_future_leaves_nothing() {
    let scene = Scene::new().await;
    let semaphore = scene.of(&scene.ours, 1);
    for polls in 1..12 {
        let free = semaphore.clone();
        poll_times(async move { drop(free.acquire().await) }, (polls, MOMENT)).await;
        scene.all_are_free(1).await;
    }
    let held = semaphore.acquire().await.unwrap();
    for polls in 1..12 {
        let waiter = scene.of(&scene.theirs, 1);
        let waited = waiter.try_acquire_for(MOMENT * 10);
        drop(poll_times(waited, (polls, MOMENT)).await);
    }
    held.release().await.unwrap();
    scene.all_are_free(1).await;
}

/// A caller that is not polled, with a permit that came or that is on its way, stops no other one.
#[tokio::test]
async fn a_future_that_is_kept_and_not_polled_stops_nobody() {
    let scene = Scene::new().await;
    let semaphore = scene.of(&scene.ours, 2);
    let held = semaphore.acquire().await.unwrap();
    for polls in 0..6 {
        let waiter = semaphore.clone().many(2);
        let mut kept = Box::pin(async move { waiter.acquire().await });
        for _ in 0..polls {
            assert!((&mut kept).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        let other = scene.of(&scene.theirs, 2);
        let got = within(SOON, other.acquire()).await.unwrap();
        got.release().await.unwrap();
        drop(kept);
    }
    held.release().await.unwrap();
    scene.all_are_free(2).await;
}

/// They would keep it for a lease each.
#[tokio::test]
async fn what_calls_that_are_not_polled_were_given_goes_to_the_next() {
    let scene = Scene::new().await;
    let semaphore = scene.of(&scene.ours, 1);
    let held = semaphore.acquire().await.unwrap();
    let mut kept = [(); 2].map(|()| Box::pin(semaphore.acquire()));
    for call in &mut kept {
        assert!(call.now_or_never().is_none());
    }
    let mut next = Box::pin(semaphore.acquire());
    assert!((&mut next).now_or_never().is_none());
    held.release().await.unwrap();
    // A lease takes 30 s.
    let got = within(SOON * 2, next).await.unwrap();
    for mut call in kept {
        assert!((&mut call).now_or_never().is_none(), "it waits again");
    }
    got.release().await.unwrap();
    scene.all_are_free(1).await;
}

#[tokio::test]
async fn tasks_of_one_client_hand_permits_off_in_order() {
    let scene = Scene::new().await;
    let semaphore = scene.of(&scene.ours, 1);
    let held = semaphore.acquire().await.unwrap();
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let (waiter, order) = (semaphore.clone(), Arc::clone(&order));
        let mut future = Box::pin(async move {
            let guard = waiter.acquire().await.unwrap();
            order.lock().push(number);
            guard.release().await.unwrap();
        });
        assert!((&mut future).now_or_never().is_none());
        tasks.push(lockset_testkit::spawn(future));
    }
    listening(&scene.server).await;
    scene.server.reset_stats().await;
    held.release().await.unwrap();
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    assert_eq!(*order.lock(), (0..10).collect::<Vec<_>>());
    scene.all_are_free(1).await;
}

#[tokio::test]
async fn permits_of_a_client_that_stopped_renewing_come_back() {
    let scene = Scene::new().await;
    let lease = Duration::from_millis(300);
    let fixed = scene.of(&scene.ours, 1).fixed_lease(lease);
    let guard = fixed.acquire().await.unwrap();
    let next = within(SOON, scene.of(&scene.theirs, 1).acquire())
        .await
        .unwrap();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(guard.is_lost() && guard.remaining().is_zero());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
    next.release().await.unwrap();
    scene.all_are_free(1).await;
}

#[tokio::test]
async fn a_permit_is_renewed_for_as_long_as_it_is_held() {
    let scene = Scene::new().await;
    let guard = scene
        .of(&scene.ours, 1)
        .lease(LEASE)
        .acquire()
        .await
        .unwrap();
    let loss = guard.loss();
    let waiter = scene.of(&scene.theirs, 1);
    assert!(waiter.try_acquire_for(LEASE * 3).await.unwrap().is_none());
    assert!(!guard.is_lost() && !loss.is_lost());
    guard.release().await.unwrap();
    assert!(!loss.is_lost());
    scene.all_are_free(1).await;
}

#[tokio::test]
async fn a_permit_that_the_server_lost_is_lost_within_a_renewal() {
    let scene = Scene::new().await;
    let guard = scene
        .of(&scene.ours, 1)
        .lease(LEASE * 2)
        .acquire()
        .await
        .unwrap();
    let loss = guard.loss();
    command(&scene.server, &["FLUSHALL"]).await;
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert_eq!(within(SOON, loss.wait()).await, LostReason::Revoked);
    let ran = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(ran.reason(), LostReason::Revoked);
}

#[tokio::test]
async fn a_shutdown_ends_waits_and_loses_guards() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.theirs, 1).acquire().await.unwrap();
    let ours = client(&scene.server.url()).await;
    let waiter = scene.of(&ours, 1);
    let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
    listening(&scene.server).await;
    let second = ours
        .semaphore("another")
        .permits(1)
        .acquire()
        .await
        .unwrap();
    ours.shutdown().await.unwrap();
    let error = within(SOON, waiting).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert_eq!(within(SOON, second.lost()).await, LostReason::Closed);
    held.release().await.unwrap();
}

#[tokio::test]
async fn guards_are_split_and_merged() {
    let scene = Scene::new().await;
    let mut three = scene.of(&scene.ours, 3).many(3).acquire().await.unwrap();
    assert!(three.split(0).unwrap_err().is_invalid());
    assert!(three.split(3).unwrap_err().is_invalid());
    let one = three.split(1).unwrap();
    assert_eq!((three.count(), one.count()), (2, 1));
    one.release().await.unwrap();
    assert_eq!(scene.of(&scene.theirs, 3).available().await.unwrap(), 1);
    let more = scene.of(&scene.ours, 3).acquire().await.unwrap();
    three.merge(more).unwrap();
    assert_eq!(three.count(), 3);
    let other = scene
        .ours
        .semaphore("other")
        .permits(1)
        .acquire()
        .await
        .unwrap();
    let other = three.merge(other).unwrap_err();
    other.release().await.unwrap();
    command(&scene.server, &["DEL", "other"]).await;
    three.release().await.unwrap();
    scene.all_are_free(3).await;
}

#[tokio::test]
async fn a_smaller_number_leaves_taken_permits_and_frees_none_until_enough_are_back() {
    let scene = Scene::new().await;
    let all = scene.of(&scene.ours, 3).many(3).acquire().await.unwrap();
    scene.ours.semaphore(&scene.name).resize(2).await.unwrap();
    assert_eq!(
        scene.ours.semaphore(&scene.name).available().await.unwrap(),
        0
    );
    let waiter = scene.theirs.semaphore(&scene.name).many(2);
    assert!(waiter.try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
    waiter.acquire().await.unwrap().release().await.unwrap();
    scene.all_are_free(2).await;
}

/// At most three in any window.
#[tokio::test]
async fn permits_per_window_expire_by_themselves() {
    let scene = Scene::new().await;
    let window = Duration::from_millis(400);
    let limit = scene.of(&scene.ours, 3).per(window);
    // When each was asked for, by its end, and when it was had.
    let mut times = Vec::new();
    for round in 0..9 {
        let guard = within(SOON, limit.acquire()).await.unwrap();
        let had = Instant::now();
        times.push((had + guard.remaining() - window, had));
        if round % 2 == 0 {
            guard.release().await.unwrap();
        }
    }
    for three in times.windows(4) {
        let took = three[3].1 - three[0].0;
        assert!(took >= window, "four within {took:?}");
    }
}

/// A large request between small ones that come again and again.
#[tokio::test]
async fn a_fair_semaphore_does_not_starve_a_large_request() {
    let scene = Scene::new().await;
    let small = scene.of(&scene.ours, 2).fair();
    let large = scene.of(&scene.theirs, 2).fair().many(2);
    let first = small.acquire().await.unwrap();
    let waiting = lockset_testkit::spawn(async move { large.acquire().await });
    listening(&scene.server).await;
    let queue = format!("lockset_sem_queue:{{{}}}", scene.name);
    let mut admin = scene.server.admin().await;
    eventually(SOON, "the large request has its place", async || {
        let waiters: u64 = ask(&mut admin, &["ZCARD", &queue]).await;
        waiters == 1
    })
    .await;
    assert!(small.try_acquire().await.unwrap().is_none(), "it is before");
    let behind = small.clone();
    let behind = lockset_testkit::spawn(async move { behind.acquire().await });
    eventually(SOON, "both have their places", async || {
        let waiters: u64 = ask(&mut admin, &["ZCARD", &queue]).await;
        waiters == 2
    })
    .await;
    assert!(!behind.is_finished(), "one permit is free, and it waits");
    first.release().await.unwrap();
    let both = within(SOON, waiting).await.unwrap().unwrap();
    assert!(!behind.is_finished());
    both.release().await.unwrap();
    within(SOON, behind)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    scene.all_are_free(2).await;
}

#[tokio::test]
async fn a_dead_waiter_of_a_fair_semaphore_is_passed_over() {
    let scene = Scene::new().await;
    let ours = scene.of(&scene.ours, 1).fair();
    let queue = format!("lockset_sem_queue:{{{}}}", scene.name);
    let alive = format!("lockset_sem_alive:{{{}}}", scene.name);
    ours.acquire().await.unwrap().release().await.unwrap();
    let mut admin = scene.server.admin().await;
    let (seconds, micros): (u64, u64) = ask(&mut admin, &["TIME"]).await;
    let soon = seconds * 1_000 + micros / 1_000 + 2_500;
    command(&scene.server, &["ZADD", &queue, "1", "dead:1"]).await;
    command(
        &scene.server,
        &["ZADD", &alive, &soon.to_string(), "dead:1"],
    )
    .await;
    assert!(ours.try_acquire().await.unwrap().is_none());
    within(SOON, ours.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    scene.all_are_free(1).await;
}

/// Answers are lost, connections cut: permits are neither doubled nor lost.
#[tokio::test]
async fn lost_replies_and_cut_connections_change_no_number() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let behind = client(&proxy.url()).await;
    let semaphore = scene.of(&behind, 2).give_up_after(SOON);
    semaphore.acquire().await.unwrap().release().await.unwrap();
    for _ in 0..5 {
        proxy.swallow_next_reply_then_cut();
        let guard = within(SOON, semaphore.acquire()).await.unwrap();
        let holders = scene.of(&scene.theirs, 2).holders().await.unwrap();
        assert_eq!(holders.len(), 1, "{holders:?}");
        proxy.swallow_next_reply_then_cut();
        within(SOON, guard.release()).await.unwrap();
        assert_eq!(scene.of(&scene.theirs, 2).available().await.unwrap(), 2);
    }
    assert!(proxy.fired() >= 10, "{} replies were lost", proxy.fired());
    idle(&behind).await;
    scene.all_are_free(2).await;
}

/// One client has waiters of both kinds: only those that are not polled need messages, whoever came first.
#[tokio::test]
async fn beside_a_polled_waiter_another_one_listens() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let polled = scene.of(&scene.theirs, 1).polled(Duration::from_millis(10));
    scene.server.reset_stats().await;
    let polled = lockset_testkit::spawn(async move { polled.acquire().await });
    eventually(SOON, "it waits", async || {
        let calls = scene.server.commandstats().await;
        calls.get("evalsha").is_some_and(|calls| *calls >= 3)
    })
    .await;
    assert!(scene.server.pubsub_channels().await.is_empty());
    let other = scene.of(&scene.theirs, 1);
    let other = lockset_testkit::spawn(async move { other.acquire().await });
    eventually(SOON, "the other listens", async || {
        !scene.server.pubsub_channels().await.is_empty()
    })
    .await;
    held.release().await.unwrap();
    for waiting in [polled, other] {
        let guard = within(SOON, waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    scene.all_are_free(1).await;
}

#[tokio::test]
async fn without_messages_a_polled_waiter_gets_its_permit() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let waiter = scene.of(&scene.theirs, 1).polled(Duration::from_millis(10));
    let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
    scene.server.reset_stats().await;
    eventually(SOON, "it asks", async || {
        let calls = scene.server.commandstats().await;
        calls.get("evalsha").is_some_and(|calls| *calls >= 3)
    })
    .await;
    assert!(scene.server.pubsub_channels().await.is_empty());
    held.release().await.unwrap();
    within(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    scene.all_are_free(1).await;
}

/// 1, 2, 4 .. 64 ms, and then 64 ms each: some 20 in a second.
#[tokio::test]
async fn the_pauses_of_a_polled_waiter_for_permits_grow() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(64));
    let waiter = scene.of(&scene.theirs, 1).polled(backoff);
    scene.server.reset_stats().await;
    let began = Instant::now();
    let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
    let asked = async || {
        let calls = scene.server.commandstats().await;
        calls.get("evalsha").copied().unwrap_or_default()
    };
    eventually(SOON, "it asks", async || asked().await >= 20).await;
    // 18 pauses, or more, each of three quarters of its length or more: 1, 2, 4 ms, and so on, up to 64 ms.
    assert!(began.elapsed() >= Duration::from_millis(600));
    held.release().await.unwrap();
    within(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Permits of its own client are not handed off to it.
#[tokio::test]
async fn a_waiter_that_declares_another_number_fails_too() {
    let scene = Scene::new().await;
    let semaphore = scene.of(&scene.ours, 1);
    let held = semaphore.acquire().await.unwrap();
    let waiting = lockset_testkit::spawn(async move { semaphore.acquire().await });
    listening(&scene.server).await;
    let other = scene.of(&scene.ours, 7);
    let mut other = Box::pin(async move { other.acquire().await });
    assert!((&mut other).now_or_never().is_none());
    held.release().await.unwrap();
    let next = within(SOON, waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
    let error = within(SOON, other).await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    scene.all_are_free(1).await;
}

/// The first waits for a moment only, and fails when no answer comes to its last question. The other goes on for longer
/// without an answer.
#[tokio::test]
async fn a_waiter_outlasts_an_outage_that_ends_the_call_before_it() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let proxy = Proxy::start(scene.server.addr()).await;
    let behind = patient_client(&proxy.url()).await;
    let [first, second] = [(); 2].map(|()| scene.of(&behind, 1));
    let first = lockset_testkit::spawn(async move { first.try_acquire_for(SECOND / 2).await });
    listening(&scene.server).await;
    let second = lockset_testkit::spawn(async move { second.acquire().await });
    proxy.hold_replies();
    let error = within(SOON, first).await.unwrap().unwrap_err();
    assert!(error.is_io(), "{error}");
    proxy.pass();
    held.release().await.unwrap();
    let guard = within(SOON, second).await.unwrap().unwrap();
    guard.release().await.unwrap();
    idle(&behind).await;
    scene.all_are_free(1).await;
}

/// The question of the first, which goes on for longer, has no answer either.
#[tokio::test]
async fn a_waiter_gives_up_before_the_call_before_it() {
    let scene = Scene::new().await;
    let held = scene.of(&scene.ours, 1).acquire().await.unwrap();
    let proxy = Proxy::start(scene.server.addr()).await;
    let behind = patient_client(&proxy.url()).await;
    let first = scene.of(&behind, 1);
    let first = lockset_testkit::spawn(async move { first.acquire().await });
    listening(&scene.server).await;
    let second = scene.of(&behind, 1).give_up_after(SECOND / 2);
    let second = lockset_testkit::spawn(async move { second.acquire().await });
    proxy.hold_replies();
    let error = within(SECOND * 5, second).await.unwrap().unwrap_err();
    assert!(error.is_io(), "{error}");
    proxy.pass();
    held.release().await.unwrap();
    let guard = within(SOON, first).await.unwrap().unwrap();
    guard.release().await.unwrap();
    idle(&behind).await;
    scene.all_are_free(1).await;
}
