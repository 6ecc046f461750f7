//! Tests holds that stay at the server until the minimum hold time of their handle is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use super::rw::{What, asked, got, nothing_is_left, others, reader, reads_are_slow, scene_where};
use super::{LEASE, MS};
use crate::Owner;
use crate::client::Client;
use crate::conn::Lane;
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done, each, elsewhere, granted, refused};

const AT_LEAST: Duration = Duration::from_secs(20);

/// Each renewal is due at this age, because no hold has another lease.
const RENEWED_AT: Duration = Duration::from_secs(10);

fn is_keep(sent: &Sent) -> bool {
    sent.words[1] == catalog::KEEP.sha()
}

fn is_attempt(sent: &Sent) -> bool {
    sent.words[1] == catalog::REENTRANT_ACQUIRE.sha()
}

/// A server that answers renewals with `answer`, which gets the number of earlier renewals, and confirms all else.
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
        assert!(server.clock().now() < crate::engine::clock::Tick::ZERO.after(RENEWED_AT * 2));
        tokio::time::sleep(MS).await;
    }
}

/// Checks that the hold is kept for the rest of its minimum time, to the millisecond.
fn assert_leaves_the_rest(keep: &Sent, granted_at: Duration) {
    assert!(is_keep(keep), "{keep:?}");
    let lease: u64 = keep.script_args()[3].parse().unwrap();
    let end = keep.at + Duration::from_millis(lease);
    let asked = granted_at + AT_LEAST;
    assert!(end >= asked && end <= asked + MS * 2, "{end:?}: {keep:?}");
}

/// The server has no memory left, or cannot write to its disk, for a while.
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
    let lease: u64 = left.script_args()[3].parse().unwrap();
    let remaining = at_least - left.at;
    let lease = Duration::from_millis(lease);
    // While it waits for an answer, the client repeats the request unchanged.
    let most = remaining + MS * 1_001;
    assert!(lease >= remaining && lease <= most, "{lease:?}");
}

/// One request keeps the hold, and the next call of this client goes behind it. A renewal still under way on another
/// connection names the old holder id.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_left_once_under_an_id_of_its_own() {
    let answers = [
        Answer::Value(each(1, 1)),
        Answer::Late(MS * 500, refused("NOPERM No permissions to access a key")),
        Answer::Silence,
    ];
    for answer in answers {
        let what = format!("{answer:?}");
        let server = renewing(move |_, _| answer.clone());
        let client = Client::over(&server, LEASE);
        let guard = client.lock("x").at_least(AT_LEAST).lock().await.unwrap();
        let holder = guard.holder_id().to_owned();
        renewal_sent(&server).await;
        tokio::time::sleep(MS * 1_001).await;
        guard.release().await.unwrap();
        assert_eq!(client.stats().background, 0, "nothing more to do: {what}");
        tokio::time::sleep(LEASE).await;
        let sent = server.sent();
        let keeps: Vec<_> = sent.iter().filter(|sent| is_keep(sent)).collect();
        let [keep] = keeps[..] else {
            panic!("{what}: {keeps:?}");
        };
        assert_eq!(keep.lane, Lane::Command);
        assert_leaves_the_rest(keep, Duration::ZERO);
        let args = keep.script_args();
        let client_of = |id: &str| id.rsplit_once(':').unwrap().0.to_owned();
        assert_eq!(args[1], holder);
        assert_ne!(args[2], holder);
        assert_eq!(
            client_of(&args[2]),
            client_of(&holder),
            "its client is known by it"
        );
        assert!(client.stats().is_idle());
    }
}

/// Each repeat names the holder id that the first request may have set.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_left_under_one_id() {
    let keeps = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match is_keep(sent) {
        true if keeps.fetch_add(1, Ordering::Relaxed) < 4 => Answer::Silence,
        true => Answer::Value(done()),
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").at_least(AT_LEAST).lock().await.unwrap();
    // The caller stops waiting, and the release continues in the background.
    let released = tokio::time::timeout(MS * 1_500, guard.release()).await;
    assert!(released.is_err());
    tokio::time::sleep(AT_LEAST).await;
    let sent = server.sent();
    let keeps: Vec<_> = sent.iter().filter(|sent| is_keep(sent)).collect();
    assert!(keeps.len() >= 5, "{keeps:?}");
    let first = &keeps[0].script_args()[2];
    assert!(
        keeps.iter().all(|keep| keep.script_args()[2] == *first),
        "{keeps:?}"
    );
    assert!(client.stats().is_idle());
}

/// Two guards of one owner: the released guard asked for more time than the other guard has left. When the other guard
/// ends by itself, the hold is kept at once, and a later release of that guard frees nothing.
#[tokio::test(start_paused = true)]
async fn what_a_released_guard_asked_for_is_left_when_the_other_one_ends() {
    let most = MS * 3_000;
    for is_fixed in [false, true] {
        let server = Scripted::new(|sent| match sent.lane {
            Lane::Renewal => Answer::Value(each(1, sent.script_keys())),
            _ if is_attempt(sent) => Answer::Value(granted()),
            _ => Answer::Value(done()),
        });
        let client = Client::over(&server, LEASE);
        let lock = client.lock("x").owner(&Owner::new());
        let outer = lock.clone().at_least(AT_LEAST).lock().await.unwrap();
        let inner = match is_fixed {
            true => lock.fixed_lease(most).lock().await.unwrap(),
            false => lock.max_hold(most).lock().await.unwrap(),
        };
        outer.release().await.unwrap();
        inner.lost().await;
        tokio::time::sleep(MS * 20).await;
        let keep = server.sent().pop().unwrap();
        assert_leaves_the_rest(&keep, Duration::ZERO);
        assert!(keep.at <= most + MS * 20, "at once: {keep:?}");
        tokio::time::sleep(MS * 500).await;
        assert!(inner.release().await.unwrap_err().is_not_held());
        tokio::time::sleep(LEASE).await;
        let sent = server.sent();
        let later = sent.iter().filter(|sent| sent.at > keep.at);
        let mut ids = later.map(|sent| {
            assert!(is_keep(sent), "{sent:?}");
            sent.script_args()[2].clone()
        });
        assert!(ids.all(|id| id == keep.script_args()[2]));
        assert!(client.stats().is_idle());
    }
}

/// The next call of this client sees the kept hold.
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
    // Attempts on another lane come after its answer.
    let first = later.iter().find(|sent| is_attempt(sent)).unwrap();
    let is_behind = first.lane == keep.lane || first.at >= keep.at + answered_after;
    assert!(is_behind, "{first:?} beside {keep:?}");
}

/// The release of another lock is slow, so the guard is dropped before the shutdown is over.
#[tokio::test(start_paused = true)]
async fn what_a_released_guard_asked_for_is_left_when_the_other_one_is_dropped_in_a_shutdown() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Late(MS * 500, done()),
        false if is_keep(sent) => Answer::Value(done()),
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let slow = client.lock("y").lock().await.unwrap();
    let lock = client.lock("x").owner(&Owner::new());
    let outer = lock.clone().at_least(AT_LEAST).lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    outer.release().await.unwrap();
    drop(slow);
    let drops = async {
        tokio::time::sleep(MS * 100).await;
        assert!(inner.is_lost() && !server.sent().iter().any(is_keep));
        drop(inner);
    };
    let (shut_down, ()) = tokio::join!(client.clone().shutdown(), drops);
    shut_down.unwrap();
    let sent = server.sent();
    let is_about_it = |sent: &&Sent| sent.words.iter().any(|word| word == "x");
    let last = sent.iter().rfind(is_about_it).unwrap();
    assert_leaves_the_rest(last, Duration::ZERO);
}

/// A writer that asked to keep the hold, and a reader of the same owner. No request is sent between their ends.
#[tokio::test(start_paused = true)]
async fn what_an_owner_read_last_is_left_as_a_readers() {
    for is_written_last in [false, true] {
        let (server, client, lock) = scene_where(|_, _| None);
        let lock = lock.owner(&Owner::new());
        let write = lock.clone().at_least(AT_LEAST).write().await.unwrap();
        let read = lock.read().await.unwrap();
        if is_written_last {
            drop((read, write));
        } else {
            drop((write, read));
        }
        nothing_is_left(&client).await;
        let downgrades = asked(&server);
        let downgrades = downgrades.iter().filter(|what| **what == What::Downgrade);
        assert_eq!(downgrades.count(), usize::from(!is_written_last));
        let keep = server.sent().pop().unwrap();
        assert_eq!(keep.words[1], catalog::RW_KEEP.sha());
    }
}

/// A reader that joined asks, through its owner, to keep the hold. The readers that are left were handed their shares,
/// and do not come.
#[tokio::test(start_paused = true)]
async fn what_readers_asked_to_be_left_is_left_by_a_shutdown_though_the_others_have_not_come() {
    let (server, client, lock) = scene_where(reads_are_slow);
    let first = reader(&lock).await;
    let mut waits = Box::pin(lock.read());
    assert!((&mut waits).now_or_never().is_none());
    tokio::time::sleep(MS * 2).await;
    let first = got(first).await;
    let early = lock.clone().owner(first.owner()).at_least(AT_LEAST);
    drop(early.read().await.unwrap());
    drop(first);
    others().await;
    assert_eq!(asked(&server), [What::Read], "the other has a share");
    client.shutdown().await.unwrap();
    let keep = server.sent().pop().unwrap();
    assert_eq!(keep.words[1], catalog::RW_KEEP.sha(), "{keep:?}");
    assert!(!asked(&server).contains(&What::Release));
    drop(waits);
    tokio::time::sleep(LEASE).await;
    assert_eq!(server.sent().pop().unwrap(), keep, "nothing follows");
}

/// The server has been silent since the guard ended by its `max_hold`. The drop of the guard asks for nothing again.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_left_is_reported_once() {
    let server = Scripted::new(|sent| match sent.lane {
        _ if is_attempt(sent) => Answer::Value(granted()),
        Lane::Renewal => Answer::Value(each(1, sent.script_keys())),
        _ => Answer::Silence,
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new());
    let outer = lock.clone().at_least(AT_LEAST).lock().await.unwrap();
    let inner = lock.max_hold(MS * 3_000).lock().await.unwrap();
    outer.release().await.unwrap();
    inner.lost().await;
    drop(inner);
    tokio::time::sleep(LEASE * 3).await;
    let stats = client.stats();
    assert_eq!(stats.totals.background_failures, 1);
    assert!(stats.is_idle(), "{stats:?}");
}
