//! Tests waiters that follow each other in a queue at the server and hand the lock on in memory, with a scripted server
//! that keeps the queue.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::Value;

use super::rw::others;
use super::{LEASE, MS};
use crate::api::holder::Owner;
use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::fair::{FairGuard, FairLock};
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done, each, granted, queued};

/// The end of each place by the server's clock.
const KEPT_UNTIL: u64 = 1_763_000_000_000;

fn in_a_queue() -> Arc<Scripted> {
    Scripted::new(queue())
}

/// A queue at the server: the first waiter that asks gets the lock, and the others queue behind it.
fn queue() -> impl Fn(&Sent) -> Answer + Send + Sync + 'static {
    let queue = Mutex::new(Vec::<String>::new());
    move |sent: &Sent| {
        if sent.lane == Lane::Renewal {
            return Answer::Value(each(1, 1));
        }
        if !is_attempt(sent) {
            return Answer::Value(if sent.is_release() {
                done()
            } else {
                Value::Nil
            });
        }
        let mut queue = queue.lock();
        let me = holder(sent);
        let last = queue.last().cloned();
        if queue.contains(&me) {
            return Answer::Value(queued(25_000, KEPT_UNTIL));
        }
        queue.push(me);
        Answer::Value(match (last, queued(25_000, KEPT_UNTIL)) {
            (Some(last), Value::Array(mut refused)) => {
                refused.push(Value::BulkString(last.into()));
                Value::Array(refused)
            }
            _ => granted(),
        })
    }
}

fn is_attempt(sent: &Sent) -> bool {
    sent.is("EVALSHA") && !sent.is_release()
}

fn holder(sent: &Sent) -> String {
    sent.script_args()[sent.script_keys()].clone()
}

/// The holder of each release, and the used places in it.
fn releases(server: &Scripted) -> Vec<(String, Vec<String>)> {
    let sent = server.sent();
    let releases = sent.iter().filter(|sent| sent.is_release());
    let releases = releases.map(|sent| {
        let words = &sent.script_args()[sent.script_keys()..];
        (
            words[0].clone(),
            words.iter().skip(4).cloned().collect::<Vec<_>>(),
        )
    });
    releases.collect()
}

type Waiter = tokio::task::JoinHandle<crate::Result<FairGuard>>;

/// A waiter that has its place before this returns.
async fn wait_for(lock: &FairLock) -> Waiter {
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.lock().await });
    others().await;
    waiter
}

#[tokio::test(start_paused = true)]
async fn waiters_that_stand_directly_behind_get_it_in_order_without_a_command() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let mut guard = lock.lock().await.unwrap();
    let holder = guard.holder_id().to_owned();
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(wait_for(&lock).await);
    }
    let asked = server.sent().len();
    for waiter in waiters {
        guard.release().await.unwrap();
        guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.holder_id(), holder, "the hold stays the same");
    }
    let sent = server.sent();
    assert!(
        !sent[asked..].iter().any(|sent| sent.is("EVALSHA")),
        "{sent:#?}"
    );
    guard.release().await.unwrap();
    let released = releases(&server);
    let [(by, used)] = &released[..] else {
        panic!("{released:?}");
    };
    assert_eq!((by, used.len()), (&holder, 4));
}

#[tokio::test(start_paused = true)]
async fn it_is_handed_on_sixteen_times_under_one_hold() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let waiter = wait_for(&lock).await;
        waiters.push(tokio::spawn(async move {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }));
    }
    guard.release().await.unwrap();
    others().await;
    let finished = waiters.iter().filter(|waiter| waiter.is_finished());
    assert_eq!(finished.count(), 16);
    assert_eq!(releases(&server)[0].1.len(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_after_five_milliseconds() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let mut guard = lock.lock().await.unwrap();
    let waiters = [
        wait_for(&lock).await,
        wait_for(&lock).await,
        wait_for(&lock).await,
    ];
    let [second, third, fourth] = waiters;
    guard.release().await.unwrap();
    guard = second.await.unwrap().unwrap();
    tokio::time::sleep(MS * 5).await;
    guard.release().await.unwrap();
    guard = third.await.unwrap().unwrap();
    tokio::time::sleep(MS).await;
    guard.release().await.unwrap();
    others().await;
    assert!(!fourth.is_finished());
    assert_eq!(releases(&server)[0].1.len(), 2);
}

/// Another client's waiter may be next at the server, so the lock is released.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_left_is_followed_by_nobody() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let left = wait_for(&lock).await;
    let behind = wait_for(&lock).await;
    left.abort();
    others().await;
    guard.release().await.unwrap();
    others().await;
    assert!(!behind.is_finished());
    let released = releases(&server);
    assert_eq!(released.len(), 2, "the place, and the hold");
    assert!(released.iter().all(|(_, used)| used.is_empty()));
}

/// The lock goes to the next waiter, and the used place is released with the hold.
#[tokio::test(start_paused = true)]
async fn one_that_is_dropped_with_the_lock_hands_it_on() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let dropped = wait_for(&lock).await;
    let last = wait_for(&lock).await;
    guard.release().await.unwrap();
    // The waiter has not been polled since the hand-off.
    dropped.abort();
    let guard = last.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let of_the_hold = releases(&server).pop().unwrap();
    assert_eq!(of_the_hold.1.len(), 2);
}

/// The server may have passed over a waiter whose polls get no answer.
#[tokio::test(start_paused = true)]
async fn a_place_that_may_have_ended_is_not_used() {
    let queue = queue();
    let server = Scripted::new(move |sent| {
        let is_poll = is_attempt(sent) && sent.at >= MS * 500;
        if is_poll {
            Answer::Silence
        } else {
            queue(sent)
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let waiter = wait_for(&lock).await;
    tokio::time::sleep(MS * 3_100).await;
    guard.release().await.unwrap();
    others().await;
    assert!(!waiter.is_finished());
    assert!(releases(&server).iter().all(|(_, used)| used.is_empty()));
}

/// The waiter rests, and its polls are due, but its future is left unpolled.
#[tokio::test(start_paused = true)]
async fn the_place_of_a_future_that_is_not_polled_is_not_used_once_it_may_have_ended() {
    for (rests, is_used) in [(MS * 10, true), (MS * 10_000, false)] {
        let server = in_a_queue();
        let client = Client::over(&server, LEASE);
        let lock = client.fair_lock("x");
        let guard = lock.lock().await.unwrap();
        let mut waiter = Box::pin(lock.lock());
        tokio::select! {
            biased;
            _ = &mut waiter => panic!("it is held"),
            () = others() => {}
        }
        tokio::time::sleep(rests).await;
        guard.release().await.unwrap();
        let is_released = !releases(&server).is_empty();
        assert_eq!(is_released, !is_used, "after {rests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_more_than_a_plain_request_is_handed_nothing() {
    let plain: fn(FairLock) -> FairLock = |lock| lock;
    for (wish, is_handed) in [
        (plain, true),
        (|lock| lock.fenced(), false),
        (|lock| lock.fixed_lease(LEASE), false),
        (|lock| lock.lease(LEASE / 2), false),
        (|lock| lock.at_least(MS), false),
    ] {
        let server = in_a_queue();
        let client = Client::over(&server, LEASE);
        let lock = client.fair_lock("x");
        let guard = lock.lock().await.unwrap();
        let waiter = wait_for(&wish(lock)).await;
        guard.release().await.unwrap();
        others().await;
        assert_eq!(waiter.is_finished(), is_handed);
    }
}

/// The task that has the hold now learns of the loss. Its release also frees the lock if the server handed it to a used
/// place.
#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_lost_for_whoever_has_it() {
    let queue = queue();
    let server = Scripted::new(move |sent| {
        if sent.lane == Lane::Renewal {
            return Answer::Value(each(0, 1));
        }
        queue(sent)
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let next = wait_for(&lock).await;
    guard.release().await.unwrap();
    let guard = next.await.unwrap().unwrap();
    tokio::time::sleep(LEASE / 2).await;
    assert!(guard.is_lost());
    guard.release().await.unwrap_err();
    others().await;
    let released = releases(&server);
    assert_eq!(released.len(), 1);
    assert_eq!(released[0].1.len(), 1);
}

/// A lock that the server handed over has a short lease, and is handed on within the first half of it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_over_is_handed_on() {
    let server = in_a_queue();
    // Another client has the lock.
    let stranger = Client::over(&server, LEASE);
    let held = stranger.fair_lock("x").lock().await.unwrap();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let (first, second) = (wait_for(&lock).await, wait_for(&lock).await);
    held.release().await.unwrap();
    let sent = server.sent();
    let channel = sent.iter().find(|sent| sent.is("SUBSCRIBE")).unwrap();
    let message = format!("{KEPT_UNTIL} 2900 - x");
    let locals = &client.core().locals;
    locals.message(channel.words[1].as_bytes(), message.as_bytes());
    let guard = first.await.unwrap().unwrap();
    let holder = guard.holder_id().to_owned();
    guard.release().await.unwrap();
    let guard = second.await.unwrap().unwrap();
    assert_eq!(guard.holder_id(), holder);
    assert!(guard.remaining() > Duration::from_secs(1));
    tokio::time::sleep(MS * 200).await;
    assert!(guard.remaining() > LEASE / 2, "it is renewed");
}

/// The waiter ahead wakes the follower, which needs no message for that.
#[tokio::test(start_paused = true)]
async fn a_follower_subscribes_only_when_it_waits_for_long() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let waiters = [wait_for(&lock).await, wait_for(&lock).await];
    let subscribed = || {
        let sent = server.sent();
        sent.iter().filter(|sent| sent.is("SUBSCRIBE")).count()
    };
    assert_eq!((server.sent().len(), subscribed()), (3, 0));
    tokio::time::sleep(MS * 1_100).await;
    assert_eq!(subscribed(), 2);
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_asks_behind_the_release_of_one_that_hands_nothing_on() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.clone().fixed_lease(LEASE).lock().await.unwrap();
    let _waiter = wait_for(&lock).await;
    let before = server.sent().len();
    guard.release().await.unwrap();
    others().await;
    let sent = server.sent();
    let [release, ask, ..] = &sent[before..] else {
        panic!("{sent:#?}");
    };
    assert!(release.is_release() && is_attempt(ask));
    assert_eq!((release.lane, ask.lane), (Lane::Command, Lane::Command));
    // The waiter ahead has left.
    assert!(sent.last().is_some_and(is_attempt));
    assert!(sent.iter().any(|sent| sent.is("SUBSCRIBE")));
}

/// The waiter ahead leaves, so the server has to notify the next one of its turn.
#[tokio::test(start_paused = true)]
async fn a_follower_of_one_that_left_listens_to_the_server() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let _guard = lock.lock().await.unwrap();
    let ahead = wait_for(&lock).await;
    let _waiter = wait_for(&lock).await;
    ahead.abort();
    others().await;
    let sent = server.sent();
    assert!(sent.iter().any(|sent| sent.is("SUBSCRIBE")), "{sent:#?}");
}

/// The follower's future is kept but not polled, so the lock goes back to the server, which can serve the next waiter.
#[tokio::test(start_paused = true)]
async fn a_follower_that_does_not_come_is_passed_over() {
    let server = in_a_queue();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let mut absent = Box::pin(lock.lock());
    tokio::select! {
        biased;
        _ = &mut absent => panic!("it is held"),
        () = others() => {}
    }
    guard.release().await.unwrap();
    others().await;
    assert!(releases(&server).is_empty(), "the absent one has it");
    // Two checks, a second apart.
    tokio::time::sleep(MS * 2_100).await;
    let released = releases(&server);
    let [(_, used)] = &released[..] else {
        panic!("{released:?}");
    };
    assert_eq!(used.len(), 1, "the place of the absent one ends, too");
    // The waiter comes back, and asks for another place.
    let asked = server.sent().len();
    tokio::select! {
        biased;
        _ = &mut absent => panic!("the server grants it nothing"),
        () = others() => {}
    }
    let sent = server.sent();
    let again = sent[asked..].iter().find(|sent| is_attempt(sent)).unwrap();
    assert!(!used.contains(&holder(again)));
}

/// The hold is left under a new holder id. The used places of earlier tasks must not stay in the queue.
#[tokio::test(start_paused = true)]
async fn used_places_go_when_the_hold_is_left_at_the_server() {
    used_places_go(|_| None).await;
}

/// The last share has ended by itself, and its guard stays.
#[tokio::test(start_paused = true)]
async fn used_places_go_when_the_hold_is_left_by_itself() {
    used_places_go(|owned| Some(owned.fixed_lease(LEASE / 4))).await;
}

/// The hold passes in memory, and is left at the server for the time that its owner asks for. If there is a second
/// guard, its share ends by itself.
async fn used_places_go(other: impl Fn(FairLock) -> Option<FairLock>) {
    let is_keep = |sent: &Sent| sent.words[1] == catalog::KEEP.sha();
    let answer = queue();
    let server = Scripted::new(move |sent| match is_keep(sent) {
        true => Answer::Value(done()),
        false => answer(sent),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let holder = guard.holder_id().to_owned();
    let owned = lock.owner(&Owner::new());
    let waiter = wait_for(&owned).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let other = match other(owned.clone()) {
        Some(other) => Some(other.lock().await.unwrap()),
        None => None,
    };
    let again = owned.at_least(LEASE / 2).lock().await.unwrap();
    assert_eq!(again.holder_id(), holder, "the hold stays the same");
    drop(guard);
    again.release().await.unwrap();
    if let Some(other) = &other {
        other.lost().await;
    }
    others().await;
    let kept_at = server.sent().iter().position(is_keep).expect("it is left");
    let removed = server.sent()[kept_at..].iter().any(Sent::is_release);
    let released = releases(&server);
    let [(by, used)] = &released[..] else {
        panic!("{released:?}");
    };
    assert!(removed, "behind that, because it would end the hold");
    assert_eq!((by, used.len()), (&holder, 1));
}

/// A guard that is alive at a shutdown keeps its lock at the server, even if an unpolled call still exists that was
/// granted the lock first and lost it to the task of this guard.
#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_the_lock_of_a_guard_that_got_it_from_a_call_that_is_not_polled() {
    let answers = queue();
    let server = Scripted::new(move |sent| match answers(sent) {
        Answer::Value(value) if is_attempt(sent) => Answer::Late(MS * 10, value),
        other => other,
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let mut asleep = Box::pin(lock.lock());
    assert!((&mut asleep).now_or_never().is_none());
    tokio::time::sleep(MS * 50).await;
    let next = wait_for(&lock).await;
    let guard = tokio::time::timeout(LEASE / 2, next).await.unwrap();
    let guard = guard.unwrap().unwrap();
    assert!(!guard.is_lost());
    client.clone().shutdown().await.unwrap();
    assert!(guard.is_lost());
    assert_eq!(releases(&server), []);
    drop(asleep);
}
