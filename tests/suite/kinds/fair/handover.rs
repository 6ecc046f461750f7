//! A release hands the lock to the next waiter: which waiter gets it and for how long, and what
//! happens if that waiter is dead, is stopped, or gets no message.

use std::time::{Duration, Instant};

use lockset_testkit::{Proxy, eventually, within};
use rustix::process::Signal;

use super::{HELD, Scene, done, holder, wait_for};
use crate::failures::process::Process;
use crate::support::{SOON, idle, listening, nothing_left, patient_client, took_less};

/// How long the place of a waiter in another process is kept.
const PLACE: Duration = Duration::from_secs(1);

/// How long the place of a waiter in this process is kept.
const OUR_PLACE: Duration = Duration::from_secs(3);

/// Starts another process with one queued, subscribed waiter.
async fn process_in(scene: &Scene) -> Process {
    let mut process = Process::start("kinds::fair::crowd", &scene.server, &scene.name);
    assert_eq!(process.answer(), "ready");
    let before = scene.queue().await.len();
    process.ask("1 900");
    scene.queued(before + 1).await;
    heard(scene, before + 1).await;
    process
}

/// Waits until `count` waiters are subscribed.
async fn heard(scene: &Scene, count: usize) {
    eventually(SOON, "all of them listen", async || {
        scene.server.pubsub_channels().await.len() == count
    })
    .await;
}

#[tokio::test]
async fn a_handover_starts_with_the_rest_of_the_place_and_is_renewed() {
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let client = patient_client(&scene.server.url()).await;
    let waiter = wait_for(&scene.lock_of(&client));
    listening(&scene.server).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    held.release().await.unwrap();
    let guard = done(waiter).await;
    assert!(!guard.is_lost());
    let (next, lease) = notifications.next_message().await;
    assert_eq!(next, queue[0]);
    assert!(lease.expect("it is handed over") <= OUR_PLACE);
    assert_eq!(holder(&scene.lock_of(&client)).await, queue[0]);
    eventually(SOON, "it has its whole lease", async || {
        let left: i64 = scene.ask(&["PTTL", &scene.name]).await;
        left > 20_000 && guard.remaining() > Duration::from_secs(20)
    })
    .await;
    assert!(scene.queue().await.is_empty());
    guard.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}

/// Each message hands over the lock, with a token.
#[tokio::test]
async fn waiters_of_four_processes_are_served_in_order() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 16;
    let scene = Scene::new().await;
    let held = scene.lock().await.fenced().lock().await.unwrap();
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start("kinds::fair::crowd", &scene.server, &scene.name))
        .collect();
    for process in &processes {
        assert_eq!(process.answer(), "ready");
    }
    for process in &mut processes {
        process.ask(&format!("{WAITERS} 30000"));
    }
    scene.queued(PROCESSES * WAITERS).await;
    heard(&scene, PROCESSES * WAITERS).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    held.release().await.unwrap();
    for waiter in &queue {
        let (next, lease) = notifications.next_message().await;
        assert_eq!(next, *waiter);
        let lease = lease.expect("it is handed over");
        assert!(lease <= OUR_PLACE, "{lease:?}");
    }
    eventually(SOON, "all had their turn", async || {
        scene.ask::<usize>(&["LLEN", HELD]).await == queue.len()
    })
    .await;
    let turns: Vec<String> = scene.ask(&["LRANGE", HELD, "0", "-1"]).await;
    let turns = turns.iter().map(|turn| turn.split_once(' ').unwrap());
    let (holders, tokens): (Vec<_>, Vec<_>) = turns
        .map(|(holder, token)| (holder.to_owned(), token.parse::<u64>().unwrap()))
        .unzip();
    assert_eq!(holders, queue);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

/// A stopped waiter is handed the lock and dies: the others wait for the rest of its place, and no
/// longer.
#[tokio::test]
async fn a_head_that_dies_after_the_handover_delays_others_for_its_place_only() {
    let scene = Scene::new().await;
    let held = scene.lock().await.fenced().lock().await.unwrap();
    let mut dying = process_in(&scene).await;
    let next = wait_for(&scene.lock().await);
    heard(&scene, 2).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    dying.stop();
    let handed = Instant::now();
    held.release().await.unwrap();
    let (waiter, lease) = notifications.next_message().await;
    assert_eq!(waiter, queue[0]);
    assert!(lease.expect("the server takes it for alive") <= PLACE);
    dying.kill();
    let guard = done(next).await;
    // The next waiter asks when that lease ends, or at its poll, every second.
    let waited = handed.elapsed();
    assert!(waited < PLACE + Duration::from_secs(2), "{waited:?}");
    guard.release().await.unwrap();
    assert_eq!(
        scene.ask::<i64>(&["EXISTS", HELD]).await,
        0,
        "it had no turn"
    );
    nothing_left(&scene.server).await;
}

/// A stopped waiter is handed the lock and continues after the hold has ended: it must not take the
/// lock for its own.
#[tokio::test]
async fn a_head_stopped_for_longer_than_its_grant_does_not_take_it() {
    let scene = Scene::new().await;
    let held = scene.lock().await.fenced().lock().await.unwrap();
    let still = process_in(&scene).await;
    let next = wait_for(&scene.lock().await);
    heard(&scene, 2).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    still.stop();
    held.release().await.unwrap();
    assert_eq!(notifications.next().await, queue[0]);
    let guard = done(next).await;
    still.signal(Signal::CONT);
    // It has read its message, and queues again.
    scene.queued(1).await;
    assert_eq!(
        scene.ask::<i64>(&["EXISTS", HELD]).await,
        0,
        "not two at once"
    );
    assert!(!guard.is_lost());
    assert_eq!(holder(&scene.lock().await).await, queue[1]);
    guard.release().await.unwrap();
    eventually(SOON, "it has its turn", async || {
        scene.ask::<usize>(&["LLEN", HELD]).await == 1
    })
    .await;
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

/// The message is lost with its connection: the waiter finds the hold at its next request.
#[tokio::test]
async fn a_message_that_is_lost_costs_a_poll() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let deaf = patient_client(&proxy.url()).await;
    for _ in 0..5 {
        let held = scene.lock().await.lock().await.unwrap();
        let waiter = wait_for(&scene.lock_of(&deaf));
        listening(&scene.server).await;
        let queue = scene.queue().await;
        let mut notifications = scene.notifications().await;
        proxy.hold_replies();
        held.release().await.unwrap();
        let (head, lease) = notifications.next_message().await;
        assert_eq!(head, queue[0]);
        assert!(lease.is_some(), "it listens, for all the server knows");
        assert_eq!(scene.ask::<i64>(&["HEXISTS", &scene.name, &head]).await, 1);
        proxy.cut();
        proxy.pass();
        let cut = Instant::now();
        let guard = done(waiter).await;
        took_less(cut, OUR_PLACE);
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        idle(&deaf).await;
        nothing_left(&scene.server).await;
    }
}

/// The waiter receives neither the message nor anything else. Other callers are refused until its
/// hold ends, and then the next waiter is granted the lock.
#[tokio::test]
async fn a_head_cut_off_after_the_handover_is_followed_by_the_next() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let theirs = patient_client(&proxy.url()).await;
    let held = scene.lock().await.lock().await.unwrap();
    let lock = scene.lock_of(&theirs);
    let cut_off = lockset_testkit::spawn(async move { lock.try_lock_for(SOON).await });
    listening(&scene.server).await;
    let next = wait_for(&scene.lock().await);
    heard(&scene, 2).await;
    let mut notifications = scene.notifications().await;
    proxy.blackhole_existing();
    proxy.refuse(true);
    held.release().await.unwrap();
    let (_, lease) = notifications.next_message().await;
    assert!(lease.expect("it listens") <= OUR_PLACE);
    let guard = within(SOON * 2, next).await.unwrap();
    assert!(!guard.is_lost());
    match within(SOON * 4, cut_off).await.unwrap() {
        Ok(got) => assert!(got.is_none(), "it was not notified"),
        Err(error) => assert!(error.is_io(), "{error}"),
    }
    proxy.refuse(false);
    guard.release().await.unwrap();
    idle(&theirs).await;
    nothing_left(&scene.server).await;
}

/// The reply is lost and the release is repeated: the waiter keeps the hold, and no other waiter is
/// handed the lock.
#[tokio::test]
async fn a_repeated_release_hands_over_once() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let forgetful = patient_client(&proxy.url()).await;
    let held = scene.lock_of(&forgetful).lock().await.unwrap();
    let first = wait_for(&scene.lock().await);
    heard(&scene, 1).await;
    let second = wait_for(&scene.lock().await);
    heard(&scene, 2).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    proxy.swallow_next_reply_then_cut();
    held.release().await.unwrap();
    assert_eq!(proxy.fired(), 1);
    let first = done(first).await;
    assert_eq!(notifications.next().await, queue[0]);
    assert_eq!(holder(&scene.lock().await).await, queue[0]);
    assert!(!second.is_finished());
    first.release().await.unwrap();
    assert_eq!(
        notifications.next().await,
        queue[1],
        "no other waiter was notified in between"
    );
    done(second).await.release().await.unwrap();
    idle(&forgetful).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_fixed_lease_is_not_handed_over_and_lasts_in_full() {
    let lease = Duration::from_secs(20);
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let waiter = wait_for(&scene.lock().await.fixed_lease(lease));
    listening(&scene.server).await;
    let mut notifications = scene.notifications().await;
    held.release().await.unwrap();
    assert_eq!(notifications.next_message().await.1, None);
    let guard = done(waiter).await;
    assert!(guard.remaining() > lease / 2, "{:?}", guard.remaining());
    guard.release().await.unwrap();
    nothing_left(&scene.server).await;
}

/// The client of the head is shut down just as the head is handed the lock.
#[tokio::test]
async fn a_client_shut_down_during_a_handover_passes_the_lock_on() {
    let scene = Scene::new().await;
    let ours = scene.lock().await;
    for round in 0..30_u64 {
        let closing = patient_client(&scene.server.url()).await;
        let held = ours.lock().await.unwrap();
        let lock = scene.lock_of(&closing);
        let head = lockset_testkit::spawn(async move { lock.lock().await.map(drop) });
        listening(&scene.server).await;
        let next = wait_for(&ours);
        heard(&scene, 2).await;
        let (released, closed) = tokio::join!(held.release(), async {
            tokio::time::sleep(Duration::from_micros(round * 30)).await;
            closing.shutdown().await
        });
        released.unwrap();
        closed.unwrap();
        if let Err(error) = done(head).await {
            assert!(error.is_closed(), "{error}");
        }
        done(next).await.release().await.unwrap();
    }
    nothing_left(&scene.server).await;
}

/// No renewal can be sent while the only thread is blocked. A lock that was handed over lasts only
/// for the rest of the place and reports so; a holder that needs its full lease at once requests
/// it.
#[tokio::test]
async fn a_section_that_blocks_the_only_thread_has_the_reported_lease() {
    let scene = Scene::new().await;
    for is_fixed in [false, true] {
        let held = scene.lock().await.lock().await.unwrap();
        let client = patient_client(&scene.server.url()).await;
        let lock = scene.lock_of(&client);
        let lock = if is_fixed {
            lock.fixed_lease(OUR_PLACE * 10)
        } else {
            lock
        };
        // In the granted task, so that nothing else runs before it blocks the thread.
        let section = lockset_testkit::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let remaining = guard.remaining();
            std::thread::sleep(remaining.min(OUR_PLACE) + Duration::from_millis(20));
            (remaining, guard.is_lost(), guard.release().await)
        });
        listening(&scene.server).await;
        held.release().await.unwrap();
        let (remaining, is_lost, released) = within(SOON * 2, section).await.unwrap();
        assert_eq!((remaining > OUR_PLACE, is_lost), (is_fixed, !is_fixed));
        assert_eq!(released.is_ok(), is_fixed);
        idle(&client).await;
    }
    nothing_left(&scene.server).await;
}
