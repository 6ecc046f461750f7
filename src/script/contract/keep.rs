//! Holds released before their `at_least` is over: they stay at the server until then.

use redis::Value;

use super::fixture::{DONE, Fixture, HELD, NOT_HELD, U1, U2, U3, U4, U8, U9, near};
use super::rw::all_told;

const CHANNEL: &str = "redisson_lock__channel:{L}";

const RW: [&str; 2] = ["L", "lockset_rw_waiting:{L}"];

/// The key of a reader's lease.
fn lease_of(holder: &str) -> String {
    format!("{{L}}:{holder}:rwlock_timeout:1")
}

impl Fixture {
    async fn keep(
        &mut self,
        script: &str,
        keys: &[&str],
        [holder, kept_as]: [&str; 2],
        remaining: &str,
    ) -> Value {
        let args = [holder, kept_as, remaining, CHANNEL, "PUBLISH"];
        self.run(script, keys, &args).await
    }

    async fn is_kept_for(&mut self, key: &str, remaining: i64) {
        let pttl = self.pttl_of(key).await;
        assert!(near(pttl, remaining), "{key}: {pttl}");
    }

    /// The field names of the lock's hash.
    async fn fields_of(&mut self, key: &str) -> Vec<String> {
        let mut fields: Vec<String> = self.ask(&["HKEYS", key]).await;
        fields.sort_unstable();
        fields
    }

    async fn reads(&mut self, holder: &str, lease: &str) {
        let args = [holder, lease, "0", "0", "0"];
        assert_eq!(self.run("read_acquire", &RW, &args).await, HELD);
    }
}

#[tokio::test]
async fn a_hold_is_left_for_just_as_long_as_it_is_to_be() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let args = [U1, "30000", "0"];
    assert_eq!(fixture.run("reentrant_acquire", &["L"], &args).await, HELD);
    let mut holder = U1;
    for (kept_as, remaining, told) in [(U2, "8000", true), (U3, "60000", false)] {
        let reply = fixture
            .keep("keep", &["L"], [holder, kept_as], remaining)
            .await;
        fixture.is_kept_for("L", remaining.parse().unwrap()).await;
        let all: Vec<String> = fixture.ask(&["HGETALL", "L"]).await;
        assert_eq!(all, [kept_as, "1"], "one hold, under another holder id");
        let messages = fixture.messages(&mut heard).await;
        // Only waiters that were told a longer lease need a notification.
        let expected = if told {
            vec![format!("{CHANNEL} 0")]
        } else {
            vec![]
        };
        assert_eq!(messages, expected, "{remaining}");
        assert_eq!(reply, Value::Int(i64::from(told)), "{remaining}");
        holder = kept_as;
    }
    assert_eq!(
        fixture.keep("keep", &["L"], [U4, U9], "1000").await,
        NOT_HELD
    );
    fixture.is_kept_for("L", 60_000).await;
    fixture.make(&["DEL", "L"]).await;
    assert_eq!(
        fixture.keep("keep", &["L"], [U1, U9], "1000").await,
        NOT_HELD
    );
    assert_eq!(fixture.server.keys().await, [""; 0], "no key was created");
    fixture.make(&["HSET", "L", "color", "red"]).await;
    let args = [U1, U9, "1000", CHANNEL, "PUBLISH"];
    let refused = fixture.refused("keep", &["L"], &args).await;
    let code = crate::conn::error_reply::code(&refused);
    assert_eq!(code, Some("WRONGTYPE"), "{refused}");
}

/// A repeat is sent later, so its remaining time may differ.
#[tokio::test]
async fn a_repeat_changes_nothing() {
    let mut fixture = Fixture::new().await;
    let args = [U1, "30000", "0"];
    fixture.run("reentrant_acquire", &["M"], &args).await;
    fixture.reads(U1, "30000").await;
    let args = [U1, "30000", "0", "0"];
    let rw = ["W", "lockset_rw_waiting:{W}"];
    assert_eq!(fixture.run("write_acquire", &rw, &args).await, HELD);
    for (script, key) in [("keep", "M"), ("rw_keep", "L"), ("rw_keep", "W")] {
        fixture.keep(script, &[key], [U1, U9], "9000").await;
        let kept = fixture.fields_of(key).await;
        for remaining in ["5000", "60000"] {
            let reply = fixture.keep(script, &[key], [U1, U9], remaining).await;
            assert_eq!(reply, DONE, "{key}");
            fixture.is_kept_for(key, 9_000).await;
        }
        assert_eq!(fixture.fields_of(key).await, kept);
    }
    fixture.is_kept_for(&lease_of(U9), 9_000).await;
}

/// Renewals, releases and downgrades of the old holder id find nothing.
#[tokio::test]
async fn nothing_late_finds_what_is_left() {
    let mut fixture = Fixture::new().await;
    let args = [U1, "30000", "0"];
    fixture.run("reentrant_acquire", &["M"], &args).await;
    fixture.reads(U1, "30000").await;
    let none = Value::Array(vec![Value::Int(0)]);
    fixture.keep("keep", &["M"], [U1, U9], "9000").await;
    fixture.keep("rw_keep", &["L"], [U1, U9], "9000").await;
    for script in ["renew", "rw_renew"] {
        let key = if script == "renew" { "M" } else { "L" };
        let reply = fixture.run(script, &[key], &[U1, "60000"]).await;
        assert_eq!(reply, none, "{script}");
    }
    let args = [U1, CHANNEL, "PUBLISH"];
    assert_eq!(
        fixture.run("reentrant_release", &["M"], &args).await,
        NOT_HELD
    );
    assert_eq!(fixture.run("rw_release", &RW, &args).await, NOT_HELD);
    let args = [U1, "30000", CHANNEL, "PUBLISH"];
    assert_eq!(fixture.run("rw_downgrade", &RW, &args).await, NOT_HELD);
    fixture.is_kept_for("M", 9_000).await;
    fixture.is_kept_for("L", 9_000).await;
    assert_eq!(fixture.fields_of("L").await, [U9, "mode"]);
    let keys = fixture.server.keys().await;
    let leases: Vec<_> = keys.iter().filter(|key| key.contains("timeout")).collect();
    assert_eq!(leases, [&lease_of(U9)], "the reader's own leases are gone");
}

#[tokio::test]
async fn a_writer_is_left_as_one() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let args = [U1, "30000", "0", "0"];
    assert_eq!(fixture.run("write_acquire", &RW, &args).await, HELD);
    let reply = fixture.keep("rw_keep", &["L"], [U1, U9], "9000").await;
    assert_eq!(reply, Value::Int(1));
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
    let writer = format!("{U9}:write");
    assert_eq!(fixture.fields_of("L").await, [writer, "mode".to_owned()]);
    assert_eq!(fixture.server.keys().await, ["L"], "no read lease");
    fixture.is_kept_for("L", 9_000).await;
}

/// A waiter of Redisson that was refused by a lock without a lease sleeps until it is notified.
#[tokio::test]
async fn who_waits_for_a_lock_without_a_lease_hears_that_it_has_one() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    fixture.make(&["HSET", "L", U1, "1"]).await;
    assert_eq!(fixture.pttl_of("L").await, -1);
    let reply = fixture.keep("keep", &["L"], [U1, U9], "9000").await;
    assert_eq!(reply, Value::Int(1));
    fixture.is_kept_for("L", 9_000).await;
    let messages = fixture.messages(&mut heard).await;
    assert_eq!(messages, [format!("{CHANNEL} 0")]);
}

#[tokio::test]
async fn the_head_of_a_fair_queue_hears_that_it_is_sooner() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    fixture.make(&["HSET", "L", U1, "1"]).await;
    fixture.make(&["PEXPIRE", "L", "30000"]).await;
    let keys = ["L", "redisson_lock_queue:{L}"];
    assert_eq!(fixture.keep("keep", &keys, [U1, U3], "20000").await, DONE);
    assert_eq!(fixture.messages(&mut heard).await, [""; 0], "nobody waits");
    fixture.make(&["RPUSH", keys[1], U2]).await;
    let told = Value::Int(1);
    // The last of these does not shorten the lease, but waiters may know only an earlier holder's lease.
    for (holder, kept_as, remaining) in [(U3, U4, "9000"), (U4, U8, "900"), (U8, U9, "900")] {
        let reply = fixture
            .keep("keep", &keys, [holder, kept_as], remaining)
            .await;
        assert_eq!(reply, told);
        let messages = fixture.messages(&mut heard).await;
        assert_eq!(messages, [format!("{CHANNEL}:{U2} 0")]);
        fixture.is_kept_for("L", remaining.parse().unwrap()).await;
    }
    let queue: Vec<String> = fixture.ask(&["LRANGE", keys[1], "0", "-1"]).await;
    assert_eq!(queue, [U2], "the waiter keeps its place");
}

/// In a cluster, the lease of another reader may be moving to another node.
#[tokio::test]
async fn a_reader_that_is_left_beside_one_it_may_not_look_at_leaves_the_lock_as_long_as_it_is() {
    let mut fixture = Fixture::new().await;
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        fixture.reads(holder, lease).await;
    }
    let rights = format!("resetkeys ~L ~{{L}}:{U1}:* ~{{L}}:{U9}:*");
    let mut user = fixture.user(&rights).await;
    let args = [U1, U9, "9000", CHANNEL, "PUBLISH"];
    assert_eq!(user.run("rw_keep", &["L"], &args).await.unwrap(), DONE);
    fixture.is_kept_for("L", 30_000).await;
    fixture.is_kept_for(&lease_of(U9), 9_000).await;
}

#[tokio::test]
async fn a_reader_that_is_left_shortens_no_other_lease() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        fixture.reads(holder, lease).await;
    }
    let reply = fixture.keep("rw_keep", &["L"], [U1, U3], "9000").await;
    assert_eq!(reply, Value::Int(1));
    fixture.is_kept_for(&lease_of(U3), 9_000).await;
    fixture.is_kept_for(&lease_of(U2), 20_000).await;
    fixture.is_kept_for("L", 20_000).await;
    assert_eq!(fixture.fields_of("L").await, [U2, U3, "mode"]);
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
    assert_eq!(
        fixture.keep("rw_keep", &["L"], [U3, U4], "50000").await,
        DONE
    );
    fixture.is_kept_for("L", 50_000).await;
    let release = [U2, CHANNEL, "PUBLISH"];
    fixture.run("rw_release", &RW, &release).await;
    let messages = fixture.messages(&mut heard).await;
    assert_eq!(messages, [""; 0], "no shorter lease");
    let reply = fixture.keep("rw_keep", &["L"], [U4, U8], "8000").await;
    assert_eq!(reply, Value::Int(1));
    fixture.is_kept_for("L", 8_000).await;
    fixture.is_kept_for(&lease_of(U8), 8_000).await;
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
    assert_eq!(
        fixture.keep("rw_keep", &["L"], [U2, U9], "1000").await,
        NOT_HELD
    );
    fixture.make(&["DEL", "L"]).await;
    assert_eq!(
        fixture.keep("rw_keep", &["L"], [U8, U9], "1000").await,
        NOT_HELD
    );
}

#[tokio::test]
async fn readers_that_are_all_left_leave_the_lock_for_the_longest_of_them() {
    let mut fixture = Fixture::new().await;
    for holder in [U1, U2] {
        fixture.reads(holder, "30000").await;
    }
    assert_eq!(
        fixture.keep("rw_keep", &["L"], [U1, U8], "9000").await,
        DONE
    );
    fixture.is_kept_for("L", 30_000).await;
    fixture.keep("rw_keep", &["L"], [U2, U9], "2000").await;
    fixture.is_kept_for("L", 9_000).await;
}

/// The refused callers were told the longer lease.
#[tokio::test]
async fn those_who_wait_are_told_when_a_shorter_lease_is_left() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    for (holder, lease) in [(U1, "30000"), (U2, "2000")] {
        fixture.reads(holder, lease).await;
    }
    let release = [U1, CHANNEL, "PUBLISH"];
    let reply = fixture.run("rw_release", &RW, &release).await;
    assert_eq!(reply, DONE);
    fixture.is_kept_for("L", 2_000).await;
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
}

/// Otherwise the lock would be held for a whole lease.
#[tokio::test]
async fn a_full_server_lets_a_hold_be_left() {
    let mut fixture = Fixture::new().await;
    for holder in [U1, U2] {
        fixture.reads(holder, "30000").await;
    }
    let args = [U1, "30000", "0"];
    assert_eq!(fixture.run("reentrant_acquire", &["M"], &args).await, HELD);
    fixture.fill().await;
    assert_eq!(
        fixture.keep("rw_keep", &["L"], [U1, U8], "9000").await,
        DONE
    );
    fixture.is_kept_for(&lease_of(U8), 9_000).await;
    fixture.keep("keep", &["M"], [U1, U8], "9000").await;
    fixture.is_kept_for("M", 9_000).await;
}

#[tokio::test]
async fn a_reader_that_is_left_does_not_take_the_lease_of_another_from_a_lock_without_one() {
    let mut fixture = Fixture::new().await;
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        fixture.reads(holder, lease).await;
    }
    fixture.make(&["PERSIST", "L"]).await;
    fixture.keep("rw_keep", &["L"], [U1, U8], "2000").await;
    fixture.is_kept_for("L", 20_000).await;
}
