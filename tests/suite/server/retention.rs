//! The retention of fencing-token counters, and the counters that are kept forever.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Server, eventually};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, ask, listening, patient_client};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn counters(server: &Server) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| key.starts_with("redisson_lock_token:"));
    keys
}

/// The remaining lives of all counters in ms, or -1 for those kept forever.
async fn leases(server: &Server) -> Vec<i64> {
    let mut admin = server.admin().await;
    let mut leases = Vec::new();
    for key in counters(server).await {
        leases.push(ask(&mut admin, &["PTTL", &key]).await);
    }
    leases
}

async fn client(server: &Server, retention: Duration) -> Client {
    let builder = Client::builder(&server.url()).token_retention(retention);
    builder.build().await.unwrap()
}

async fn token<P: Primitive>(lock: &P) -> u64 {
    let guard = lock.lock().await.unwrap();
    let token = guard.fencing_token().expect("a token").get();
    guard.release().await.unwrap();
    token
}

fn is_about(lease: i64, retention: Duration) -> bool {
    let retention = i64::try_from(retention.as_millis()).unwrap();
    (retention - 60_000..=retention).contains(&lease)
}

async fn a_counter_ends_some_time_after_the_last_grant<P: Primitive>() {
    let server = Server::start();
    let default = patient_client(&server.url()).await;
    let lock = P::of(&default, "k").fenced();
    token(&lock).await;
    let first = leases(&server).await;
    assert!(!first.is_empty());
    assert!(
        first.iter().all(|lease| is_about(*lease, DAY * 30)),
        "{first:?}"
    );

    // Each grant by a script extends the counter's life, and a client's first grant uses the
    // script.
    let mut admin = server.admin().await;
    for key in counters(&server).await {
        let _: i64 = ask(&mut admin, &["PEXPIRE", &key, "50000"]).await;
    }
    let another = patient_client(&server.url()).await;
    token(&P::of(&another, "k").fenced()).await;
    let again = leases(&server).await;
    assert!(
        again.iter().all(|lease| is_about(*lease, DAY * 30)),
        "{again:?}"
    );

    let brief = P::of(&client(&server, DAY).await, "k").fenced();
    token(&brief).await;
    let shorter = leases(&server).await;
    assert!(
        shorter.iter().all(|lease| is_about(*lease, DAY)),
        "{shorter:?}"
    );

    let endless = P::of(&client(&server, Duration::MAX).await, "k").fenced();
    token(&endless).await;
    assert!(leases(&server).await.iter().all(|lease| *lease == -1));
}

async fn tokens_grow_without_their_counter<P: Primitive>() {
    let server = Server::start();
    let client = client(&server, Duration::from_millis(5)).await;
    let lock = P::of(&client, "k").fenced();
    let mut last = 0;
    for _ in 0..5 {
        let next = token(&lock).await;
        assert!(next > last, "{next} after {last}");
        last = next;
        eventually(SOON, "the counter has gone", async || {
            counters(&server).await.is_empty()
        })
        .await;
    }
}

/// Redisson's fenced lock adds 1 to the counter, and starts with 1.
async fn a_counter_of_redissons_is_kept_for_ever<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = P::of(&client, "k").fenced();
    let mut admin = server.admin().await;
    token(&lock).await;
    let keys = counters(&server).await;
    for made_by in ["Redisson", "us"] {
        if made_by == "Redisson" {
            for key in &keys {
                let _: i64 = ask(&mut admin, &["DEL", key]).await;
            }
        }
        let mut last = 0;
        for increments in [1, 1, 2, 0, 5, 0, 60] {
            for key in &keys {
                for _ in 0..increments {
                    let theirs: u64 = ask(&mut admin, &["INCR", key]).await;
                    last = last.max(theirs);
                }
            }
            let ours = token(&lock).await;
            assert!(ours > last, "{ours} after {last}");
            assert!(ours > 1_000_000_000_000_000, "microseconds");
            last = ours;
            let leases = leases(&server).await;
            assert!(
                leases.iter().all(|lease| *lease == -1),
                "{made_by}: {leases:?}"
            );
        }
        for key in &keys {
            let _: i64 = ask(&mut admin, &["DEL", key]).await;
        }
        token(&lock).await;
        assert!(
            leases(&server).await.iter().all(|lease| *lease > 0),
            "recreated by our client"
        );
    }
}

for_every_primitive! {"current_thread":
    a_counter_ends_some_time_after_the_last_grant
    tokens_grow_without_their_counter
    a_counter_of_redissons_is_kept_for_ever
    a_counter_ahead_of_the_clock_is_kept_for_ever
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_counter_ends_some_time_after_the_last_grant
    tokens_grow_without_their_counter
    a_counter_of_redissons_is_kept_for_ever
    a_counter_ahead_of_the_clock_is_kept_for_ever
}

/// The clock was set back, so only the counter knows that larger tokens exist.
async fn a_counter_ahead_of_the_clock_is_kept_for_ever<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    token(&P::of(&client, "k").fenced()).await;
    // This client does not know the counter, so it does not raise it by a plain command.
    let another = patient_client(&server.url()).await;
    let lock = P::of(&another, "k").fenced();
    let ahead = 8_000_000_000_000_000_u64;
    for key in counters(&server).await {
        let _: () = ask(
            &mut admin,
            &["SET", &key, &ahead.to_string(), "PX", "60000"],
        )
        .await;
    }
    for more in 1..=3 {
        assert_eq!(token(&lock).await, ahead + more);
        let leases = leases(&server).await;
        assert!(leases.iter().all(|lease| *lease == -1), "{leases:?}");
    }
}

/// When the lock is handed over, the releasing client draws the waiter's token.
#[tokio::test]
async fn the_counter_of_a_lock_that_is_handed_over_ends_too() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let held = ours.fair_lock("k").fenced().lock().await.unwrap();
    let lock = theirs.fair_lock("k").fenced();
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    let mut admin = server.admin().await;
    let [key] = &*counters(&server).await else {
        panic!("one counter");
    };
    let _: i64 = ask(&mut admin, &["DEL", key]).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let lease: i64 = ask(&mut admin, &["PTTL", key]).await;
    assert!(is_about(lease, DAY * 30), "{lease}");
    guard.release().await.unwrap();
}

/// A grant that includes tokens for other tasks of its client.
#[tokio::test]
async fn the_counter_is_beyond_all_tokens_that_were_handed_off() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.lock("k").fenced();
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let lock = lock.clone();
            lockset_testkit::spawn(async move { token(&lock).await })
        })
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.unwrap());
    }
    let mut admin = server.admin().await;
    let kept: u64 = ask(&mut admin, &["GET", "redisson_lock_token:{k}"]).await;
    assert!(tokens.iter().all(|token| *token <= kept), "{kept}");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 100, "each has its own");
    let leases = leases(&server).await;
    assert!(is_about(leases[0], DAY * 30), "{leases:?}");
    assert!(token(&lock).await > kept);
}

#[tokio::test]
async fn no_time_at_all_is_refused() {
    let builder = Client::builder("redis://127.0.0.1:1").token_retention(Duration::ZERO);
    let error = builder.build().await.expect_err("an error");
    assert!(error.is_invalid() && !error.is_io(), "{error}");
}
