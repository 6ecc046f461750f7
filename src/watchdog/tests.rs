//! Tests renewals under paused time, with a scripted server.

mod begin;
mod servers;
mod suspend;
mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;

use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::testing::{Answer, Scripted, Sent, each, granted};

const LEASE: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// Returns a server that grants every lock, and answers renewals by `answer`.
fn renewing(answer: impl Fn(&Sent) -> Answer + Send + Sync + 'static) -> Arc<Scripted> {
    Scripted::new(move |sent| match sent.lane {
        Lane::Renewal => answer(sent),
        _ => Answer::Value(granted()),
    })
}

fn all_held(sent: &Sent) -> Value {
    each(1, sent.script_keys())
}

#[tokio::test(start_paused = true)]
async fn renewals_come_every_third_of_a_lease_in_batches() {
    let server = renewing(|sent| Answer::Value(all_held(sent)));
    let client = Client::over(&server, LEASE);
    let mut guards = Vec::new();
    for n in 0..250 {
        guards.push(client.lock(format!("x{n}")).lock().await.unwrap());
    }
    tokio::time::sleep(LEASE * 2).await;
    let times = server.times(Lane::Renewal);
    let third = LEASE / 3;
    assert_eq!(times.len(), 3 * 6, "three batches each time: {times:?}");
    for (round, batch) in times.chunks(3).enumerate() {
        let due = third * (u32::try_from(round).unwrap() + 1);
        // Each renewal is early by up to the margin.
        assert!(
            batch
                .iter()
                .all(|at| *at <= due && *at + MS * 400 * 7 > due),
            "{times:?}"
        );
    }
    let sizes: Vec<_> = server
        .sent()
        .iter()
        .filter(|sent| sent.lane == Lane::Renewal)
        .map(|sent| sent.words[2].clone())
        .take(3)
        .collect();
    assert_eq!(sizes, ["100", "100", "50"]);
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_tried_until_the_deadline_and_not_after() {
    let server = renewing(|_| Answer::Silence);
    let client = Client::over(&server, LEASE);
    let clock = server.clock();
    let taken = clock.now();
    let guard = client.lock("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, crate::LostReason::Expired);
    assert_eq!(taken.until(clock.now()), LEASE - MS * 302);
    let tries = server.times(Lane::Renewal);
    assert!(tries.len() >= 15, "{tries:?}");
    assert!(tries.iter().all(|at| *at < LEASE - MS * 302));
    assert_eq!(client.stats().holds, 0);
    tokio::time::sleep(LEASE).await;
    assert_eq!(
        server.times(Lane::Renewal).len(),
        tries.len(),
        "no more tries"
    );
    assert!(guard.is_lost(), "a loss is final");
}

/// The server is full of connections, or its password has changed, so the renewal lane has no connection and sends
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_gets_no_connection_goes_over_that_of_commands() {
    for refusal in [
        "ERR max number of clients reached",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOAUTH Authentication required.",
    ] {
        renews_over_commands(refusal).await;
    }
}

async fn renews_over_commands(refusal: &'static str) {
    let is_renewal = |sent: &Sent| sent.script_args()[0].ends_with('x') && sent.at > MS;
    let server = Scripted::new(move |sent| match sent.lane {
        Lane::Renewal => Answer::Declined(refusal),
        _ if is_renewal(sent) => Answer::Value(all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    tokio::time::sleep(LEASE * 3).await;
    assert!(!guard.is_lost());
    let times = server.times(Lane::Renewal);
    assert!((9..=10).contains(&times.len()), "{times:?}");
    assert_eq!(server.times(Lane::Command)[1..], times, "once each");
}

/// The connection for renewals has to wait until other links have made theirs.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_waits_for_its_connection_goes_over_that_of_commands() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Renewal => Answer::Unsent,
        _ if sent.at > MS => Answer::Value(all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    tokio::time::sleep(LEASE * 5 / 2).await;
    assert!(!guard.is_lost());
    let times = server.times(Lane::Command).len();
    assert_eq!(times, 1 + server.times(Lane::Renewal).len(), "once each");
}

/// Both connections have ended. They come back while a second wait would still go on.
#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_one_connection_at_a_time() {
    let server = renewing(|sent| Answer::Value(all_held(sent)));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    server.connect(false);
    let reply = client.core().timing.reply;
    tokio::time::sleep(LEASE / 3 + reply * 3 / 2).await;
    server.connect(true);
    tokio::time::sleep(LEASE).await;
    assert!(!guard.is_lost());
    assert!(server.times(Lane::Renewal).len() > 1);
    assert_eq!(server.times(Lane::Command).len(), 1, "the acquire");
}

/// Any other refusal comes from the server, and is not about a connection.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_refused_goes_over_no_other_connection() {
    let server = renewing(|_| Answer::Declined("NOPERM this user has no permissions"));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, crate::LostReason::Expired);
    assert_eq!(server.times(Lane::Command).len(), 1);
}

/// An answer after the deadline does not revive a lost hold.
#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_revive() {
    let lease = Duration::from_secs(1);
    let server = renewing(|sent| match sent.at > MS * 900 {
        // Within the wait for a reply, but after the deadline.
        true => Answer::Late(MS * 160, each(1, 1)),
        false => Answer::Silence,
    });
    let client = Client::over(&server, lease);
    let guard = client.lock("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, crate::LostReason::Expired);
    tokio::time::sleep(lease).await;
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_hold_is_lost_at_its_next_renewal() {
    let server = renewing(|_| Answer::Value(each(0, 1)));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    assert_eq!(guard.lost().await, crate::LostReason::Revoked);
    assert!(Duration::from_secs(9) < server.times(Lane::Renewal)[0]);
    assert_eq!(client.stats().holds, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_once_a_release_is_decided_on() {
    let server = Scripted::new(|sent| match sent.script_args()[2].as_str() {
        // The release gets no answer at any try.
        "0" => Answer::Silence,
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    drop(client.lock("x").lock().await.unwrap());
    tokio::time::sleep(LEASE * 2).await;
    assert!(server.times(Lane::Renewal).is_empty());
    assert!(client.stats().is_idle(), "it ends with the lease");
}

/// A hold that cannot be renewed does not affect its batch.
#[tokio::test(start_paused = true)]
async fn a_refused_batch_is_renewed_one_by_one() {
    let is_forbidden = |sent: &Sent| sent.words.iter().any(|word| word == "forbidden");
    let server = renewing(move |sent| match is_forbidden(sent) {
        true => Answer::Error("NOPERM no right to the key 'forbidden'"),
        false => Answer::Value(all_held(sent)),
    });
    let client = Client::over(&server, LEASE);
    let good = client.lock("x").lock().await.unwrap();
    let forbidden = client.lock("forbidden").lock().await.unwrap();
    assert_eq!(forbidden.lost().await, crate::LostReason::Expired);
    tokio::time::sleep(LEASE).await;
    assert!(!good.is_lost());
}

/// While a slot moves, a cluster node has only some of the keys and refuses the whole batch.
#[tokio::test(start_paused = true)]
async fn a_batch_whose_keys_are_on_the_move_is_renewed_one_by_one_at_once() {
    let server = Scripted::new(|sent| match (sent.lane, sent.words[2].as_str()) {
        (Lane::Renewal, "1") => Answer::Value(each(1, 1)),
        (Lane::Renewal, _) => Answer::Error("TRYAGAIN Multiple keys request during rehashing"),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let _one = client.lock("x").lock().await.unwrap();
    let _other = client.lock("y").lock().await.unwrap();
    tokio::time::sleep(LEASE / 2).await;
    let times = server.times(Lane::Renewal);
    assert_eq!(times, [times[0]; 3], "one for both, and one for each");
    assert!(times[0] <= LEASE / 3);
}

/// Another server answers now. All holds are asked about at once, including a fixed lease, and again until there is an
/// answer.
#[tokio::test(start_paused = true)]
async fn what_is_in_doubt_is_asked_about_at_once() {
    let silent = Arc::new(AtomicBool::new(true));
    let is_silent = Arc::clone(&silent);
    let server = renewing(move |sent| {
        if is_silent.load(Ordering::Relaxed) {
            return Answer::Silence;
        }
        // The new server does not have `gone`.
        let held = |key: &String| Value::Int((key != "gone").into());
        let keys = &sent.script_args()[..sent.script_keys()];
        Answer::Value(Value::Array(keys.iter().map(held).collect()))
    });
    let client = Client::over(&server, LEASE);
    let kept = client.lock("kept").lock().await.unwrap();
    let gone = client.lock("gone").lock().await.unwrap();
    let fixed = client.lock("fixed").fixed_lease(LEASE);
    let fixed = fixed.lock().await.unwrap();
    tokio::time::sleep(MS * 1000).await;
    assert!(server.times(Lane::Renewal).is_empty());

    let before = fixed.remaining();
    client.core().locals.moved();
    tokio::time::sleep(MS * 3000).await;
    let tries = server.times(Lane::Renewal).len();
    assert!(tries >= 2, "{tries}");
    silent.store(false, Ordering::Relaxed);
    assert_eq!(gone.lost().await, crate::LostReason::Revoked);
    tokio::time::sleep(MS * 1500).await;
    assert!(!kept.is_lost() && !fixed.is_lost());
    assert!(
        fixed.remaining() < before - MS * 4000,
        "it is not lengthened"
    );

    let asked = server.times(Lane::Renewal).len();
    tokio::time::sleep(MS * 2000).await;
    assert_eq!(server.times(Lane::Renewal).len(), asked, "no doubt is left");
}

/// The old server made the grant, although its answer came after the failover.
#[tokio::test(start_paused = true)]
async fn a_grant_under_way_when_another_server_takes_over_is_in_doubt() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Renewal => Answer::Value(each(0, 1)),
        _ => Answer::Late(MS * 200, granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let (guard, ()) = tokio::join!(lock.lock(), async {
        tokio::time::sleep(MS * 100).await;
        client.core().locals.moved();
    });
    // The new server did not have it, so the call asked again.
    let guard = guard.unwrap();
    let sent = server.sent();
    let asked = sent.iter().filter(|sent| sent.lane == Lane::Command);
    let asked: Vec<_> = asked.filter(|sent| !sent.is_release()).collect();
    assert_eq!(asked.len(), 2, "{sent:#?}");
    assert_eq!(guard.holder_id(), asked[1].script_args()[1]);
    let lost = tokio::time::timeout(MS * 100, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
}

/// The grant came before it, and the task has not had its first turn.
#[tokio::test(start_paused = true)]
async fn a_hold_is_in_doubt_by_a_failover_before_the_task_has_begun() {
    let server = renewing(|sent| Answer::Value(all_held(sent)));
    let client = Client::over(&server, LEASE);
    let _guard = client.lock("x").lock().await.unwrap();
    client.core().locals.moved();
    tokio::time::sleep(MS).await;
    assert_eq!(server.times(Lane::Renewal).len(), 1);
}
