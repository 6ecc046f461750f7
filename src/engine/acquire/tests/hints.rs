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

/// Other clients wait for a message of this one, and go on without it if it comes too late.
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

/// A subscription that is refused at once, as while a slot moves, is tried again behind the next answer and then at
/// each poll. Otherwise the lock could be free for some polls while a waiter waits for it.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_refused_at_once_is_tried_again_soon() {
    let server = Scripted::new(|sent| match sent.lane {
        Lane::Push if sent.at < MS * 1_500 => Answer::Error("TRYAGAIN the slot moves"),
        _ if sent.is("EVALSHA") => Answer::Value(elsewhere(25_000)),
        _ => Answer::Value(redis::Value::Nil),
    });
    let client = Client::over(&server, LEASE);
    let wait = MS * 2_900;
    assert!(client.lock("x").try_lock_for(wait).await.unwrap().is_none());
    let at = |millis: u32, lanes: &[Lane]| {
        let all = lanes.iter().map(|lane| (MS * millis, *lane));
        all.collect::<Vec<_>>()
    };
    let (command, push) = (Lane::Command, Lane::Push);
    assert_eq!(
        attempts(&server.sent()),
        [
            at(0, &[command, push, command, push, command]),
            at(1_000, &[push, command, push, command]),
            at(2_000, &[push]),
            at(2_900, &[command]),
        ]
        .concat()
    );
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

/// Asks for a fair lock that stays held. On the push connection the first replies take 25 ms and all others take
/// `later`, while the caller waits 40 ms for an answer. Returns the times of the attempts on that connection. Checks
/// that the last subscription is for the holder of the last attempt.
async fn wait_with_little_patience(later: Option<Duration>) -> Vec<Duration> {
    let server = Scripted::new(move |sent| {
        let value = match sent.is("EVALSHA") {
            true if sent.is_release() => done(),
            true => elsewhere(25_000),
            false => redis::Value::Nil,
        };
        match (sent.lane, later) {
            (Lane::Push, _) if sent.at < MS * 20 => Answer::Late(MS * 25, value),
            (Lane::Push, None) => Answer::Silence,
            (Lane::Push, Some(later)) => Answer::Late(later, value),
            _ => Answer::Value(value),
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.fair_lock("x").give_up_after(MS * 40);
    assert!(lock.try_lock_for(MS * 900).await.unwrap().is_none());
    let sent = server.sent();
    if later.is_some() {
        let asked = sent.iter().filter(|sent| sent.is("EVALSHA"));
        let holder = &asked.clone().nth_back(1).unwrap().script_args()[4];
        let subscribed = sent.iter().rfind(|sent| sent.is("SUBSCRIBE")).unwrap();
        assert!(subscribed.words[1].ends_with(&**holder), "{sent:#?}");
    }
    let pushed = sent.iter().filter(|sent| sent.lane == Lane::Push);
    let asked = pushed.filter(|sent| sent.is("EVALSHA") && !sent.is_release());
    asked.map(|sent| sent.at).collect()
}

/// A connection that is slow at first, like a new one, is tried again behind the next answer if the caller cannot wait
/// for it. Otherwise the waiter would sleep at the head of the queue, and no message could wake it.
#[tokio::test(start_paused = true)]
async fn who_could_not_wait_for_a_subscription_tries_it_again_at_once() {
    let asked = wait_with_little_patience(Some(MS * 15)).await;
    // In between, it undid the first attempt, whose answer it did not wait for.
    assert_eq!(asked, [Duration::ZERO, MS * 35]);
}

/// On a dead connection, each further try would cost the waiter its place.
#[tokio::test(start_paused = true)]
async fn who_could_not_wait_for_a_subscription_twice_leaves_it_alone() {
    let asked = wait_with_little_patience(None).await;
    assert_eq!(asked, [Duration::ZERO, MS * 40]);
}

/// How long a call was not polled says nothing about how far away the server is. Others that listen may not come, so a
/// client that has had its turn waits for them by that.
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

/// Another attempt would go on from what the script has done, and get the lock.
#[tokio::test(start_paused = true)]
async fn a_right_that_a_script_lacks_is_reported_by_the_attempt_that_missed_it() {
    let has_begun = AtomicBool::new(false);
    let server = Scripted::new(move |sent| match sent.lane {
        _ if sent.is_release() => Answer::Value(done()),
        _ if !sent.is("EVALSHA") => Answer::Value(redis::Value::Nil),
        Lane::Push => {
            has_begun.store(true, Ordering::Relaxed);
            Answer::Error("ERR ACL failure in script: User u has no permissions to run 'zadd'")
        }
        _ if has_begun.load(Ordering::Relaxed) => Answer::Value(granted()),
        _ => Answer::Value(elsewhere(25_000)),
    });
    let client = Client::over(&server, LEASE);
    let call = client.lock("x");
    let error = call.try_lock_for(MS * 2_900).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert!(error.to_string().contains("\"x\""), "{error}");
    client.shutdown().await.unwrap();
}
