//! The reentrant lock, and the renewal that it shares with the fair lock.

use redis::Value;

use super::fixture::{Fixture, HELD, NO_SUCH_HOLD, NOT_HELD, U1, U2, U9, list, near, token_of};
use crate::script::reply;

const TOKEN: &str = "redisson_lock_token:{L}";

impl Fixture {
    async fn acquire(&mut self, holder: &str, lease: &str) -> Value {
        self.run("reentrant_acquire", &["L"], &[holder, lease, "0"])
            .await
    }

    async fn fenced(&mut self, holder: &str) -> u64 {
        self.fenced_with(holder, "1").await
    }

    /// Reserves this many tokens and returns the first.
    async fn fenced_with(&mut self, holder: &str, tokens: &str) -> u64 {
        let args = [holder, "30000", tokens];
        let reply = self.run("reentrant_acquire", &["L", TOKEN], &args).await;
        token_of(&reply)
    }

    async fn release(&mut self, holder: &str) -> Value {
        let args = [holder, "redisson_lock__channel:{L}", "PUBLISH"];
        self.run("reentrant_release", &["L"], &args).await
    }

    async fn holds(&mut self) -> Vec<String> {
        self.ask(&["HGETALL", "L"]).await
    }

    async fn pttl(&mut self) -> i64 {
        self.ask(&["PTTL", "L"]).await
    }
}

/// The trace of Redisson's `RLock`, step by step, with our own replies and without its defects.
#[tokio::test]
async fn the_reentrant_trace() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.acquire(U1, "30000").await, HELD);
    assert_eq!(fixture.holds().await, [U1, "1"]);
    assert!(near(fixture.pttl().await, 30_000));
    match fixture.acquire(U2, "30000").await {
        Value::Int(rest) => assert!(near(rest, 30_000), "{rest}"),
        other => panic!("{other:?}"),
    }
    // A repeat with a shorter lease keeps the running lease.
    assert_eq!(fixture.acquire(U1, "1000").await, HELD);
    assert_eq!(fixture.holds().await, [U1, "1"]);
    assert!(near(fixture.pttl().await, 30_000));
    // A longer lease replaces it.
    for _ in 0..2 {
        assert_eq!(fixture.acquire(U1, "60000").await, HELD);
        assert_eq!(fixture.holds().await, [U1, "1"]);
        assert!(near(fixture.pttl().await, 60_000));
    }
    assert_eq!(fixture.release(U2).await, NOT_HELD, "a stranger");
    let client = redis::Client::open(fixture.server.url()).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener
        .subscribe("redisson_lock__channel:{L}")
        .await
        .unwrap();
    assert_eq!(fixture.release(U1).await, Value::Int(1), "one subscriber");
    assert_eq!(fixture.release(U1).await, NOT_HELD, "a repeat");
    assert_eq!(fixture.holds().await, [""; 0]);
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// An operator removed the lease. Our scripts set it again and do not delete the key.
#[tokio::test]
async fn a_key_without_a_lease_gets_one_back() {
    let mut fixture = Fixture::new().await;
    for verb in ["acquire", "renew"] {
        fixture.acquire(U1, "30000").await;
        let _: i64 = fixture.ask(&["PERSIST", "L"]).await;
        let refused = fixture.refused("reentrant_acquire", &["L"], &[U2, "30000", "0"]);
        let refused = refused.await;
        let code = crate::conn::error_reply::code(&refused);
        assert_eq!(
            code,
            Some("WRONGTYPE"),
            "other holders do not see a lock: {refused}"
        );
        match verb {
            "acquire" => drop(fixture.acquire(U1, "30000").await),
            _ => drop(fixture.run("renew", &["L"], &[U1, "30000"]).await),
        }
        assert!(near(fixture.pttl().await, 30_000), "{verb}");
        fixture.release(U1).await;
    }
}

#[tokio::test]
async fn tokens_grow_with_every_answer() {
    let mut fixture = Fixture::new().await;
    let first = fixture.fenced(U1).await;
    let now = fixture.fenced(U1).await;
    assert!(now > first, "a repeated grant gets a larger token");
    fixture.release(U1).await;
    let next = fixture.fenced(U2).await;
    assert!(next > now);
    assert!(next < 1 << 53);
    let kept: String = fixture.ask(&["GET", TOKEN]).await;
    assert_eq!(kept, next.to_string(), "exact, and plain digits");
}

/// Tokens therefore keep growing after the counter is lost.
#[tokio::test]
async fn a_token_is_not_below_the_clock() {
    let mut fixture = Fixture::new().await;
    let token_step = 64;
    let mut before = 0;
    for _ in 0..2 {
        let now: Vec<u64> = fixture.ask(&["TIME"]).await;
        let now = now[0] * 1_000_000 + now[1];
        let token = fixture.fenced(U1).await;
        assert!(token + token_step > now, "{token} at {now}");
        assert!(token + token_step > before, "{token} after {before}");
        before = token;
        fixture.release(U1).await;
        let lost: i64 = fixture.ask(&["DEL", TOKEN]).await;
        assert_eq!(lost, 1);
    }
}

/// A client hands these tokens to its tasks without asking the server, so no other client may get one of them.
#[tokio::test]
async fn tokens_that_come_with_a_grant_are_set_aside() {
    let mut fixture = Fixture::new().await;
    // Ahead of the clock, which would otherwise skip the reserved tokens.
    let ahead = "5000000000000001";
    fixture.run("raise_token", &[TOKEN], &[ahead]).await;
    let first = fixture.fenced_with(U1, "17").await;
    fixture.release(U1).await;
    let next = fixture.fenced_with(U2, "1").await;
    assert!(next > first + 16, "{next} after {first} and 16 more");
}

/// Only a hold that is there gets a token, and the token is the next one.
#[tokio::test]
async fn a_hold_without_a_token_is_given_one() {
    let mut fixture = Fixture::new().await;
    let missing = fixture.run("take_token", &["L", TOKEN], &[U1, "0"]).await;
    assert_eq!(missing, NO_SUCH_HOLD);
    assert_eq!(fixture.ask::<i64>(&["EXISTS", "L", TOKEN]).await, 0);
    let first = fixture.fenced_with(U2, "1").await;
    fixture.release(U2).await;
    fixture.acquire(U1, "30000").await;
    let mut last = first;
    for _ in 0..2 {
        let taken = fixture.run("take_token", &["L", TOKEN], &[U1, "0"]).await;
        let token: u64 = redis::from_redis_value(taken).unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    fixture.release(U1).await;
    let next = fixture.fenced_with(U2, "1").await;
    assert!(next > last, "{next} after {last}");
}

/// Waiters poll, so a release without a notification still counts.
#[tokio::test]
async fn a_release_without_the_right_to_publish_frees_the_lock() {
    let mut fixture = Fixture::new().await;
    let mut user = fixture.user("-publish").await;
    fixture.acquire(U1, "30000").await;
    let args = [U1, "redisson_lock__channel:{L}", "PUBLISH"];
    let released = user.run("reentrant_release", &["L"], &args).await;
    assert_eq!(released.expect("a release"), Value::Int(0));
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn renewal_inspection_and_force() {
    let mut fixture = Fixture::new().await;
    assert_eq!(
        fixture.run("reentrant_inspect", &["L"], &[]).await,
        list(&[])
    );
    fixture.acquire(U1, "1000").await;
    let _: Value = fixture.ask(&["RPUSH", "foreign", "x"]).await;
    let args = [U1, "60000", U1, "60000", U1, "60000", U9, "60000"];
    let keys = ["L", "absent", "foreign", "L"];
    let renewed = fixture.run("renew", &keys, &args).await;
    assert_eq!(renewed, list(&[1, 0, 0, 0]));
    let _: Value = fixture.ask(&["DEL", "foreign"]).await;
    assert!(near(fixture.pttl().await, 60_000));
    // A late renewal with a shorter lease shortens nothing.
    fixture.run("renew", &["L"], &[U1, "1000"]).await;
    assert!(near(fixture.pttl().await, 60_000));
    let seen = fixture.run("reentrant_inspect", &["L"], &[]).await;
    let seen = reply::inspected(&seen).unwrap().unwrap();
    assert_eq!((&*seen.holder.id, seen.holder.hold_count), (U1, 1));
    let args = ["redisson_lock__channel:{L}", "PUBLISH"];
    let forced = fixture.run("reentrant_force_unlock", &["L"], &args).await;
    assert_eq!(forced, Value::Int(1));
    let again = fixture.run("reentrant_force_unlock", &["L"], &args).await;
    assert_eq!(again, Value::Int(0));
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// The token comes from another server.
#[tokio::test]
async fn a_token_is_raised_and_never_lowered() {
    let mut fixture = Fixture::new().await;
    let key = TOKEN;
    let largest = "9007199254740990";
    for (token, then) in [("7", "7"), ("5", "7"), (largest, largest), ("8", largest)] {
        for _ in 0..2 {
            let raised = fixture.run("raise_token", &[key], &[token]).await;
            assert_eq!(raised, Value::Int(1));
            let kept: String = fixture.ask(&["GET", key]).await;
            assert_eq!(kept, then, "exact, and plain digits");
        }
    }
    assert_eq!(fixture.fenced(U1).await, 9_007_199_254_740_991);
    for make in [["RPUSH", key, "x"], ["SET", key, "not a number"]] {
        let _: i64 = fixture.ask(&["DEL", key]).await;
        let _: Value = fixture.ask(&make).await;
        let error = fixture.refused("raise_token", &[key], &["9"]).await;
        let code = crate::conn::error_reply::code(&error);
        assert_eq!(code, Some("WRONGTYPE"), "{error}");
    }
}

/// Scripts detect a foreign counter before their first write.
#[tokio::test]
async fn a_foreign_token_key_costs_nobody_the_lock() {
    let mut fixture = Fixture::new().await;
    let token = TOKEN;
    for make in [["RPUSH", token, "x"], ["SET", token, "not a number"]] {
        let _: Value = fixture.ask(&make).await;
        let args = [U1, "30000", "1"];
        let error = fixture
            .refused("reentrant_acquire", &["L", token], &args)
            .await;
        assert_eq!(
            crate::conn::error_reply::code(&error),
            Some("WRONGTYPE"),
            "{error}"
        );
        assert_eq!(fixture.server.keys().await, [token]);
        let _: i64 = fixture.ask(&["DEL", token]).await;
    }
}

/// Redis 6 has neither the option `GT` nor this number.
#[tokio::test]
async fn a_lease_is_lengthened_without_a_comparison_at_the_server_too() {
    let mut fixture = Fixture::new().await;
    let lengthen = super::file("includes/lengthen.lua") + "lengthen(KEYS[1], ARGV[1])";
    let without = lengthen.replace("redis.REDIS_VERSION_NUM", "nil");
    assert_ne!(lengthen, without);
    for script in [lengthen, without] {
        for (before, after) in [("5000", 30_000), ("60000", 60_000), ("0", 30_000)] {
            fixture.make(&["SET", "L", "x"]).await;
            if before != "0" {
                fixture.make(&["PEXPIRE", "L", before]).await;
            }
            fixture.make(&["EVAL", &script, "1", "L", "30000"]).await;
            let lease = fixture.pttl_of("L").await;
            assert!(near(lease, after), "{before}: {lease}");
        }
    }
}

/// A user without the right to `PEXPIRE` never leaves a hold without a lease.
#[tokio::test]
async fn a_lease_that_is_refused_leaves_no_hold() {
    let mut fixture = Fixture::new().await;
    let mut user = fixture.user("-pexpire").await;
    let args = [U1, "30000", "0"];
    let error = user.refused("reentrant_acquire", &["L"], &args).await;
    assert_eq!(
        crate::conn::error_reply::advice(&error).0,
        crate::api::error::Kind::Denied,
        "{error}"
    );
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// The client may still hold the lock, so it must not report a loss.
#[tokio::test]
async fn a_renewal_without_a_right_gets_an_error() {
    let mut fixture = Fixture::new().await;
    for (script, right) in [
        ("renew", "hexists"),
        ("rw_renew", "hmget"),
        ("semaphore_renew", "zscore"),
    ] {
        let mut user = fixture.user(&format!("-{right}")).await;
        let refused = user.refused(script, &["L"], &[U1, "30000"]).await;
        let code = crate::conn::error_reply::code(&refused);
        assert!(
            code.is_some_and(|code| code.starts_with("NOPERM")),
            "{script}: {refused}"
        );
    }
}
