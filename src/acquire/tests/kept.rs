//! Holds that are left at the server until the time is over that their handle asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{LEASE, MS};
use crate::Owner;
use crate::client::Client;
use crate::conn::Lane;
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done, each, elsewhere, granted, refused};

const AT_LEAST: Duration = Duration::from_secs(20);

/// Each renewal is due then, as none has another lease.
const RENEWED_AT: Duration = Duration::from_secs(10);

fn is_keep(sent: &Sent) -> bool {
    sent.words[1] == catalog::KEEP.sha()
}

fn is_attempt(sent: &Sent) -> bool {
    sent.words[1] == catalog::REENTRANT_ACQUIRE.sha()
}

/// A server that says this to the renewals, of which it is told how many there were before, and nothing but good
/// otherwise.
fn renewing(answer: impl Fn(&Sent, usize) -> Answer + Send + Sync + 'static) -> Arc<Scripted> {
    let renewals = AtomicUsize::new(0);
    Scripted::new(move |sent| match sent.lane {
        _ if is_keep(sent) => Answer::Value(done()),
        Lane::Renewal => answer(sent, renewals.fetch_add(1, Ordering::Relaxed)),
        _ => Answer::Value(granted()),
    })
}

/// Waits for the first renewal.
async fn renewal_sent(server: &Scripted) {
    while server.times(Lane::Renewal).is_empty() {
        assert!(server.clock().now() < crate::clock::Tick::ZERO.after(RENEWED_AT * 2));
        tokio::time::sleep(MS).await;
    }
}

/// What was sent about a holder over one lane.
fn about(server: &Scripted, holder: &str, lane: Lane) -> Vec<Sent> {
    let mut sent = server.sent();
    sent.retain(|sent| sent.lane == lane && sent.words.iter().any(|word| word == holder));
    sent
}

/// What is left of the time that it was to be held for, to the millisecond.
fn assert_leaves_the_rest(keep: &Sent, granted_at: Duration) {
    assert!(is_keep(keep), "{keep:?}");
    let lease: u64 = keep.script_args()[2].parse().unwrap();
    let end = keep.at + Duration::from_millis(lease);
    let asked = granted_at + AT_LEAST;
    assert!(end >= asked && end <= asked + MS * 2, "{end:?}: {keep:?}");
}

/// A server that has no room, or cannot write to its disk, for a while.
#[tokio::test(start_paused = true)]
async fn a_hold_is_left_as_soon_as_the_server_no_longer_refuses() {
    let (refused_until, at_least) = (MS * 2_500, MS * 5_000);
    let server = Scripted::new(move |sent| match sent.lane {
        _ if is_keep(sent) && sent.at < refused_until => Answer::Error("MISCONF no disk"),
        _ if is_keep(sent) => Answer::Value(done()),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").at_least(at_least);
    drop(lock.lock().await.unwrap());
    tokio::time::sleep(at_least).await;
    let left = server.sent().pop().unwrap();
    assert!(is_keep(&left) && left.lane == Lane::Command, "{left:?}");
    let late = left.at.checked_sub(refused_until).expect("a later attempt");
    assert!(late <= MS * 200, "the longest pause: {late:?}");
    let lease: u64 = left.script_args()[2].parse().unwrap();
    let remaining = at_least - left.at;
    let lease = Duration::from_millis(lease);
    // What is repeated while an answer is waited for is the same.
    let most = remaining + MS * 1_001;
    assert!(lease >= remaining && lease <= most, "{lease:?}");
}

/// Nothing else is on its way: one request, behind which this client asks.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_left_once() {
    let server = renewing(|sent, _| Answer::Value(each(1, sent.script_keys())));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").at_least(AT_LEAST).lock().await.unwrap();
    renewal_sent(&server).await;
    tokio::time::sleep(MS).await;
    guard.release().await.unwrap();
    tokio::time::sleep(LEASE).await;
    let sent = server.sent();
    let keeps: Vec<_> = sent.iter().filter(|sent| is_keep(sent)).collect();
    assert!(keeps.len() == 1, "{keeps:?}");
    assert_eq!(keeps[0].lane, Lane::Command);
    assert_leaves_the_rest(keeps[0], Duration::ZERO);
    assert!(client.stats().is_idle());
}

/// A renewal that is on its way may be sent again: one by one if one of several is refused, and by its text where
/// the server does not know the script.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_sent_again_does_not_lengthen_what_is_left() {
    for refusal in [
        "NOPERM No permissions to access a key",
        "NOSCRIPT No matching script. Please use EVAL.",
    ] {
        let server = renewing(|sent, before| match before {
            0 => Answer::Late(MS * 500, refused(refusal)),
            _ => Answer::Late(MS * 10, each(1, sent.script_keys())),
        });
        let client = Client::over(&server, LEASE);
        let guard = client.lock("x").at_least(AT_LEAST).lock().await.unwrap();
        let _other = client.lock("y").lock().await.unwrap();
        renewal_sent(&server).await;
        assert_eq!(server.sent().last().unwrap().script_keys(), 2);
        let holder = guard.holder_id().to_owned();
        guard.release().await.unwrap();
        tokio::time::sleep(MS * 1_000).await;

        let kept = about(&server, &holder, Lane::Command).pop().unwrap();
        assert_leaves_the_rest(&kept, Duration::ZERO);
        let renewals = about(&server, &holder, Lane::Renewal);
        let [first, again, last] = &renewals[..] else {
            panic!("{refusal}: {renewals:?}");
        };
        assert!(first.at <= kept.at && kept.at < again.at, "{refusal}");
        assert!(!is_keep(again), "{refusal}");
        assert!(last.at >= again.at + MS * 10, "{refusal}: when it is over");
        assert_leaves_the_rest(last, Duration::ZERO);
        assert_eq!(client.stats().background, 0, "{refusal}");
    }
}

/// A renewal that was given up may be executed when the server goes on. It takes another connection than what
/// leaves the hold.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_given_up_does_not_lengthen_what_is_left() {
    let server = renewing(|_, _| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").at_least(AT_LEAST).lock().await.unwrap();
    let holder = guard.holder_id().to_owned();
    renewal_sent(&server).await;
    tokio::time::sleep(MS * 1_001).await;
    guard.release().await.unwrap();
    tokio::time::sleep(MS * 2_000).await;
    let last = about(&server, &holder, Lane::Renewal).pop().unwrap();
    assert_leaves_the_rest(&last, Duration::ZERO);
    assert!(client.stats().is_idle());
}

/// The server may be asked over both connections to make the lease longer.
#[tokio::test(start_paused = true)]
async fn what_is_left_comes_behind_an_entry_and_a_renewal() {
    let attempts = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.lane {
        _ if is_keep(sent) => Answer::Value(done()),
        Lane::Renewal => Answer::Late(MS * 500, each(1, 1)),
        _ if !is_attempt(sent) => Answer::Value(done()),
        _ if attempts.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Value(granted()),
        _ => Answer::Silence,
    });
    let client = Client::over(&server, LEASE);
    let me = Owner::new();
    let lock = client.lock("x").owner(&me).give_up_after(MS * 100);
    let guard = lock.clone().at_least(AT_LEAST).lock().await.unwrap();
    let holder = guard.holder_id().to_owned();
    tokio::time::sleep(RENEWED_AT - MS * 1_000).await;
    let error = lock.try_lock().await.unwrap_err();
    assert!(error.is_io(), "{error}");
    renewal_sent(&server).await;
    drop(guard);
    tokio::time::sleep(MS * 1_000).await;
    for lane in [Lane::Command, Lane::Renewal] {
        let last = about(&server, &holder, lane).pop().unwrap();
        assert_leaves_the_rest(&last, Duration::ZERO);
    }
    assert!(client.stats().is_idle());
}

/// A renewal that waits until its server has room is not on its way.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_renewal_that_is_not_sent() {
    let server = renewing(|_, _| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let mut guards = Vec::new();
    for number in 0..=800 {
        let lock = client.lock(format!("x{number}")).at_least(AT_LEAST);
        guards.push(lock.lock().await.unwrap());
    }
    renewal_sent(&server).await;
    let waits = |guard: &crate::ReentrantGuard| {
        let renewals = about(&server, guard.holder_id(), Lane::Renewal);
        renewals.is_empty()
    };
    let waits = guards.iter().position(waits).expect("one without room");
    let guard = guards.swap_remove(waits);
    let holder = guard.holder_id().to_owned();
    guard.release().await.unwrap();
    assert_eq!(client.stats().background, 0, "nothing more to do");
    assert!(about(&server, &holder, Lane::Renewal).is_empty());
    let kept = about(&server, &holder, Lane::Command).pop().unwrap();
    assert_leaves_the_rest(&kept, Duration::ZERO);
}

/// Whoever asks next in this client is told what is left of the lock.
#[tokio::test(start_paused = true)]
async fn who_waits_in_the_same_client_asks_behind_what_is_left() {
    let answered_after = MS * 50;
    let attempts = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| {
        if is_keep(sent) {
            Answer::Late(answered_after, done())
        } else if !is_attempt(sent) {
            Answer::Value(redis::Value::Nil)
        } else if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            Answer::Value(granted())
        } else {
            Answer::Value(elsewhere(25_000))
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.clone().at_least(AT_LEAST).lock().await.unwrap();
    let waits = async {
        let waited = lock.try_lock_for(MS * 400).await;
        assert!(waited.unwrap().is_none());
    };
    let releases = async {
        tokio::time::sleep(MS * 200).await;
        guard.release().await.unwrap();
    };
    tokio::join!(waits, releases);
    let sent = server.sent();
    let at = sent.iter().position(is_keep).unwrap();
    let (keep, later) = (&sent[at], &sent[at + 1..]);
    // The others come behind its answer.
    let first = later.iter().find(|sent| is_attempt(sent)).unwrap();
    let is_behind = first.lane == keep.lane || first.at >= keep.at + answered_after;
    assert!(is_behind, "{first:?} beside {keep:?}");
}
