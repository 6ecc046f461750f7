//! Tests the wait engine under paused time, with a scripted server.

mod bound;
mod deferred_downgrade;
mod following;
mod futures;
mod handoff;
mod handover;
mod hints;
mod join;
mod kept;
mod release;
mod rw;

use std::collections::BTreeSet;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{bound, one};
use crate::api::handle::Handle;
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::undo::QUEUE_MAX;
use crate::engine::hold::{Share, SharedHold};
use crate::reentrant::PROTOCOL;
use crate::script::catalog::REENTRANT_ACQUIRE;
use crate::testing::{Answer, Scripted, Sent, done, elsewhere, granted};
use crate::watchdog::Leased;

const LEASE: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

fn attempts(sent: &[Sent]) -> Vec<(Duration, Lane)> {
    let scripts = sent.iter().filter(|sent| sent.is("EVALSHA"));
    scripts.map(|sent| (sent.at, sent.lane)).collect()
}

/// Refuses attempts with `remaining_ms` left, and confirms subscriptions.
fn refusing(remaining_ms: i64) -> Arc<Scripted> {
    Scripted::new(move |sent| {
        Answer::Value(if sent.is("EVALSHA") {
            elsewhere(remaining_ms)
        } else {
            redis::Value::Nil
        })
    })
}

#[tokio::test(start_paused = true)]
async fn without_messages_it_asks_at_the_poll_cap_and_at_the_deadline() {
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let wait = Duration::from_millis(2_500);
    assert!(client.lock("x").try_lock_for(wait).await.unwrap().is_none());
    let at = |millis: u32| MS * millis;
    assert_eq!(
        attempts(&server.sent()),
        [
            (at(0), Lane::Command),
            // The subscription has begun.
            (at(0), Lane::Command),
            (at(1_000), Lane::Command),
            (at(2_000), Lane::Command),
            (at(2_500), Lane::Command),
        ]
    );
    let sent = server.sent().into_iter();
    let subscribed: Vec<_> = sent.filter(|sent| sent.is("SUBSCRIBE")).collect();
    assert_eq!(subscribed.len(), 1);
    assert_eq!(subscribed[0].words[1], "redisson_lock__channel:{x}");
}

#[tokio::test(start_paused = true)]
async fn it_asks_when_the_holders_lease_is_over() {
    let server = refusing(300);
    let client = Client::over(&server, LEASE);
    assert!(
        client
            .lock("x")
            .try_lock_for(MS * 400)
            .await
            .unwrap()
            .is_none()
    );
    let times: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [Duration::ZERO, Duration::ZERO, MS * 301, MS * 400]);
}

#[tokio::test(start_paused = true)]
async fn a_message_or_a_gap_leads_to_an_attempt_at_once() {
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let locals = Arc::clone(&client.core().locals);
    let poke = async {
        tokio::time::sleep(MS * 100).await;
        locals.message(b"redisson_lock__channel:{x}", b"0");
        locals.message(b"redisson_lock__channel:{another}", b"0");
        tokio::time::sleep(MS * 100).await;
        locals.gap();
    };
    let lock = client.lock("x");
    let (got, ()) = tokio::join!(lock.try_lock_for(MS * 500), poke);
    assert!(got.unwrap().is_none());
    assert_eq!(
        attempts(&server.sent()),
        [
            (Duration::ZERO, Lane::Command),
            (Duration::ZERO, Lane::Command),
            (MS * 100, Lane::Command),
            (MS * 200, Lane::Command),
            // The gap ended the subscription. The waiter subscribes again, and then asks.
            (MS * 200, Lane::Command),
            (MS * 500, Lane::Command),
        ]
    );
}

/// The local deadline of a grant counts from before the answered attempt was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_grant_is_counted_from_before_it_was_sent() {
    let server = Scripted::new(|_| Answer::Late(MS * 900, granted()));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let margin = MS * 302;
    assert_eq!(guard.remaining(), LEASE - MS * 900 - margin);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_repeated_as_it_is_and_then_undone() {
    let server = Scripted::new(|_| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").give_up_after(LEASE / 3);
    let error = lock.try_lock().await.expect_err("no answer");
    assert!(error.is_io() && error.lock_name() == Some("x"));
    let sent = server.sent();
    let (first, rest) = sent.split_first().expect("an attempt");
    // The undo is sent before the caller learns of the failure, and releases the same holder.
    let (undo, rest) = rest.split_last().expect("an undo");
    assert!(rest.len() >= 5, "for a third of the lease: {}", rest.len());
    assert!(rest.iter().all(|again| again.words == first.words));
    assert!(undo.at < LEASE / 3 + MS * 1_000);
    assert_eq!(undo.lane, Lane::Command);
    assert_eq!(undo.script_args()[1], first.script_args()[1]);
    assert!(undo.is_release());
    assert_eq!(client.stats().background, 1);
}

/// A call that no longer has a connection still reports why the server refused it.
#[tokio::test(start_paused = true)]
async fn what_the_server_said_last_is_told() {
    const READONLY: &str = "READONLY You can't write against a read only replica.";
    let server = Scripted::new(|sent| {
        if sent.at.is_zero() {
            Answer::Error(READONLY)
        } else {
            Answer::Unsent
        }
    });
    let client = Client::over(&server, LEASE);
    let error = client.lock("x").try_lock().await.expect_err("a replica");
    assert!(
        error.is_refused() && error.to_string().contains("primary"),
        "{error}"
    );
    assert!(server.sent().len() > 1, "it was asked again");
}

/// The undo queue is bounded, even if a silent server leaves more attempts to undo. The oldest are left to their
/// leases.
#[tokio::test(start_paused = true)]
async fn what_waits_to_be_undone_is_bounded() {
    const TOO_MANY: usize = 100;
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let server = Scripted::new(move |_| {
        if answers.load(Ordering::Relaxed) {
            Answer::Value(done())
        } else {
            Answer::Silence
        }
    });
    let client = Client::over(&server, LEASE);
    let attempt = |name: String| {
        let lock = client.lock(name);
        assert!(lock.try_lock().now_or_never().is_none());
    };
    attempt("first".to_owned());
    // Nothing is dropped until the server is known to be silent.
    tokio::time::sleep(LEASE / 2).await;
    let before = server.sent().len();
    for number in 0..QUEUE_MAX + TOO_MANY {
        attempt(format!("x{number}"));
    }
    let attempts = server.sent().split_off(before);
    assert_eq!(attempts.len(), QUEUE_MAX + TOO_MANY);
    is_up.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sent = server.sent().split_off(before + attempts.len());
    let mut undone: BTreeSet<_> = sent.iter().map(holder).collect();
    // This undo may have been under way.
    let was_first_under_way = undone.remove(holder(&server.sent()[0]));
    let kept: BTreeSet<_> = attempts[TOO_MANY..].iter().map(holder).collect();
    assert!(undone == kept, "only the oldest are dropped");
    let dropped = TOO_MANY + usize::from(!was_first_under_way);
    assert_eq!(client.stats().totals.background_failures, dropped as u64);
    assert_eq!(client.stats().background, 0);
}

/// A client that has ended abandons its last entries after a while, and counts them.
#[tokio::test(start_paused = true)]
async fn what_an_ended_client_abandons_is_counted() {
    let server = Scripted::new(|_| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let observed = Arc::clone(&client.core().scripts.observed);
    assert!(client.lock("x").try_lock().now_or_never().is_none());
    assert!(client.shutdown().await.unwrap_err().is_io());
    tokio::time::sleep(LEASE * 4).await;
    assert_eq!(observed.counts.totals().background_failures, 1);
}

/// A burst does not count as silence: while the server answers, all attempts are undone.
#[tokio::test(start_paused = true)]
async fn a_burst_of_what_is_to_be_undone_is_undone() {
    let server = Scripted::new(|_| Answer::Late(MS * 50, done()));
    let client = Client::over(&server, LEASE);
    for number in 0..QUEUE_MAX * 2 {
        let lock = client.lock(format!("x{number}"));
        assert!(lock.try_lock().now_or_never().is_none());
    }
    let attempts = server.sent();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let sent = server.sent();
    let undone: BTreeSet<_> = sent[attempts.len()..].iter().map(holder).collect();
    let asked: BTreeSet<_> = attempts.iter().map(holder).collect();
    assert!(undone == asked, "all are undone");
    client.shutdown().await.unwrap();
}

/// One entry is refused for now, or gets no answer: a slot moves, perhaps to a node that is silent, or the user lacks a
/// right inside the script. The others do not wait for it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_undone_now_holds_up_nothing_else() {
    for refusal in [
        Some("TRYAGAIN Multiple keys request during rehashing of slot"),
        Some("ERR ACL failure in script: User u has no permissions to run the 'publish' command"),
        None,
    ] {
        let server = Scripted::new(move |sent| match sent.is_release() {
            true if sent.script_args()[0] == "a" => refusal.map_or(Answer::Silence, Answer::Error),
            true => Answer::Value(done()),
            false => Answer::Late(MS, granted()),
        });
        let client = Client::over(&server, LEASE);
        for (name, pause) in [("a", MS * 10), ("b", LEASE), ("c", LEASE)] {
            let lock = client.lock(name);
            assert!(lock.try_lock().now_or_never().is_none());
            tokio::time::sleep(pause).await;
        }
        let sent = server.sent();
        let undone = |name: &str| {
            let releases = sent.iter().filter(|sent| sent.is_release());
            let of_name = releases.filter(|sent| sent.script_args()[0] == name);
            of_name.count()
        };
        assert_eq!((undone("b"), undone("c")), (1, 1), "{refusal:?}");
        assert!(undone("a") > 1, "{refusal:?}: it is tried again");
    }
}

/// If an earlier attempt may still arrive, a grant under its holder id is not used.
#[tokio::test(start_paused = true)]
async fn a_holder_id_that_may_still_arrive_is_not_used() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::with_past(false, move |sent| {
        if sent.is_release() || sent.words[1] != REENTRANT_ACQUIRE.sha() {
            return Answer::Value(done());
        }
        match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Silence,
            _ => Answer::Value(granted()),
        }
    });
    let client = Client::over(&server, LEASE);
    let _guard = client.lock("x").try_lock().await.unwrap().expect("granted");
    tokio::time::sleep(LEASE * 2).await;
    let sent = server.sent();
    let holder = |sent: &Sent| sent.script_args()[1].clone();
    let undone: Vec<_> = sent
        .iter()
        .filter(|sent| sent.lane == Lane::Command && sent.is_release())
        .collect();
    assert_eq!(undone.len(), 9, "at once, and eight times within the lease");
    assert!(undone.iter().all(|undo| holder(undo) == holder(&sent[0])));
    let last_asked = sent
        .iter()
        .rfind(|sent| sent.lane == Lane::Command && !sent.is_release());
    assert_ne!(holder(last_asked.expect("granted")), holder(&sent[0]));
}

fn holder(sent: &Sent) -> &str {
    &sent.script_args()[1]
}

/// The call is dropped before its subscription is confirmed.
#[tokio::test(start_paused = true)]
async fn a_subscription_in_the_making_ends_with_the_last_call_that_waits_for_it() {
    let server = Scripted::new(|sent| match sent.is("SUBSCRIBE") {
        true => Answer::Late(MS * 500, redis::Value::Nil),
        false if sent.is("EVALSHA") => Answer::Value(elsewhere(25_000)),
        false => Answer::Value(redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let call = tokio::time::timeout(MS * 10, lock.lock());
    assert!(call.await.is_err());
    tokio::time::sleep(MS * 1_000).await;
    let sent = server.sent();
    let of_messages = sent.iter().filter(|sent| !sent.is("EVALSHA"));
    let words: Vec<_> = of_messages.map(|sent| &*sent.words[0]).collect();
    assert_eq!(words, ["SUBSCRIBE", "UNSUBSCRIBE"]);
    assert_eq!(client.core().locals.channels(), 0);
}

/// A forced unlock takes nothing that was granted after it was executed.
#[tokio::test(start_paused = true)]
async fn a_forced_unlock_takes_only_what_was_held_before() {
    let server = Scripted::new(|sent| match sent.words[3..].len() {
        // The forced unlock is the one with a key and two arguments.
        3 => Answer::Late(MS * 50, redis::Value::Int(1)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let old = lock.lock().await.unwrap();
    let newcomer = async {
        tokio::time::sleep(MS * 20).await;
        lock.try_lock().await.unwrap().expect("granted")
    };
    let (forced, new) = tokio::join!(lock.force_unlock(), newcomer);
    assert!(forced.unwrap());
    assert!(old.is_lost() && !new.is_lost());
}

/// The answer to the earlier request arrives after the answer to the later one.
#[tokio::test(start_paused = true)]
async fn of_two_grants_the_later_one_counts() {
    let first = AtomicUsize::new(0);
    let server = Scripted::new(move |_| match first.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Late(MS * 50, granted()),
        1 => Answer::Value(granted()),
        // The earlier grant is released, and its call asks again.
        _ => Answer::Value(elsewhere(30_000)),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let later = async {
        tokio::time::sleep(MS * 10).await;
        lock.try_lock().await.unwrap().expect("granted")
    };
    let (early, later) = tokio::join!(lock.try_lock(), later);
    assert!(early.unwrap().is_none() && !later.is_lost());
    assert_eq!(client.stats().holds, 1, "the earlier one is in no list");
}

#[tokio::test(start_paused = true)]
async fn a_grant_to_a_closed_client_is_given_back() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(done()),
        false => Answer::Late(MS * 50, granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let close = async {
        tokio::time::sleep(MS * 10).await;
        client.clone().shutdown().await.unwrap();
    };
    let (got, ()) = tokio::join!(lock.try_lock(), close);
    assert!(got.expect_err("closed").is_closed());
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[1].is_release());
    assert_eq!(holder(&sent[1]), holder(&sent[0]));
}

/// If subscribing fails, the timer and the deadline still lead to an attempt.
#[tokio::test(start_paused = true)]
async fn a_silent_push_lane_keeps_nobody_from_asking() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Push => Answer::Silence,
        _ if sent.at > MS * 3_000 => Answer::Value(granted()),
        _ => Answer::Value(elsewhere(500_000)),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").lease(LEASE * 20);
    let none = lock.try_lock_for(MS * 1_500).await.unwrap();
    assert!(none.is_none());
    let asked = server.times(Lane::Command);
    assert!(
        asked.last() >= Some(&(MS * 1_500)),
        "a last attempt at the deadline: {asked:?}"
    );
    let _guard = lock.lock().await.unwrap();
    let granted = *server.times(Lane::Command).last().unwrap();
    assert!(granted < MS * 6_000, "{granted:?}");
}

/// A release that waits for a stuck operation still ends at its own deadline.
#[tokio::test(start_paused = true)]
async fn a_release_behind_a_stuck_operation_ends_in_time() {
    let server = Scripted::new(|sent| {
        if sent.at < MS * 1_000 {
            Answer::Value(granted())
        } else {
            Answer::Silence
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new());
    let fixed = lock.clone().fixed_lease(LEASE * 100);
    let guard = fixed.lock().await.unwrap();
    tokio::time::sleep(LEASE).await;
    let longer = lock.fixed_lease(LEASE * 200);
    assert!(longer.lock().await.expect_err("silence").is_io());
    let clock = server.clock();
    let asked = clock.now();
    assert!(guard.release().await.expect_err("silence").is_io());
    assert!(asked.until(clock.now()) < LEASE);
    assert_eq!(client.stats().background, 1, "it goes on");
}

/// The answer to the first release is lost, and the answer to the second arrives when the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_none_of_a_lost_lock() {
    /// Releases a hold that the server does not have, because the first release was executed or because the hold was
    /// lost.
    async fn released(
        first: impl Fn() -> Answer + Send + Sync + 'static,
        at: u32,
    ) -> crate::Result<()> {
        let releases = AtomicUsize::new(0);
        let server = Scripted::new(move |sent| {
            if !sent.is_release() {
                return Answer::Value(granted());
            }
            match releases.fetch_add(1, Ordering::Relaxed) {
                0 => first(),
                _ => Answer::Late(MS * 12, redis::Value::Int(-1)),
            }
        });
        // A call waits 100 ms for a reply. For this client the lease ends after 988 ms.
        let client = Client::over(&server, MS * 300);
        let lock = client.lock("x").fixed_lease(MS * 1_000);
        let guard = lock.lock().await.unwrap();
        tokio::time::sleep(MS * at).await;
        guard.release().await
    }
    released(|| Answer::Silence, 879).await.unwrap();
    // The first release was answered, so it does not explain the missing hold.
    let late = Duration::from_millis(100);
    let revoked = released(move || Answer::Late(late, redis::Value::Int(-1)), 879).await;
    let revoked = revoked.unwrap_err();
    assert!(
        revoked.is_not_held() && revoked.to_string().contains("no longer has"),
        "{revoked}"
    );
}

/// A shutdown waits for the answer to an attempt whose call is not polled, and for its undoing.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_not_polled_is_undone_by_a_shutdown() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(done()),
        false => Answer::Late(MS * 500, granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let mut call = Box::pin(lock.lock());
    let first = tokio::time::timeout(MS * 10, &mut call).await;
    assert!(first.is_err(), "it was answered");
    client.clone().shutdown().await.unwrap();
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[1].is_release());
    assert_eq!(holder(&sent[0]), holder(&sent[1]));
    drop(call);
    tokio::time::sleep(MS * 10).await;
    assert_eq!(server.sent().len(), 2, "nothing is left to undo");
    client.shutdown().await.unwrap();
}

/// The same for a call that does not wait for its lock, so that only its attempt shows that it exists.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_answer_to_a_single_attempt() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(done()),
        false => Answer::Late(MS * 500, granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let mut call = Box::pin(lock.try_lock());
    assert!((&mut call).now_or_never().is_none());
    client.clone().shutdown().await.unwrap();
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[1].is_release());
    assert_eq!(holder(&sent[0]), holder(&sent[1]));
    assert!(call.await.unwrap_err().is_closed());
}

/// A call may go on after its client was shut down.
#[tokio::test(start_paused = true)]
async fn a_call_that_goes_on_after_a_shutdown_sends_nothing() {
    let server = Scripted::new(|_| Answer::Value(granted()));
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    // It waits for a release of this client that is not sent.
    let locals = &client.core().locals;
    let local = locals.get_or_insert("reentrant", &"x".into(), &"x".into());
    local.begin_release();
    let mut call = Box::pin(lock.try_lock());
    assert!((&mut call).now_or_never().is_none());
    client.clone().shutdown().await.unwrap();
    assert!(call.await.unwrap_err().is_closed());
    tokio::time::sleep(MS * 10).await;
    assert!(server.sent().is_empty(), "{:?}", server.sent());
}

/// A hold that is lost between its grant and its guard is reported once, when it gets its guard. A loss without a guard
/// is not reported.
#[tokio::test(start_paused = true)]
async fn a_loss_before_the_guard_is_reported_with_the_guard() {
    let server = Scripted::new(|_| Answer::Value(granted()));
    let client = Client::over(&server, LEASE);
    let handle = Handle::new(&client, "x", &PROTOCOL, Mode::Exclusive);
    let lost_share = async || {
        let request = handle.request("lock").unwrap();
        let bound = bound(from_ref(&request), Tick::ZERO, server.clock().now());
        let taken = one(&request, &bound).await;
        let share = taken.unwrap().expect("a free lock");
        share.hold().lose(LostReason::Revoked);
        share
    };
    let losses = || client.stats().totals.losses.total();
    let guarded = lost_share().await;
    assert_eq!(losses(), 0);
    let guarded = guarded.guarded(Tick::ZERO, Duration::ZERO);
    assert_eq!((guarded.is_lost(), losses()), (true, 1));
    drop(guarded);
    drop(lost_share().await);
    assert_eq!(losses(), 1);
}

/// Makes a guard of the share when it is woken.
struct MakesGuard(Mutex<Option<Share>>, Mutex<Option<Share>>);

impl Wake for MakesGuard {
    fn wake(self: Arc<Self>) {
        let share = self.0.lock().take();
        let guarded = share.map(|share| share.guarded(Tick::ZERO, Duration::ZERO));
        *self.1.lock() = guarded;
    }
}

/// The guard is made after the loss, and before the loss is noted.
#[tokio::test(start_paused = true)]
async fn a_loss_beside_the_making_of_a_guard_is_reported_once() {
    let server = Scripted::new(|_| Answer::Value(granted()));
    let client = Client::over(&server, LEASE);
    let handle = Handle::new(&client, "x", &PROTOCOL, Mode::Exclusive);
    let request = handle.request("lock").unwrap();
    let bound = bound(from_ref(&request), Tick::ZERO, server.clock().now());
    let taken = one(&request, &bound).await;
    let share = taken.unwrap().expect("a free lock");
    let (hold, lease) = (Arc::clone(share.hold()), share.lease());
    let made = Arc::new(MakesGuard(Mutex::new(Some(share)), Mutex::default()));
    let waker = Waker::from(Arc::clone(&made));
    let mut lost = Box::pin(hold.lost(lease));
    assert!(
        lost.poll_unpin(&mut Context::from_waker(&waker))
            .is_pending()
    );
    hold.lose(LostReason::Revoked);
    assert!(made.1.lock().take().expect("it was woken").is_lost());
    assert_eq!(client.stats().totals.losses.total(), 1);
}

/// A connection that is refused during its set-up carried no command, so there is nothing to undo.
#[tokio::test(start_paused = true)]
async fn a_declined_connection_executed_nothing() {
    let server = Scripted::new(|_| Answer::Declined("ERR unknown command 'HELLO'"));
    let client = Client::over(&server, LEASE);
    assert!(client.lock("x").try_lock().await.is_err());
    tokio::time::sleep(MS * 10).await;
    assert_eq!(server.sent().len(), 1);
}

/// A waiter that queues at the server has a place, a channel of its own and a heartbeat, and leaves the queue at the
/// end.
#[tokio::test(start_paused = true)]
async fn a_fair_waiter_keeps_its_place_by_asking_and_gives_it_up() {
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let wait = Duration::from_millis(2_500);
    let lock = client.fair_lock("x");
    assert!(lock.try_lock_for(wait).await.unwrap().is_none());
    tokio::time::sleep(MS * 10).await;
    let sent = server.sent();
    let asked: Vec<_> = sent
        .iter()
        .filter(|sent| sent.is("EVALSHA"))
        .map(|sent| (sent.at.as_millis(), sent.lane, sent.is_release()))
        .collect();
    assert_eq!(
        asked,
        [
            (0, Lane::Command, false),
            (0, Lane::Command, false),
            (1_000, Lane::Command, false),
            (2_000, Lane::Command, false),
            (2_500, Lane::Command, false),
            // The request that leaves the queue.
            (2_500, Lane::Command, true),
        ]
    );
    let first = sent[0].script_args();
    assert!(
        sent.iter()
            .all(|sent| !sent.is("EVALSHA") || sent.script_args()[4] == first[4])
    );
    assert_eq!(first[7], "3000", "the place is kept for three polls");
    let channel = format!("redisson_lock__channel:{{x}}:{}", first[4]);
    let words: Vec<_> = sent.iter().filter(|sent| !sent.is("EVALSHA")).collect();
    assert_eq!(words[0].words, ["SUBSCRIBE", &channel]);
    assert_eq!(words[1].words, ["UNSUBSCRIBE", &channel]);
    assert_eq!(words.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fair_attempt_that_is_not_waited_for_takes_no_place() {
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    assert!(client.fair_lock("x").try_lock().await.unwrap().is_none());
    tokio::time::sleep(MS * 10).await;
    let sent = server.sent();
    assert_eq!(sent.len(), 1, "so there is no place to leave");
    assert_eq!(sent[0].script_args()[7], "0");
}

/// A silent connection for messages costs the waiter neither its place nor the lock.
#[tokio::test(start_paused = true)]
async fn a_fair_waiter_keeps_its_place_without_messages() {
    let server = Scripted::new(|sent| match (sent.lane, sent.is("EVALSHA")) {
        (Lane::Push, _) => Answer::Silence,
        (_, true) if sent.is_release() => Answer::Value(done()),
        _ if sent.at > MS * 4_000 => Answer::Value(granted()),
        _ => Answer::Value(elsewhere(500_000)),
    });
    let client = Client::over(&server, LEASE);
    let _guard = client.fair_lock("x").lock().await.unwrap();
    let sent = server.sent();
    let first = &sent[0].script_args()[4];
    let last = sent.iter().rfind(|sent| sent.lane == Lane::Command);
    let last = last.expect("granted");
    assert_eq!(&last.script_args()[4], first);
    assert!(last.at < MS * 5_100, "{:?}", last.at);
}

/// A call that was refused one of several locks listens for that lock, and sends the member where it may be queued.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_waits_for_the_member_that_refused() {
    let refused = |member, remaining| {
        let items = [member, remaining].map(redis::Value::Int);
        redis::Value::Array(items.to_vec())
    };
    let server = Scripted::new(move |sent| {
        if !sent.is("EVALSHA") {
            Answer::Value(redis::Value::Nil)
        } else if sent.at < MS * 1_500 {
            Answer::Value(refused(2, 25_000))
        } else if sent.at < MS * 2_500 {
            Answer::Value(refused(1, 25_000))
        } else {
            Answer::Value(refused(3, 25_000))
        }
    });
    let client = Client::over(&server, LEASE);
    let locks = crate::MultiLock::new([
        crate::Member::from(client.lock("a")),
        crate::Member::from(client.fair_lock("b")),
        crate::Member::from(client.rw_lock("c").write_side()),
    ]);
    let locks = locks.unwrap();
    let wait = Duration::from_millis(3_200);
    assert!(locks.try_lock_for(wait).await.unwrap().is_none());
    tokio::time::sleep(MS * 200).await;
    let sent = server.sent();
    let channels: Vec<_> = sent
        .iter()
        .filter(|sent| sent.is("SUBSCRIBE"))
        .map(|sent| sent.words[1].split_once("{").unwrap().1)
        .map(|name| &name[..1])
        .collect();
    assert_eq!(channels, ["b", "a", "c"]);
    // The keys are 1 of the first lock, 5 of the second and 3 of the third. PUBLISH and the place follow.
    let places: Vec<_> = sent
        .iter()
        .filter(|sent| sent.is("EVALSHA") && sent.words[2] == "9")
        .map(|sent| (sent.at.as_millis(), &*sent.script_args()[10]))
        .collect();
    // The second attempt follows the beginning of the subscription.
    let first = [(0, "0"), (0, "2"), (0, "2"), (1_000, "2"), (2_000, "2")];
    assert_eq!(places[..5], first);
    assert!(
        places.contains(&(3_000, "0")),
        "a plain lock keeps no place: {places:?}"
    );
    let last = sent.iter().rfind(|sent| sent.is("EVALSHA")).unwrap();
    assert_eq!(last.words[2], "7", "undoes the attempt: {last:?}");
}

/// A waiter that moves to another member and back at once is still notified when its turn comes.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_comes_back_to_a_queue_listens_there() {
    let refusals = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| {
        if sent.is("EVALSHA") {
            let by = match refusals.fetch_add(1, Ordering::Relaxed) {
                2 => 2,
                _ => 1,
            };
            let items = [by, 25_000].map(redis::Value::Int);
            Answer::Value(redis::Value::Array(items.to_vec()))
        } else {
            Answer::Value(redis::Value::Nil)
        }
    });
    let client = Client::over(&server, LEASE);
    let locals = Arc::clone(&client.core().locals);
    let locks = crate::MultiLock::new([
        crate::Member::from(client.fair_lock("a")),
        crate::Member::from(client.lock("b")),
    ]);
    let locks = locks.unwrap();
    let poke = async {
        tokio::time::sleep(MS * 1_500).await;
        let sent = server.sent();
        let of_a: Vec<_> = sent
            .iter()
            .filter(|sent| sent.words[1].starts_with("redisson_lock__channel:{a}"))
            .collect();
        assert!(of_a.last().unwrap().is("SUBSCRIBE"), "{of_a:?}");
        locals.message(of_a[0].words[1].as_bytes(), b"0");
    };
    let (got, ()) = tokio::join!(locks.try_lock_for(MS * 1_800), poke);
    assert!(got.unwrap().is_none());
    let times: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    assert_eq!(times[..2], [Duration::ZERO; 2]);
    // The call moves to the other lock and back at one time.
    assert!(times[2..].contains(&(MS * 1_000)), "{times:?}");
    assert!(times.contains(&(MS * 1_500)), "the message: {times:?}");
}

/// The attempt was sent before the deadline and answered after it. The place that it took is released too.
#[tokio::test(start_paused = true)]
async fn a_place_that_was_taken_late_is_given_up() {
    let server = Scripted::new(|sent| match sent.is_release() {
        true => Answer::Value(done()),
        false if sent.at < MS * 50 => {
            Answer::Error("LOADING Redis is loading the dataset in memory")
        }
        false => Answer::Value(elsewhere(25_000)),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    assert!(lock.try_lock_for(MS * 10).await.unwrap().is_none());
    tokio::time::sleep(MS * 10).await;
    let sent = server.sent();
    let (last, asked) = sent.split_last().expect("attempts");
    let taken = asked.last().expect("an attempt").script_args();
    assert_eq!(taken[7], "3000", "with a place");
    assert!(last.is_release());
    assert_eq!(last.script_args()[4], taken[4], "of the same holder");
}
