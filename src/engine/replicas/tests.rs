//! Tests the wait for replicas under paused time, with a scripted server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use crate::api::handle::Handle;
use crate::api::options::Replication;
use crate::client::Client;
use crate::conn::Lane;
use crate::engine::acquire::attempt_once;
use crate::engine::counts::Mode;
use crate::reentrant::{PROTOCOL, ReentrantLock};
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done, each, granted};

const LEASE: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Answers as a server that has every hold, with `replicas` that confirm at once.
fn healthy(sent: &Sent, replicas: i64) -> Answer {
    Answer::Value(match (sent.lane, &*sent.words[0]) {
        (_, "WAIT") => Value::Int(replicas),
        (Lane::Confirm | Lane::Renewal, _) => each(1, sent.script_keys()),
        _ if is_release(sent) => done(),
        _ => granted(),
    })
}

/// A server with every hold, whose `replicas` confirm after this time.
fn slow(after: Duration, replicas: i64) -> Arc<Scripted> {
    Scripted::new(move |sent| match sent.is("WAIT") {
        true => Answer::Late(after, Value::Int(replicas)),
        false => healthy(sent, replicas),
    })
}

fn is_release(sent: &Sent) -> bool {
    sent.words[1] == catalog::REENTRANT_RELEASE.sha()
}

fn lock(client: &Client, name: &str) -> ReentrantLock {
    client.lock(name).replicated(1, WITHIN)
}

fn waits(server: &Scripted) -> Vec<Sent> {
    let mut sent = server.sent();
    sent.retain(|sent| sent.is("WAIT"));
    sent
}

/// The acquires (`true`) and releases of one lock in order, each with its holder id.
fn attempts(server: &Scripted, name: &str) -> Vec<(bool, String)> {
    let sent = server.sent().into_iter();
    let mut all = Vec::new();
    for sent in sent.filter(|sent| matches!(sent.lane, Lane::Command | Lane::Push)) {
        if sent.is("EVALSHA") && sent.words[3] == name {
            let is_release = is_release(&sent);
            let holder = sent.words.iter().find(|word| word.starts_with("test:"));
            all.push((is_release, holder.unwrap().clone()));
        }
    }
    all
}

/// Too few replicas are an answer, so a server of a `Redlock` is not asked again.
#[tokio::test(start_paused = true)]
async fn too_few_replicas_are_asked_for_once() {
    let server = Scripted::new(|sent| healthy(sent, 0));
    let client = Client::over(&server, LEASE);
    let mut handle = Handle::new(&client, "x", &PROTOCOL, Mode::Exclusive);
    handle.options_mut().replication = Some(Replication {
        count: 1,
        within: WITHIN,
    });
    let asked = attempt_once(handle.request("lock").unwrap(), WITHIN).await;
    assert!(asked.unwrap_err().is_not_replicated());
    let (holds, releases): (Vec<_>, Vec<_>) = attempts(&server, "x")
        .into_iter()
        .partition(|(is_release, _)| !is_release);
    assert_eq!((holds.len(), releases.len()), (1, 1));
}

/// The next call of this client goes behind the undoing of one that was dropped while it waited for replicas.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_is_undone_before_the_next() {
    let server = slow(MS * 500, 1);
    let client = Client::over(&server, LEASE);
    let dropped = tokio::time::timeout(MS * 100, lock(&client, "x").lock()).await;
    assert!(dropped.is_err(), "it waits for replicas");
    let guard = client.lock("x").try_lock().await.unwrap();
    let [first, second] = ["test:1", "test:2"].map(str::to_owned);
    let expected = [(false, first.clone()), (true, first), (false, second)];
    assert_eq!(attempts(&server, "x"), expected);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_renewed_and_waited_for_on_one_connection_in_this_order() {
    let server = Scripted::new(|sent| healthy(sent, 2));
    let client = Client::over(&server, LEASE);
    let guard = lock(&client, "x").lock().await.unwrap();
    let mut sent = server.sent();
    sent.retain(|sent| sent.lane == Lane::Confirm);
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].words[2..4], ["1", "x"]);
    assert_eq!(sent[1].words, ["WAIT", "1", "1000"]);
    // A second guard of the owner needs no second grant.
    let again = guard.reenter().await.unwrap();
    assert_eq!(waits(&server).len(), 1);
    again.release().await.unwrap();
    guard.release().await.unwrap();
    let plain = client.lock("x").lock().await.unwrap();
    assert_eq!(waits(&server).len(), 1, "only for a replicated handle");
    drop(plain);
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_wait_is_under_way_shares_the_next_one() {
    let server = slow(MS * 100, 1);
    let client = Client::over(&server, LEASE);
    let locks: Vec<_> = (0..64).map(|n| lock(&client, &format!("x{n}"))).collect();
    let started = server.clock().now();
    let others = async {
        tokio::time::sleep(MS * 10).await;
        join_all(locks[1..].iter().map(ReentrantLock::lock)).await
    };
    let (first, others) = tokio::join!(locks[0].lock(), others);
    assert!(first.is_ok() && others.iter().all(Result::is_ok));
    assert_eq!(waits(&server).len(), 2);
    assert_eq!(started.until(server.clock().now()), MS * 200);
    let mut sent = server.sent();
    sent.retain(|sent| sent.lane == Lane::Confirm && !sent.is("WAIT"));
    let keys: Vec<usize> = sent.iter().map(Sent::script_keys).collect();
    assert_eq!(keys, [1, 63]);
    drop((first, others));
    tokio::time::sleep(MS * 10).await;
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

/// A request for another number of replicas has its own wait, after the earlier waits. Each server has its own queue.
#[tokio::test(start_paused = true)]
async fn waits_for_different_numbers_come_one_after_the_other_on_each_server() {
    let place = |key: &str| (0, u64::from(key.starts_with('b')));
    let server = Scripted::many(place, |sent| {
        if sent.is("WAIT") {
            Answer::Late(MS * 100, Value::Int(9))
        } else {
            healthy(sent, 9)
        }
    });
    let client = Client::over(&server, LEASE);
    let locks = [("a1", 1), ("a2", 2), ("a3", 3), ("a4", 2), ("b1", 1)];
    let locks = locks.map(|(name, count)| client.lock(name).replicated(count, WITHIN));
    let guards = join_all(locks.iter().map(ReentrantLock::lock)).await;
    assert!(guards.iter().all(Result::is_ok));
    let mut of_a: Vec<(Duration, String)> = Vec::new();
    for wait in waits(&server) {
        match wait.server {
            0 => of_a.push((wait.at, wait.words[1].clone())),
            _ => assert_eq!(wait.at, Duration::ZERO),
        }
    }
    let expected = [("1", 0), ("2", 100), ("3", 200)];
    assert_eq!(
        of_a,
        expected.map(|(count, ms)| (MS * ms, count.to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn too_few_replicas_release_the_grant_and_say_so() {
    let server = Scripted::new(|sent| healthy(sent, 1));
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").replicated(2, MS * 200);
    let error = lock.lock().await.unwrap_err();
    assert!(error.is_not_replicated() && error.is_refused(), "{error}");
    assert!(!error.is_io() && !error.is_invalid(), "{error}");
    assert_eq!(
        error.to_string(),
        "lock \"x\": lock: 1 of 2 replicas confirmed within 200ms; the lock was released; check the \
         replicas of scripted and their links, ask for fewer, or allow more time"
    );
    // The release was sent before the caller got the error.
    let attempts = attempts(&server, "x");
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_eq!(attempts[1], (true, attempts[0].1.clone()));
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_the_server_has_lost_meanwhile_is_asked_for_again() {
    let lost = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&lost);
    let server = Scripted::new(move |sent| {
        let is_renewal = sent.lane == Lane::Confirm && !sent.is("WAIT");
        let take = |left: usize| left.checked_sub(1);
        if is_renewal
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
        {
            return Answer::Value(each(0, sent.script_keys()));
        }
        healthy(sent, 1)
    });
    let client = Client::over(&server, LEASE);
    let guard = lock(&client, "x").lock().await.unwrap();
    let all = attempts(&server, "x");
    let (grants, releases): (Vec<_>, Vec<_>) = all.iter().partition(|(release, _)| !release);
    assert_eq!(grants.len(), 2);
    assert_ne!(grants[0].1, grants[1].1, "a holder id is used once");
    assert_eq!(releases.len(), 1, "the first attempt is undone");
    assert_eq!(releases[0].1, grants[0].1);
    guard.release().await.unwrap();

    lost.store(1, Ordering::Relaxed);
    assert!(lock(&client, "x").try_lock().await.unwrap().is_none());
    // The subscription lingers for a moment.
    tokio::time::sleep(LEASE).await;
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

/// The lease counts from the request, no matter how long the replicas take.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_time_is_over_is_not_handed_out() {
    let server = slow(MS * 1200, 9);
    let client = Client::over(&server, LEASE);
    let take = |count: u32| {
        let lock = client.lock(format!("x{count}")).replicated(count, WITHIN);
        async move {
            let guard = lock.lock().await.unwrap();
            (guard.remaining(), guard)
        }
    };
    let (first, second, third) = tokio::join!(take(1), take(2), take(3));
    let margin = MS * 32;
    assert_eq!(first.0, LEASE - margin - MS * 1200);
    assert_eq!(second.0, LEASE - margin - MS * 2400);
    // The first grant would have been confirmed after 3600 ms.
    let attempts = attempts(&server, "x3");
    assert_eq!(attempts.len(), 3, "{attempts:?}");
    assert!(third.0 > LEASE / 3 && !third.1.is_lost());
    drop((first, second, third));
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_in_the_middle_leaves_nothing_and_takes_nobody_along() {
    let server = slow(MS * 500, 1);
    let client = Client::over(&server, LEASE);
    // The first request starts the wait. The others share the next wait.
    let mut calls = Vec::new();
    for name in ["a", "b", "c"] {
        let lock = lock(&client, name);
        calls.push(tokio::spawn(async move { lock.lock().await }));
        tokio::time::sleep(MS * 10).await;
    }
    for given_up in [0, 1] {
        calls[given_up].abort();
    }
    tokio::time::sleep(MS).await;
    for name in ["a", "b"] {
        let attempts = attempts(&server, name);
        assert_eq!(attempts.len(), 2, "{name}: {attempts:?}");
        assert_eq!(attempts[1], (true, attempts[0].1.clone()), "{name}");
    }
    let guard = calls.pop().unwrap().await.unwrap().unwrap();
    assert_eq!(waits(&server).len(), 2);
    let mut confirmed = server.sent();
    confirmed.retain(|sent| sent.lane == Lane::Confirm && !sent.is("WAIT"));
    let keys: Vec<_> = confirmed.iter().map(|sent| sent.words[3].clone()).collect();
    assert_eq!(keys, ["a", "c"], "a dropped call is not waited for");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_an_answer_is_undone() {
    let server = Scripted::new(|sent| {
        if sent.is("WAIT") {
            Answer::Silence
        } else {
            healthy(sent, 1)
        }
    });
    let client = Client::over(&server, LEASE);
    let started = server.clock().now();
    let error = lock(&client, "x").lock().await.unwrap_err();
    assert!(error.is_io() && error.lock_name() == Some("x"), "{error}");
    // The time for the replicas and for one reply.
    assert_eq!(started.until(server.clock().now()), WITHIN + MS * 500);
    tokio::time::sleep(MS).await;
    let attempts = attempts(&server, "x");
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_eq!(attempts[1], (true, attempts[0].1.clone()));
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_shut_down_waits_for_no_replica() {
    let server = slow(MS * 900, 1);
    let client = Client::over(&server, LEASE);
    let call = tokio::spawn({
        let lock = lock(&client, "x");
        async move { lock.lock().await }
    });
    tokio::time::sleep(MS * 10).await;
    let closing = tokio::spawn(client.shutdown());
    tokio::time::sleep(MS * 10).await;
    assert!(call.is_finished());
    assert!(call.await.unwrap().unwrap_err().is_closed());
    let attempts = attempts(&server, "x");
    assert_eq!(attempts[1], (true, attempts[0].1.clone()));
    closing.await.unwrap().unwrap();
}

/// A server that has forgotten its scripts gets their text, and `WAIT` again behind it.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_server_does_not_know_is_sent_in_full() {
    let server = Scripted::new(|sent| match (sent.lane, &*sent.words[0]) {
        (Lane::Confirm, "EVALSHA") => Answer::Error("NOSCRIPT No matching script."),
        _ => healthy(sent, 1),
    });
    let client = Client::over(&server, LEASE);
    let guard = lock(&client, "x").lock().await.unwrap();
    let mut sent = server.sent();
    sent.retain(|sent| sent.lane == Lane::Confirm);
    let verbs: Vec<&str> = sent.iter().map(|sent| &*sent.words[0]).collect();
    assert_eq!(verbs, ["EVALSHA", "WAIT", "EVAL", "WAIT"]);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_let_wait_is_an_error_that_names_the_right() {
    for line in [
        "NOPERM this user has no permissions to run the 'wait' command",
        "ERR unknown command 'WAIT', with args beginning with:",
    ] {
        let server = Scripted::new(move |sent| {
            if sent.is("WAIT") {
                Answer::Error(line)
            } else {
                healthy(sent, 1)
            }
        });
        let client = Client::over(&server, LEASE);
        let error = lock(&client, "x").lock().await.unwrap_err();
        assert!(error.is_denied(), "{error}");
        assert!(error.to_string().contains("+wait"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!(attempts(&server, "x").len(), 2);
    }
}

/// The slot of one hold moves while the hold waits in the queue. The hold is confirmed at the new server, separately.
#[tokio::test(start_paused = true)]
async fn a_slot_that_has_moved_is_followed() {
    let place = |key: &str| (u16::from(key == "b"), 0);
    let moved = AtomicUsize::new(1);
    let server = Scripted::many(place, move |sent| {
        let is_b = sent.lane == Lane::Confirm && sent.words.get(3).is_some_and(|key| key == "b");
        if is_b && moved.swap(0, Ordering::Relaxed) == 1 {
            return Answer::Error("MOVED 1 127.0.0.1:7001");
        }
        if sent.is("WAIT") {
            Answer::Late(MS * 100, Value::Int(1))
        } else {
            healthy(sent, 1)
        }
    });
    let client = Client::over(&server, LEASE);
    let locks = ["a", "b"].map(|name| lock(&client, name));
    let guards = join_all(locks.iter().map(ReentrantLock::lock)).await;
    assert!(guards.iter().all(Result::is_ok), "{guards:?}");
    assert_eq!(waits(&server).len(), 2);
}
