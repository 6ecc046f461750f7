//! Hints that come to nothing: how often they lead to an attempt, and how soon.

use super::*;

const BETWEEN: Duration = Duration::from_millis(20);

/// Waits in vain for a lock while so many hints come, one after the other, and once more as long.
async fn wait_for_hints(server: &Arc<Scripted>, hints: u32) {
    let client = Client::over(server, LEASE);
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

/// Who pauses before each attempt comes after all others each time, and may wait for ever.
#[tokio::test(start_paused = true)]
async fn who_has_lost_often_pauses_every_other_time_only() {
    const HINTS: u32 = 24;
    let server = refusing(25_000);
    wait_for_hints(&server, HINTS).await;
    let asked: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    let expected = (1..=HINTS).map(|hint| {
        if hint > 16 && hint % 2 == 0 {
            BETWEEN * hint + MS * 5
        } else {
            BETWEEN * hint
        }
    });
    // The first two are made without a hint, and the last at the deadline.
    assert_eq!(asked[2..asked.len() - 1], expected.collect::<Vec<_>>());
}

/// A subscription that is refused at once, as while a slot moves, is tried again behind the next answer, and then at
/// each poll: or a lock would be free for some polls while somebody waits for it.
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

/// Each hint costs one attempt, though there is no connection for a subscription.
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
