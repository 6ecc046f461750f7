//! Tests releases during a shutdown, and releases of several holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{LEASE, MS};
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::multilock::MultiLock;
use crate::script::{NativePath, catalog};
use crate::testing::{Answer, Scripted, Sent, done, each, granted};

/// The connection comes back just when the client shuts down. Only the release that waited for it is sent: a second one
/// would find no hold.
#[tokio::test(start_paused = true)]
async fn a_release_that_waits_for_a_connection_is_not_sent_again_by_a_shutdown() {
    let releases = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.is_release() {
        true => match releases.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::Unsent,
            1 => Answer::Value(redis::Value::Int(0)),
            _ => Answer::Value(redis::Value::Int(-1)),
        },
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let (released, shut_down) = tokio::join!(guard.release(), client.shutdown());
    released.unwrap();
    shut_down.unwrap();
    let sent = server
        .sent()
        .iter()
        .filter(|sent| sent.is_release())
        .count();
    assert_eq!(sent, 2, "once in vain");
}

/// A release that waits for a connection and an attempt that comes when there is one are polled in any order.
#[tokio::test(start_paused = true)]
async fn a_release_that_waits_for_a_connection_is_ahead_of_the_next_attempt() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(done()),
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    server.connect(false);
    drop(guard);
    tokio::time::sleep(MS).await;
    server.connect(true);
    let _guard = lock.try_lock().await.unwrap();
    let sent = server.sent();
    let releases: Vec<_> = sent.iter().map(Sent::is_release).collect();
    assert_eq!(releases, [false, true, false]);
}

/// Only a keep request is sent for a hold that is kept, so a missing hold was lost.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_to_be_left_is_lost_beside_a_shutdown_too() {
    let server = Scripted::new(|sent| {
        let is_keep = sent.words[1] == catalog::KEEP.sha();
        let not_held = redis::Value::Int(-1);
        match is_keep {
            true => Answer::Late(MS * 10, not_held),
            false => Answer::Value(granted()),
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").at_least(LEASE);
    let guard = lock.lock().await.unwrap();
    let (released, shut_down) = tokio::join!(guard.release(), client.shutdown());
    assert!(released.unwrap_err().is_not_held());
    shut_down.unwrap();
}

/// The error names the hold that was missing.
#[tokio::test(start_paused = true)]
async fn of_several_holds_only_the_one_that_was_missing_is_lost() {
    let server = Scripted::new(move |sent| match &*sent.words[0] {
        "HDEL" => Answer::Value(redis::Value::Int(i64::from(sent.words[1] != "b"))),
        _ if sent.is_release() => Answer::Value(redis::Value::Int(-1)),
        _ => Answer::Value(redis::Value::Int(0)),
    });
    let client = Client::over_by(&server, LEASE, NativePath::On);
    let all = MultiLock::new(["a", "b", "c"].map(|name| client.lock(name))).unwrap();
    let guard = all.lock().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_not_held());
    assert_eq!(error.lock_name(), Some("b"));
}

/// Holds that were released are not asked for again, and a hold that was missing still counts as lost.
#[tokio::test(start_paused = true)]
async fn of_several_holds_only_those_without_a_clear_reply_are_asked_for_again() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match (&*sent.words[0], &*sent.words[1]) {
        ("HDEL", "b") => Answer::Value(redis::Value::Int(0)),
        ("HDEL", "c") if asked.fetch_add(1, Ordering::SeqCst) == 0 => Answer::Error("LOADING no"),
        ("HDEL", _) => Answer::Value(redis::Value::Int(1)),
        _ if sent.is_release() => Answer::Value(redis::Value::Int(-1)),
        _ => Answer::Value(redis::Value::Int(0)),
    });
    let client = Client::over_by(&server, LEASE, NativePath::On);
    let all = MultiLock::new(["a", "b", "c"].map(|name| client.lock(name))).unwrap();
    let guard = all.lock().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.lock_name(), Some("b"));
    let sent = server.sent();
    let asked = sent.iter().filter(|sent| sent.is("HDEL"));
    let mut asked: Vec<_> = asked.map(|sent| &*sent.words[1]).collect();
    assert_eq!(asked[..3], ["c", "b", "a"], "last one first");
    asked[3..].sort_unstable();
    assert_eq!(asked[3..], ["b", "c"]);
}

/// The release may have been executed, so a repeat that finds no hold reports no loss.
#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_read_is_no_loss() {
    let strange = [
        Answer::Value(redis::Value::Okay),
        Answer::Error("ERR Script attempted to access a non local key in a cluster node"),
    ];
    for strange in strange {
        let releases = AtomicUsize::new(0);
        let server = Scripted::new(move |sent| match sent.is_release() {
            true => match releases.fetch_add(1, Ordering::SeqCst) {
                0 => strange.clone(),
                _ => Answer::Value(redis::Value::Int(-1)),
            },
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, LEASE);
        client
            .lock("x")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// The release is under way, and nothing else would end the hold.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_release_that_is_handed_over() {
    let late = MS * 10;
    let server = Scripted::new(move |sent| match sent.is_release() {
        true => Answer::Late(late, redis::Value::Int(0)),
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    drop(client.lock("x").lock().await.unwrap());
    assert!(!client.stats().is_idle(), "a release is under way");
    let began = server.clock().now();
    client.shutdown().await.unwrap();
    assert!(began.until(server.clock().now()) >= late);
    let releases = server
        .sent()
        .iter()
        .filter(|sent| sent.is_release())
        .count();
    assert_eq!(releases, 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_replies_cannot_be_read_names_its_lock() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(redis::Value::Okay),
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.lock_name(), Some("x"), "{error}");
}

/// A task drops its guard when it is notified of the shutdown, after the shutdown has begun to wait.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_release_of_a_guard_that_it_ends() {
    for (answer, is_confirmed) in [
        (Answer::Late(MS * 10, redis::Value::Int(0)), true),
        (Answer::Silence, false),
    ] {
        let server = Scripted::new(move |sent| match sent.is_release() {
            true => answer.clone(),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, LEASE);
        let guard = client.lock("x").lock().await.unwrap();
        let ends = tokio::spawn(async move {
            guard.lost().await;
            drop(guard);
        });
        tokio::time::sleep(MS).await;
        let began = server.clock().now();
        let confirmed = client.shutdown().await;
        assert_eq!(confirmed.is_ok(), is_confirmed, "{confirmed:?}");
        assert!(began.until(server.clock().now()) >= MS * 10);
        ends.await.unwrap();
    }
}

/// Each entry asks for a lease. All requests are answered, so no request can still lengthen the lease.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_ends_with_the_lease_however_often_the_lock_was_entered() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&is_silent);
    let server = Scripted::new(move |sent| match sent.words.get(1) {
        _ if silent.load(Ordering::SeqCst) => Answer::Silence,
        Some(word) if word == catalog::RENEW.sha() => Answer::Value(each(1, 1)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new()).fixed_lease(LEASE);
    let lock = lock.give_up_after(LEASE * 100);
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(lock.lock().await.unwrap());
        tokio::time::sleep(MS * 100).await;
    }
    is_silent.store(true, Ordering::SeqCst);
    let last = guards.pop().expect("the last guard");
    drop(guards);
    let began = server.clock().now();
    assert!(last.release().await.unwrap_err().is_io());
    let waited = began.until(server.clock().now());
    assert!(waited <= LEASE, "{waited:?}");
}

/// The hold ends with its lease, as after a crash. The end of another guard does not shorten that.
#[tokio::test(start_paused = true)]
async fn what_was_forgotten_stays_when_the_last_guard_ends_by_its_max_hold() {
    for at_least in [None, Some(LEASE / 2)] {
        let server = Scripted::new(|sent| match sent.words[1] == catalog::RENEW.sha() {
            true => Answer::Value(each(1, 1)),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, LEASE);
        let lock = client.lock("x").owner(&Owner::new());
        let guard = lock.clone().max_hold(LEASE / 6).lock().await.unwrap();
        lock.lock().await.unwrap().forget();
        if let Some(span) = at_least {
            drop(lock.at_least(span).lock().await.unwrap());
        }
        assert_eq!(guard.lost().await, LostReason::MaxHold);
        tokio::time::sleep(MS).await;
        drop(guard);
        tokio::time::sleep(LEASE).await;
        let ends = |sent: &&Sent| sent.is_release() || sent.words[1] == catalog::KEEP.sha();
        let sent = server.sent();
        assert_eq!(sent.iter().find(ends).map(|sent| &sent.words), None);
    }
}

/// The first lock has to be released. The second stays, because the owner has another share of it.
#[tokio::test(start_paused = true)]
async fn a_release_of_several_locks_to_a_silent_server_has_one_bound() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&is_silent);
    let server = Scripted::new(move |_| match silent.load(Ordering::SeqCst) {
        true => Answer::Silence,
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let (owner, give_up) = (Owner::new(), LEASE / 6);
    let lock = |name| client.lock(name).owner(&owner).give_up_after(give_up);
    let other = lock("b").lock().await.unwrap();
    let both = MultiLock::new(["a", "b"].map(lock)).unwrap();
    let both = both.lock().await.unwrap();
    is_silent.store(true, Ordering::SeqCst);
    tokio::time::sleep(MS).await;
    client.core().locals.moved();
    tokio::time::sleep(MS).await;
    let began = server.clock().now();
    assert!(both.release().await.unwrap_err().is_io());
    let waited = began.until(server.clock().now());
    assert!(waited <= give_up + MS, "{waited:?}");
    drop(other);
}

/// Otherwise it would be repeated for ever, like a call without a limit.
#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_ends_with_the_client() {
    let server = Scripted::new(|_| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").give_up_after(Duration::MAX);
    let asks = tokio::spawn(async move { lock.holder().await });
    tokio::time::sleep(MS * 2_500).await;
    assert!(!asks.is_finished());
    client.shutdown().await.unwrap();
    let error = tokio::time::timeout(MS, asks).await.unwrap().unwrap();
    assert!(error.unwrap_err().is_closed());
}

/// The other guard has ended by its `max_hold`, which says nothing about the release of this one.
#[tokio::test(start_paused = true)]
async fn a_release_in_doubt_does_not_report_the_end_of_another_guard() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Renewal => Answer::Silence,
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new());
    let first = lock.lock().await.unwrap();
    let other = lock.max_hold(MS * 5_000).lock().await.unwrap();
    tokio::time::sleep(MS * 5_100).await;
    assert!(other.is_lost() && !first.is_lost());
    client.core().locals.moved.notify();
    tokio::time::sleep(MS).await;
    let error = first.release().await.unwrap_err();
    assert!(error.is_io() && !error.is_not_held(), "{error}");
    drop(other);
}

/// The way to each server takes longer than the lease, always or once.
#[tokio::test(start_paused = true)]
async fn members_on_several_servers_that_are_granted_too_late_are_asked_for_again_or_refused() {
    for late in [1, usize::MAX] {
        let clients = ["a:1", "b:2"].map(|address| {
            let grants = AtomicUsize::new(0);
            let server = Scripted::at(address, move |sent| {
                if sent.is_release() {
                    Answer::Value(redis::Value::Int(1))
                } else if grants.fetch_add(1, Ordering::Relaxed) < late {
                    Answer::Late(MS * 700, granted())
                } else {
                    Answer::Value(granted())
                }
            });
            Client::over(&server, LEASE)
        });
        let both = || {
            let members = clients.each_ref().map(|client| client.lock("x"));
            MultiLock::new(members).unwrap().lease(MS * 500)
        };
        if late == 1 {
            let guard = both().try_lock().await.unwrap();
            assert!(guard.is_some(), "both are free");
        } else {
            let waited = tokio::time::timeout(LEASE, both().lock()).await;
            let error = waited.expect("an end").unwrap_err();
            assert!(
                error.is_io() && error.to_string().contains("lease"),
                "{error}"
            );
        }
    }
}
