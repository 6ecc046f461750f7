//! The minimum and maximum time that a lock is held: `at_least` and `max_hold`.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use lockset::{Client, LostReason, Owner, Redlock};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{
    LEASE, SLACK, SOON, client, idle, nothing_left, patient_client, took_less, waiting,
};

/// The lease of holds with one of the spans.
const RENEWED: Duration = Duration::from_millis(1_800);

/// One span is shorter than that lease and one is longer, so the lease at the server must change in
/// both directions.
const SPANS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(2_400)];

/// How long a waiter may take to notice the end of a lease.
const NOTICE: Duration = Duration::from_millis(1_100);

/// A server, its client, and a name that begins with `what`.
async fn started(what: &str) -> (Server, Client, String) {
    let server = Server::start();
    let client = client(&server.url()).await;
    (server, client, unique_name(what))
}

async fn a_release_before_the_minimum_time_leaves_the_lock_held<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    for (span, is_dropped) in [(SPANS[0], false), (SPANS[0], true), (SPANS[1], false)] {
        let (owner, name) = (Owner::new(), unique_name("least"));
        let lock = P::of(&ours, &name).lease(RENEWED).owner(&owner);
        let lock = lock.at_least(span);
        let since = Instant::now();
        let guard = lock.lock().await.unwrap();
        if is_dropped {
            drop(guard);
        } else {
            guard.release().await.expect("it was held, and is left");
        }
        let rival = P::rival(&theirs, &name);
        assert!(rival.try_lock().await.unwrap().is_none(), "{span:?}");
        let of_ours = P::rival(&ours, &name).owner(&owner);
        assert!(of_ours.try_lock().await.unwrap().is_none(), "{span:?}");
        assert!(lock.is_locked().await.unwrap());
        let waits = async |rival: P::Rival| {
            let guard = within(SOON, rival.lock()).await.unwrap();
            assert!(since.elapsed() >= span, "{:?} of {span:?}", since.elapsed());
            guard.release().await.unwrap();
        };
        tokio::join!(waits(rival), waits(of_ours));
        took_less(since, span + NOTICE + SLACK);
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

async fn a_release_after_the_minimum_time_is_ordinary<P: Primitive>() {
    let (server, ours, name) = started("least").await;
    let lock = P::of(&ours, &name).lease(RENEWED).at_least(SPANS[0]);
    let guard = lock.lock().await.unwrap();
    let work = tokio::time::sleep(SPANS[0]);
    guard.run(work).await.unwrap();
    guard.release().await.unwrap();
    let rival = P::rival(&ours, &name);
    let guard = rival.try_lock().await.unwrap().expect("it is free");
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// Two guards of one owner: the released guard asked for more time than the last guard takes.
async fn the_end_of_another_guard_keeps_the_minimum_time<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let most = Duration::from_millis(300);
    // All are longer than the lease.
    let (span, longer) = (LEASE * 3 / 2, LEASE * 2);
    for (span, is_fixed) in [(span, false), (span, true), (longer, false)] {
        let (owner, name) = (Owner::new(), unique_name("least"));
        let lock = P::of(&ours, &name).owner(&owner);
        let since = Instant::now();
        let outer = lock.clone().at_least(span).lock().await.unwrap();
        let inner = if is_fixed {
            lock.fixed_lease(most)
        } else {
            lock.max_hold(most)
        };
        let inner = inner.lock().await.unwrap();
        outer.release().await.unwrap();
        within(SOON, inner.lost()).await;
        let rival = P::rival(&theirs, &name);
        assert!(rival.try_lock().await.unwrap().is_none(), "{span:?}");
        drop(inner);
        let guard = within(SOON, rival.lock()).await.unwrap();
        let after = since.elapsed();
        assert!(after >= span, "{after:?} of {span:?}, fixed: {is_fixed}");
        took_less(since, span + NOTICE + SLACK);
        guard.release().await.unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A call without a result must not leave a minimum time.
async fn a_dropped_call_leaves_nothing<P: Primitive>() {
    let (server, ours, name) = started("least").await;
    let lock = P::of(&ours, &name).at_least(Duration::from_secs(60));
    {
        let mut call = pin!(lock.lock());
        poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        eventually(SOON, "it is granted, and not polled", async || {
            !server.keys().await.is_empty()
        })
        .await;
    }
    nothing_left(&server).await;
    idle(&ours).await;
}

async fn a_loss_is_not_kept<P: Primitive>() {
    let (server, ours, name) = started("least").await;
    let lock = P::of(&ours, &name).at_least(Duration::from_secs(60));
    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    within(SOON, guard.lost()).await;
    assert!(guard.release().await.unwrap_err().is_not_held());
    nothing_left(&server).await;
    idle(&ours).await;
}

async fn a_guard_is_lost_after_max_hold<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    for span in SPANS {
        let name = unique_name("most");
        let since = Instant::now();
        let lock = P::of(&ours, &name).lease(RENEWED).max_hold(span);
        let guard = lock.lock().await.unwrap();
        let rival = P::rival(&theirs, &name);
        let waiter = lockset_testkit::spawn(async move {
            let next = within(SOON, rival.lock()).await.unwrap();
            (next, Instant::now())
        });
        let (reason, work) = within(SOON, async {
            tokio::join!(guard.lost(), guard.run(std::future::pending::<()>()))
        })
        .await;
        assert_eq!(reason, LostReason::MaxHold, "{span:?}");
        assert_eq!(work.unwrap_err().reason(), LostReason::MaxHold);
        assert!(since.elapsed() >= span && guard.is_lost());
        took_less(since, span + SLACK);
        assert_eq!(guard.remaining(), Duration::ZERO);
        // The lease ends although the guard still exists.
        let (next, at) = waiter.await.unwrap();
        assert!(at.duration_since(since) >= span, "never two at once");
        took_less(since, span + SLACK);
        next.release().await.unwrap();
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

async fn each_guard_has_a_max_of_its_own<P: Primitive>() {
    let (server, ours, name) = started("most").await;
    let owner = Owner::new();
    let lock = P::of(&ours, &name).lease(RENEWED).owner(&owner);
    let unbounded = lock.lock().await.unwrap();
    let bounded = lock.clone().max_hold(SPANS[0]).lock().await.unwrap();
    let again = bounded.reenter().await.unwrap();
    assert_eq!(within(SOON, bounded.lost()).await, LostReason::MaxHold);
    assert_eq!(within(SOON, again.lost()).await, LostReason::MaxHold);
    assert!(!unbounded.is_lost());
    drop((bounded, again));
    assert!(
        tokio::time::timeout(RENEWED * 2, unbounded.lost())
            .await
            .is_err()
    );
    unbounded.release().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

for_every_primitive! {"multi_thread":
    a_release_before_the_minimum_time_leaves_the_lock_held
    a_release_after_the_minimum_time_is_ordinary
    the_end_of_another_guard_keeps_the_minimum_time
    a_loss_is_not_kept
    a_guard_is_lost_after_max_hold
    each_guard_has_a_max_of_its_own
}

/// On a single thread, nothing is granted while a call is polled.
mod on_one_thread {
    use super::a_dropped_call_leaves_nothing;
    use crate::primitive::for_every_primitive;

    for_every_primitive! {"current_thread": a_dropped_call_leaves_nothing}
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    a_release_before_the_minimum_time_leaves_the_lock_held
    a_release_after_the_minimum_time_is_ordinary
    the_end_of_another_guard_keeps_the_minimum_time
    a_loss_is_not_kept
    a_guard_is_lost_after_max_hold
    each_guard_has_a_max_of_its_own
}

/// The next task of this client would be handed the lock without asking the server.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_handed_off_before_its_time() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let span = Duration::from_millis(300);
    let lock = ours.lock(unique_name("least")).at_least(span);
    let since = Instant::now();
    let first = lock.lock().await.unwrap();
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            lockset_testkit::spawn(
                async move { lock.lock().await.unwrap().release().await.unwrap() },
            )
        })
        .collect();
    waiting(&ours, 3).await;
    first.release().await.unwrap();
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    assert!(since.elapsed() >= span * 3, "{:?}", since.elapsed());
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A hand-off keeps the hold at the server, and its time starts over.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_restarts_max_hold() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    // The work of all takes longer than the max, and the lease of each ends with its max.
    let (span, work) = (Duration::from_millis(1_200), Duration::from_millis(200));
    let lock = ours.lock(unique_name("most")).lease(RENEWED);
    let lock = lock.max_hold(span);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lock = lock.clone();
            lockset_testkit::spawn(async move {
                let guard = lock.lock().await.unwrap();
                assert!(guard.remaining() <= span);
                guard
                    .run(tokio::time::sleep(work))
                    .await
                    .expect("it is within its max");
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    let last = lock.lock().await.unwrap();
    assert_eq!(within(SOON, last.lost()).await, LostReason::MaxHold);
    drop(last);
    idle(&ours).await;
    nothing_left(&server).await;
}

/// If the process dies, the lock is free again no later than the process could have kept it.
#[tokio::test]
async fn the_lease_at_the_server_ends_with_the_max() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let (name, span) = (unique_name("most"), Duration::from_secs(3));
    let lock = ours.lock(&name).max_hold(span);
    let guard = lock.lock().await.unwrap();
    while guard.remaining() > span / 2 {
        let remaining = guard.remaining();
        let Some(holder) = lock.holder().await.unwrap() else {
            panic!("it is held");
        };
        let most = remaining + span / 50 + Duration::from_millis(5);
        assert!(
            holder.remaining <= most,
            "{:?} of {most:?}",
            holder.remaining
        );
        tokio::time::sleep(span / 25).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_shut_down_client_leaves_released_holds_to_their_minimum_time() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    // Longer than the lease.
    let (name, span) = (unique_name("least"), LEASE * 3 / 2);
    let since = Instant::now();
    let guard = ours.lock(&name).at_least(span).lock().await.unwrap();
    drop(guard);
    within(SOON, ours.shutdown()).await.unwrap();
    assert!(since.elapsed() < span, "it does not wait for that time");
    let next = within(SOON, theirs.lock(&name).lock()).await.unwrap();
    assert!(since.elapsed() >= span);
    next.release().await.unwrap();
    nothing_left(&server).await;
}

/// A repeated request sets the same end as the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_a_release_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (ours, theirs) = (client(&proxy.url()).await, client(&server.url()).await);
    for (span, round) in [700, 2_500].map(Duration::from_millis).into_iter().zip(1..) {
        let name = unique_name("least");
        let since = Instant::now();
        let guard = ours.lock(&name).at_least(span).lock().await.unwrap();
        proxy.swallow_next_reply_then_cut();
        within(SOON, guard.release())
            .await
            .expect("it was left to its minimum time");
        assert_eq!(proxy.fired(), round, "the reply was lost");
        let next = within(SOON, theirs.lock(&name).lock()).await.unwrap();
        assert!(since.elapsed() >= span, "{:?}", since.elapsed());
        took_less(since, span + NOTICE + SLACK);
        next.release().await.unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// The release is executed, its answer is lost, and the time is over before the retry: no loss is
/// reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_answered_after_the_minimum_time_is_no_loss() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let (name, span) = (unique_name("least"), Duration::from_millis(80));
    let lock = ours.lock(&name).at_least(span).lease(LEASE * 10);
    let guard = lock.lock().await.unwrap();
    proxy.drop_replies();
    let release = lockset_testkit::spawn(guard.release());
    eventually(SOON, "its time is over", async || {
        server.keys().await.is_empty()
    })
    .await;
    proxy.pass();
    proxy.cut();
    within(SOON, release).await.unwrap().expect("it was left");
    idle(&ours).await;
    nothing_left(&server).await;
}

/// The client measures the time, whenever the server receives the command.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_release_does_not_extend_the_minimum_time() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (ours, theirs) = (client(&proxy.url()).await, client(&server.url()).await);
    let (name, span) = (unique_name("least"), Duration::from_millis(600));
    let lock = ours.lock(&name).at_least(span).lease(LEASE * 4);
    let since = Instant::now();
    let guard = lock.lock().await.unwrap();
    proxy.blackhole_existing();
    // The retry uses another connection, once the first was silent for long enough. By then no time
    // is left.
    within(SOON, guard.release()).await.unwrap();
    let next = within(SOON, theirs.lock(&name).lock()).await.unwrap();
    assert!(since.elapsed() >= span, "{:?}", since.elapsed());
    took_less(since, span + NOTICE + SLACK);
    next.release().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn spans_that_contradict_each_other_are_refused() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lock = ours.lock(unique_name("least")).at_least(SPANS[1]);
    for bad in [
        lock.clone().fixed_lease(SPANS[0]),
        lock.clone().max_hold(SPANS[0]),
        lock.clone().at_least(Duration::MAX),
        lock.max_hold(Duration::ZERO),
    ] {
        let error = bad.try_lock().await.expect_err("it cannot work");
        assert!(error.is_invalid(), "{error}");
    }
    nothing_left(&server).await;
}

/// Each server is asked separately.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_keeps_and_ends_a_redlock() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let clients = async || {
        let mut clients = Vec::new();
        for server in &servers {
            clients.push(client(&server.url()).await);
        }
        let redlock = Redlock::builder(clients).persistent_nodes();
        redlock.build().unwrap()
    };
    let (ours, theirs) = (clients().await, clients().await);
    let (name, span) = (unique_name("spans"), SPANS[0]);
    let since = Instant::now();
    let lock = ours.lock(&name).lease(RENEWED);
    let guard = lock.clone().at_least(span).lock().await.unwrap();
    guard.release().await.unwrap();
    assert!(theirs.lock(&name).try_lock().await.unwrap().is_none());
    let guard = within(SOON, theirs.lock(&name).lock()).await.unwrap();
    assert!(since.elapsed() >= span);
    guard.release().await.unwrap();

    let since = Instant::now();
    let guard = lock.max_hold(SPANS[1]).lock().await.unwrap();
    let next = within(SOON, theirs.lock(&name).lock()).await.unwrap();
    assert!(since.elapsed() >= SPANS[1] && guard.is_lost());
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    took_less(since, SPANS[1] + NOTICE + SLACK);
    drop(guard);
    next.release().await.unwrap();
    for server in &servers {
        nothing_left(server).await;
    }
}
