//! Hints that come to nothing: how often they lead to an attempt, and how soon.

use super::*;

/// Who pauses before each attempt comes after all others each time, and may wait for ever.
#[tokio::test(start_paused = true)]
async fn who_has_lost_often_pauses_every_other_time_only() {
    const HINTS: u32 = 24;
    let server = refusing(25_000);
    let client = Client::over(&server, LEASE);
    let locals = Arc::clone(&client.core().locals);
    let between = MS * 20;
    let hints = async {
        for _ in 0..HINTS {
            tokio::time::sleep(between).await;
            locals.message(b"redisson_lock__channel:{x}", b"0");
        }
    };
    let lock = client.lock("x");
    let (got, ()) = tokio::join!(lock.try_lock_for(between * (HINTS + 1)), hints);
    assert!(got.unwrap().is_none());
    let asked: Vec<_> = attempts(&server.sent()).iter().map(|(at, _)| *at).collect();
    let expected = (1..=HINTS).map(|hint| {
        if hint > 16 && hint % 2 == 0 {
            between * hint + MS * 5
        } else {
            between * hint
        }
    });
    // The first two are made without a hint, and the last at the deadline.
    assert_eq!(asked[2..asked.len() - 1], expected.collect::<Vec<_>>());
}
