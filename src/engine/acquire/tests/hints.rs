//! Tests how often, and how soon, hints lead to attempts when the lock stays held.

use super::*;

const BETWEEN: Duration = Duration::from_millis(20);

/// Waits for a lock that stays held, while this number of hints come at intervals, and then for one more interval.
async fn wait_for_hints(server: &Arc<Scripted>, hints: u32) {
    let client = Client::over(server, LEASE);
    wait_as(&client, hints).await;
}

async fn wait_as(client: &Client, hints: u32) {
    let locals = Arc::clone(&client.core().locals);
    let come = async {
        for _ in 0..hints {
            tokio::time::sleep(BETWEEN).await;
            locals.message(b"redisson_lock__channel:{x}", b"0");
        }
    };
    let lock = client.lock("x");
    let (got, ()) = tokio::join!(lock.try_lock_for(BETWEEN * (hints + 1)), come);
    assert!(got.unwrap().is_none());
}

/// The attempts after hints. The first two attempts need no hint, and the last is at the deadline.
fn after_hints(server: &Scripted) -> Vec<Duration> {
    let asked: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    asked[2..asked.len() - 1].to_vec()
}

/// A waiter that pauses before every attempt always comes after its rivals, and may wait forever.
#[tokio::test(start_paused = true)]
async fn who_has_lost_often_pauses_every_other_time_only() {
    const HINTS: u32 = 24;
    let server = refusing(25_000);
    wait_for_hints(&server, HINTS).await;
    let expected = (1..=HINTS).map(|hint| {
        if hint > 16 && hint % 2 == 0 {
            BETWEEN * hint + MS * 5
        } else {
            BETWEEN * hint
        }
    });
    assert_eq!(after_hints(&server), expected.collect::<Vec<_>>());
}

/// Other clients wait for a message of this client, and take its turn if the message comes too late.
#[tokio::test(start_paused = true)]
async fn who_asks_for_others_too_does_not_pause() {
    const HINTS: u32 = 24;
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let behind = async {
        tokio::task::yield_now().await;
        lock.try_lock_for(BETWEEN * HINTS * 2).await
    };
    tokio::select! {
        () = wait_as(&client, HINTS) => {}
        got = behind => panic!("it stands behind: {got:?}"),
    }
    let expected = (1..=HINTS).map(|hint| BETWEEN * hint);
    assert_eq!(after_hints(&server), expected.collect::<Vec<_>>());
}

/// A subscription that is refused at once, as while a slot moves, is tried again soon. Otherwise the lock could be free
/// for some polls while a waiter waits for it.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_refused_at_once_is_tried_again_soon() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Push if sent.at < MS * 300 => Answer::Error("TRYAGAIN the slot moves"),
        _ if sent.is("EVALSHA") => Answer::Value(elsewhere(25_000)),
        _ => Answer::Value(redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let wait = MS * 900;
    assert!(client.lock("x").try_lock_for(wait).await.unwrap().is_none());
    let subscribed = server.times(Lane::Push);
    assert_eq!(subscribed, [0, 125, 375].map(|at| MS * at));
    let asked = attempts(&server.sent()).into_iter().map(|(at, _)| at);
    // The second attempt follows the subscription, because a message could have been missed. The last is at the
    // deadline.
    let expected = [0, 375, 900].map(|at| MS * at);
    assert_eq!(asked.collect::<Vec<_>>(), expected);
}

/// The wait is shorter than the time that an answer may take.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_short_time_hears_of_a_release() {
    let server = Scripted::new(|sent| match sent.is("EVALSHA") {
        true if sent.at < MS * 20 => Answer::Value(elsewhere(25_000)),
        true => Answer::Value(granted()),
        false => Answer::Value(redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let locals = Arc::clone(&client.core().locals);
    let release = async {
        tokio::time::sleep(MS * 20).await;
        locals.message(b"redisson_lock__channel:{x}", b"0");
    };
    let (lock, began) = (client.lock("x"), tokio::time::Instant::now());
    let (got, ()) = tokio::join!(lock.try_lock_for(MS * 100), release);
    assert!(got.unwrap().is_some());
    assert_eq!(began.elapsed(), MS * 20);
}

/// A dead connection would hide each release until the next poll.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_silent_for_three_polls_is_checked() {
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let wait = MS * 7_500;
    assert!(client.lock("x").try_lock_for(wait).await.unwrap().is_none());
    assert_eq!(
        server.times(Lane::Push),
        [0, 3_000, 6_000].map(|at| MS * at)
    );
    let asked: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    let expected = [0, 0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 7_500];
    assert_eq!(asked, expected.map(|at| MS * at), "it asks no more often");
}

/// As happens when the slot has moved to another node.
#[tokio::test(start_paused = true)]
async fn a_gap_during_a_check_leads_to_another_question() {
    let server = Scripted::new(|sent| match sent.is("EVALSHA") {
        true => Answer::Value(elsewhere(25_000)),
        false if sent.at < MS * 3_000 => Answer::Value(redis::Value::Nil),
        false => Answer::Late(MS * 50, redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let locals = Arc::clone(&client.core().locals);
    let moves = async {
        tokio::time::sleep(MS * 3_010).await;
        locals.gap();
    };
    let lock = client.lock("x");
    let (got, ()) = tokio::join!(lock.try_lock_for(MS * 3_500), moves);
    assert!(got.unwrap().is_none());
    let asked: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    // The poll, the gap, the end of the check, and the subscription after the gap.
    let expected = [3_000, 3_010, 3_050, 3_100, 3_500].map(|at| MS * at);
    assert_eq!(asked[asked.len() - 5..], expected);
}

/// Each hint costs one attempt, even without a connection for a subscription.
#[tokio::test(start_paused = true)]
async fn who_has_no_connection_for_messages_asks_once_for_each_hint() {
    const HINTS: u32 = 8;
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Push => Answer::Declined("ERR max number of clients reached"),
        _ if sent.is("EVALSHA") => Answer::Value(elsewhere(25_000)),
        _ => Answer::Value(redis::Value::Nil),
    });
    wait_for_hints(&server, HINTS).await;
    let mut asked = attempts(&server.sent());
    asked.retain(|(at, lane)| !at.is_zero() && *lane == Lane::Command);
    let expected = (1..=HINTS + 1).map(|at| (BETWEEN * at, Lane::Command));
    assert_eq!(asked, expected.collect::<Vec<_>>());
}

/// The time without a poll of the call must not count as distance to the server. That distance decides how long the
/// client backs off for others, which may not come.
#[tokio::test(start_paused = true)]
async fn who_comes_late_to_its_refusal_does_not_back_off_for_that_long() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.is("EVALSHA") {
        // Another client listens.
        true if sent.is_release() => Answer::Value(redis::Value::Int(1)),
        true if asked.fetch_add(1, Ordering::Relaxed) == 0 => {
            Answer::Late(MS * 10, elsewhere(25_000))
        }
        true => Answer::Value(granted()),
        false => Answer::Value(redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let mut call = Box::pin(lock.lock());
    assert!((&mut call).now_or_never().is_none());
    tokio::time::sleep(LEASE * 2).await;
    call.await.unwrap().release().await.unwrap();
    for _ in 0..3 {
        let began = server.clock().now();
        lock.lock().await.unwrap().release().await.unwrap();
        let took = began.until(server.clock().now());
        assert!(took < LEASE / 30, "the lock was free for {took:?}");
        tokio::time::sleep(MS * 60).await;
    }
}

/// Another attempt would continue from the state that the script has left, and get the lock.
#[tokio::test(start_paused = true)]
async fn a_right_that_a_script_lacks_is_reported_by_the_attempt_that_missed_it() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.lane {
        _ if sent.is_release() => Answer::Value(done()),
        _ if !sent.is("EVALSHA") => Answer::Value(redis::Value::Nil),
        _ => match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Value(elsewhere(25_000)),
            1 => {
                Answer::Error("ERR ACL failure in script: User u has no permissions to run 'zadd'")
            }
            _ => Answer::Value(granted()),
        },
    });
    let client = Client::over(&server, LEASE);
    let call = client.lock("x");
    let error = call.try_lock_for(MS * 2_900).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert!(error.to_string().contains("\"x\""), "{error}");
    client.shutdown().await.unwrap();
}
