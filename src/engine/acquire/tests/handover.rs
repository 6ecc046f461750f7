//! Tests locks that are handed over by a message, with a scripted server.
//!
//! The server's clock differs from the client's clock, and starts at [`EPOCH`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{LEASE, MS, attempts};
use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::fair::{FairGuard, FairLock};
use crate::testing::{Answer, Scripted, Sent, done, each, granted, queued};

const EPOCH: u64 = 1_763_000_000_000;
const PLACE: Duration = Duration::from_millis(3_000);

/// When a place that was asked for at `at` expires.
fn kept_from(at: Duration) -> u64 {
    EPOCH + u64::try_from((at + PLACE).as_millis()).unwrap()
}

/// The answer that gives a waiter a place, during another holder's lease.
fn a_place(sent: &Sent) -> redis::Value {
    queued(25_000, kept_from(sent.at))
}

/// Answers everything except the attempts of waiters.
fn otherwise(sent: &Sent) -> Answer {
    Answer::Value(match sent.lane {
        Lane::Renewal => each(1, 1),
        _ if sent.is("EVALSHA") => done(),
        _ => redis::Value::Nil,
    })
}

fn is_attempt(sent: &Sent) -> bool {
    sent.is("EVALSHA") && sent.lane != Lane::Renewal && !sent.is_release()
}

/// Refuses all attempts, and gives each a place.
fn refused(sent: &Sent) -> Answer {
    if is_attempt(sent) {
        Answer::Value(a_place(sent))
    } else {
        otherwise(sent)
    }
}

fn full() -> Arc<Scripted> {
    Scripted::new(refused)
}

/// Publishes a message on the first channel that was subscribed to.
fn publish(server: &Scripted, client: &Client, message: &str) {
    let sent = server.sent();
    let subscribe = sent.iter().find(|sent| sent.is("SUBSCRIBE"));
    let channel = &subscribe.expect("a subscription").words[1];
    let locals = &client.core().locals;
    locals.message(channel.as_bytes(), message.as_bytes());
}

/// A message that hands the lock over, with `remaining` left of a place that was asked for at `asked`.
fn grant_message(asked: Duration, remaining: Duration) -> String {
    grant_message_with("- x", asked, remaining)
}

/// Like [`grant_message`], for another lock or with a token.
fn grant_message_with(what: &str, asked: Duration, remaining: Duration) -> String {
    format!("{} {} {what}", kept_from(asked), remaining.as_millis())
}

/// The guard of a waiter that gets this message after `at`.
async fn guard_after(
    client: &Client,
    server: &Arc<Scripted>,
    lock: &FairLock,
    at: Duration,
    message: &str,
) -> FairGuard {
    let publishing = async {
        tokio::time::sleep(at).await;
        publish(server, client, message);
    };
    let (guard, ()) = tokio::join!(lock.lock(), publishing);
    guard.unwrap()
}

/// The attempts at or after a time.
fn later_attempts(server: &Scripted, than: Duration) -> usize {
    let sent = server.sent();
    let attempts = sent.iter().filter(|sent| is_attempt(sent));
    attempts.filter(|sent| sent.at >= than).count()
}

/// The lease counts from the poll before the message, even if the message is late.
#[tokio::test(start_paused = true)]
async fn the_lease_counts_from_the_last_poll_and_not_from_the_message() {
    for at in [1_001, 1_400, 1_999] {
        let at = MS * at;
        let server = full();
        let client = Client::over(&server, LEASE);
        let lock = client.fair_lock("x");
        // Handed over 300 ms after the poll at one second.
        let message = grant_message(MS * 1_000, MS * 2_700);
        let guard = guard_after(&client, &server, &lock, at, &message).await;
        let margin = MS * 29;
        assert_eq!(guard.remaining(), MS * 3_700 - margin - at);
        assert_eq!(later_attempts(&server, at), 0, "no round trip");
        assert_eq!(server.times(Lane::Renewal), [MS; 0]);
        guard.release().await.unwrap();
        tokio::time::sleep(LEASE).await;
        assert_eq!(
            server.times(Lane::Renewal),
            [MS; 0],
            "a lease this short needs none"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_handed_over_soon_has_its_whole_lease() {
    let server = full();
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let message = grant_message(Duration::ZERO, MS * 2_900);
    let guard = guard_after(&client, &server, &lock, MS * 500, &message).await;
    tokio::time::sleep(MS * 101).await;
    assert_eq!(server.times(Lane::Renewal), [MS * 600]);
    assert_eq!(guard.remaining(), LEASE - MS * 302 - MS);
    tokio::time::sleep(LEASE).await;
    assert!(!guard.is_lost());
    // After that, renewals are as usual.
    let renewed = server.times(Lane::Renewal);
    assert!((3..=5).contains(&renewed.len()), "{renewed:?}");
}

/// If no renewal is answered, the hold is lost when the lease of the handover ends.
#[tokio::test(start_paused = true)]
async fn without_a_renewal_it_is_lost_when_the_place_would_have_been() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Renewal => Answer::Silence,
        _ if is_attempt(sent) => Answer::Value(a_place(sent)),
        _ => otherwise(sent),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let message = grant_message(Duration::ZERO, MS * 2_900);
    let guard = guard_after(&client, &server, &lock, MS * 500, &message).await;
    tokio::time::sleep(MS * 2_368).await;
    assert!(!guard.is_lost(), "{:?}", guard.remaining());
    tokio::time::sleep(MS).await;
    assert!(guard.is_lost());
    // The client sent more than one renewal before that.
    let renewed = server.times(Lane::Renewal);
    assert!(renewed.len() > 1, "{renewed:?}");
}

/// The renewal connection may have been dead for a long time when the lock arrives. Even a short handover lease leaves
/// time for a new connection.
#[tokio::test(start_paused = true)]
async fn a_first_renewal_that_is_not_answered_is_sent_again_in_time() {
    let renewals = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.lane {
        Lane::Renewal if renewals.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Silence,
        _ if is_attempt(sent) => Answer::Value(a_place(sent)),
        _ => otherwise(sent),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    // As short as the lease gets when the message arrives right before a poll.
    let message = grant_message(MS * 1_000, MS * 2_001);
    let guard = guard_after(&client, &server, &lock, MS * 1_999, &message).await;
    assert!(guard.remaining() < MS * 1_000);
    tokio::time::sleep(MS * 1_000).await;
    assert!(!guard.is_lost());
    assert!(guard.remaining() > LEASE / 2);
}

/// A message that grants nothing now, or may be stale, leads to another attempt.
#[tokio::test(start_paused = true)]
async fn a_grant_message_that_is_stale_late_or_none_leads_to_an_attempt() {
    let at = MS * 1_400;
    for message in [
        "0".to_owned(),
        // Belongs to the first poll. The next poll was answered with another place.
        grant_message(Duration::ZERO, MS * 2_900),
        // Belongs to a later poll, which the waiter never sent.
        grant_message(MS * 1_001, MS * 2_700),
        // Its lease, counted from the poll, is over or almost over.
        grant_message(MS * 1_000, MS * 300),
        grant_message(MS * 1_000, MS * 450),
        grant_message(MS * 1_000, MS * 890),
        grant_message_with("no-token x", MS * 1_000, MS * 2_900),
        // Belongs to another lock with the same channels.
        grant_message_with("- {x}", MS * 1_000, MS * 2_900),
    ] {
        let server = Scripted::new(move |sent| {
            if !is_attempt(sent) {
                otherwise(sent)
            } else if sent.at >= at {
                Answer::Value(granted())
            } else {
                Answer::Value(a_place(sent))
            }
        });
        let lock = Client::over(&server, LEASE);
        let guard = guard_after(&lock, &server, &lock.fair_lock("x"), at, &message).await;
        let last = server.sent().pop().unwrap();
        assert_eq!((last.at, last.lane), (at, Lane::Command), "{message}");
        assert_eq!(guard.remaining(), LEASE - MS * 302, "{message}");
    }
}

/// The message and the answer both report the grant. The result is one hold, with the lease of the answer.
#[tokio::test(start_paused = true)]
async fn a_grant_message_that_comes_while_it_asks_waits_for_the_answer() {
    let at = MS * 1_000;
    for is_granted in [true, false] {
        let server = Scripted::new(move |sent| {
            if !is_attempt(sent) {
                otherwise(sent)
            } else if sent.at >= at && is_granted {
                Answer::Late(MS * 200, granted())
            } else if sent.at >= at {
                Answer::Late(MS * 200, a_place(sent))
            } else {
                Answer::Value(a_place(sent))
            }
        });
        let client = Client::over(&server, LEASE);
        let lock = client.fair_lock("x");
        // Belongs to the poll that is under way.
        let message = grant_message(at, MS * 3_000);
        let guard = guard_after(&client, &server, &lock, at + MS * 100, &message).await;
        assert_eq!(server.clock().now().nanos(), 1_200_000_000);
        let expected = if is_granted {
            LEASE - MS * 302
        } else {
            MS * 3_000 - MS * 32
        };
        assert_eq!(guard.remaining(), expected - MS * 200);
        assert_eq!(later_attempts(&server, MS * 1_001), 0);
        assert_eq!(client.stats().holds, 1);
        guard.release().await.unwrap();
        let sent = server.sent();
        let releases = sent.iter().filter(|sent| sent.is("EVALSHA")).count();
        assert_eq!(releases - later_attempts(&server, Duration::ZERO), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_comes_with_the_grant_message() {
    let server = Scripted::new(|sent| {
        if !is_attempt(sent) {
            otherwise(sent)
        } else if sent.at >= MS * 600 {
            Answer::Value(redis::Value::BulkString(b"78".to_vec()))
        } else {
            Answer::Value(a_place(sent))
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x").fenced();
    let message = grant_message_with("77 x", Duration::ZERO, MS * 2_900);
    let guard = guard_after(&client, &server, &lock, MS * 500, &message).await;
    assert_eq!(
        guard.fencing_token().map(crate::FencingToken::get),
        Some(77)
    );
    guard.release().await.unwrap();
    let release = server.sent().pop().unwrap();
    assert_eq!(release.script_args()[4], "redisson_lock_token:{x}");

    // A message without a token is not enough.
    let server = Scripted::new(|sent| {
        if !is_attempt(sent) {
            otherwise(sent)
        } else if sent.at >= MS * 600 {
            Answer::Value(redis::Value::BulkString(b"78".to_vec()))
        } else {
            Answer::Value(a_place(sent))
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x").fenced();
    let message = grant_message(Duration::ZERO, MS * 2_900);
    let guard = guard_after(&client, &server, &lock, MS * 600, &message).await;
    assert_eq!(
        guard.fencing_token().map(crate::FencingToken::get),
        Some(78)
    );
}

/// The place records what its waiter needs besides the lock.
#[tokio::test(start_paused = true)]
async fn a_place_says_what_its_holder_wants() {
    let place = async |lock: fn(FairLock) -> FairLock| {
        let server = full();
        let client = Client::over(&server, LEASE);
        let lock = lock(client.fair_lock("x"));
        assert!(lock.try_lock_for(MS * 10).await.unwrap().is_none());
        let first = server.sent().remove(0);
        let args = first.script_args();
        let place = first.script_keys() + 3;
        assert_eq!(args[place], "3000");
        args[place + 1].clone()
    };
    assert_eq!(place(|lock| lock).await, "grant");
    assert_eq!(place(FairLock::fenced).await, "grant_fenced");
    assert_eq!(place(|lock| lock.fixed_lease(LEASE)).await, "wake");
    assert_eq!(place(|lock| lock.fixed_lease(LEASE).fenced()).await, "wake");
    let replicated = place(|lock| lock.replicated(1, MS * 100)).await;
    assert_eq!(replicated, "wake");
}

/// A waiter that needs a full lease asks for it, even if a server sends a handover.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_never_handed_over() {
    let server = Scripted::new(|sent| {
        if !is_attempt(sent) {
            otherwise(sent)
        } else if sent.at >= MS * 500 {
            Answer::Value(granted())
        } else {
            Answer::Value(a_place(sent))
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x").fixed_lease(LEASE);
    let message = grant_message(Duration::ZERO, MS * 2_900);
    let guard = guard_after(&client, &server, &lock, MS * 500, &message).await;
    assert_eq!(guard.remaining(), LEASE - MS * 302);
}

/// If the call is dropped or the client closed when the message comes, the lock is released.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_to_nobody_is_given_back() {
    for is_closed in [true, false] {
        let server = full();
        let client = Client::over(&server, LEASE);
        let lock = client.fair_lock("x");
        let mut wait = Box::pin(lock.lock());
        assert!(
            tokio::time::timeout(MS * 500, &mut wait).await.is_err(),
            "it waits"
        );
        publish(&server, &client, &grant_message(Duration::ZERO, MS * 2_900));
        if is_closed {
            let (closed, ended) = tokio::join!(client.clone().shutdown(), wait);
            assert!(ended.unwrap_err().is_closed());
            closed.unwrap();
        } else {
            drop(wait);
        }
        tokio::time::sleep(MS * 10).await;
        let sent = server.sent();
        let holder = &sent[0].script_args()[4];
        let release = sent.iter().rfind(|sent| sent.is("EVALSHA")).unwrap();
        assert!(release.is_release());
        assert_eq!(release.script_args()[4], *holder);
    }
}

/// The earlier hold was taken away, for example by force. It is lost, and the client asks the server at once whether it
/// has the new hold.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_in_the_way_of_one_handed_over_is_lost() {
    let server = Scripted::new(|sent| {
        if !is_attempt(sent) {
            otherwise(sent)
        } else if sent.at.is_zero() {
            Answer::Value(granted())
        } else {
            Answer::Value(a_place(sent))
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let first = lock.lock().await.unwrap();
    tokio::time::sleep(MS).await;
    let message = grant_message(MS, MS * 2_900);
    let second = guard_after(&client, &server, &lock, MS * 500, &message).await;
    assert!(first.is_lost() && !second.is_lost());
    tokio::time::sleep(MS).await;
    assert_eq!(server.times(Lane::Renewal), [MS * 501]);
}

/// An attempt that starts over under a new id does not accept a message for its old id.
#[tokio::test(start_paused = true)]
async fn a_grant_message_for_another_holder_is_not_used() {
    let server = Scripted::with_past(false, |sent| match is_attempt(sent) {
        true if (MS * 900..MS * 3_500).contains(&sent.at) => Answer::Silence,
        true => Answer::Value(a_place(sent)),
        false => otherwise(sent),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x");
    let wait = lock.try_lock_for(MS * 12_000);
    let publishing = async {
        tokio::time::sleep(MS * 8_500).await;
        // Goes to the channel of the first id, which has no listener any longer.
        publish(&server, &client, &grant_message(MS * 8_500, MS * 3_000));
    };
    let (got, ()) = tokio::join!(wait, publishing);
    assert!(got.unwrap().is_none());
    let sent = server.sent();
    let holders = sent.iter().filter(|sent| is_attempt(sent));
    let mut holders: Vec<_> = holders.map(|sent| sent.script_args()[4].clone()).collect();
    holders.dedup();
    assert!(holders.len() > 1, "{holders:?}");
    assert!(attempts(&sent).len() > 4);
}

/// The nodes of a cluster pass published messages on, but the node that granted the lock counts only its own
/// connections. So it takes back a grant that seems to have reached no receiver.
#[tokio::test(start_paused = true)]
async fn nothing_is_handed_over_by_a_message_that_other_nodes_pass_on() {
    let server = Scripted::in_a_cluster(refused);
    let client = Client::over(&server, LEASE);
    let publishing = async {
        tokio::time::sleep(MS * 500).await;
        let message = grant_message(Duration::ZERO, MS * 2_900);
        publish(&server, &client, &message);
    };
    let lock = client.fair_lock("x");
    let (got, ()) = tokio::join!(lock.try_lock_for(MS * 900), publishing);
    assert!(got.unwrap().is_none());
    let sent = server.sent();
    let mut wanted = sent.iter().filter(|sent| is_attempt(sent));
    let wants_it = |sent: &Sent| sent.words.iter().any(|word| word.starts_with("grant"));
    assert!(!wanted.any(wants_it), "it asks for no handover: {sent:#?}");
    assert!(later_attempts(&server, MS * 500) > 0, "it asks");
}
