//! Holds that were given back too early: left at the server until their time is over.

use redis::Value;

use super::fixture::{DONE, Fixture, HELD, NOT_HELD, U1, U2, near};
use super::rw::all_told;

const CHANNEL: &str = "redisson_lock__channel:{L}";

impl Fixture {
    async fn keep(&mut self, script: &str, keys: &[&str], holder: &str, remaining: &str) -> Value {
        let args = [holder, remaining, CHANNEL, "PUBLISH"];
        self.run(script, keys, &args).await
    }

    async fn is_kept_for(&mut self, key: &str, remaining: i64) {
        let pttl = self.pttl_of(key).await;
        assert!(near(pttl, remaining), "{key}: {pttl}");
    }
}

#[tokio::test]
async fn a_hold_is_left_for_just_as_long_as_it_is_to_be() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let args = [U1, "1", "30000", "0"];
    assert_eq!(fixture.run("reentrant_acquire", &["L"], &args).await, HELD);
    for (remaining, told) in [("8000", true), ("60000", false), ("60000", false)] {
        let reply = fixture.keep("keep", &["L"], U1, remaining).await;
        fixture.is_kept_for("L", remaining.parse().unwrap()).await;
        let messages = fixture.messages(&mut heard).await;
        // Only who was told of a longer lease has to hear of it.
        let expected = if told {
            vec![format!("{CHANNEL} 0")]
        } else {
            vec![]
        };
        assert_eq!(messages, expected, "{remaining}");
        assert_eq!(reply, Value::Int(i64::from(told)), "{remaining}");
    }
    assert_eq!(fixture.keep("keep", &["L"], U2, "1000").await, NOT_HELD);
    fixture.is_kept_for("L", 60_000).await;
    fixture.make(&["DEL", "L"]).await;
    assert_eq!(fixture.keep("keep", &["L"], U1, "1000").await, NOT_HELD);
    assert_eq!(fixture.server.keys().await, [""; 0], "nothing is made");
    fixture.make(&["HSET", "L", "color", "red"]).await;
    let args = [U1, "1000", CHANNEL, "PUBLISH"];
    let refused = fixture.refused("keep", &["L"], &args).await;
    let code = crate::conn::error_reply::code(&refused);
    assert_eq!(code, Some("WRONGTYPE"), "{refused}");
}

/// A waiter of Redisson's that was told of no lease sleeps until a message.
#[tokio::test]
async fn who_waits_for_a_lock_without_a_lease_hears_that_it_has_one() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    fixture.make(&["HSET", "L", U1, "1"]).await;
    assert_eq!(fixture.pttl_of("L").await, -1);
    let reply = fixture.keep("keep", &["L"], U1, "9000").await;
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
    assert_eq!(fixture.keep("keep", &keys, U1, "20000").await, DONE);
    assert_eq!(fixture.messages(&mut heard).await, [""; 0], "nobody waits");
    fixture.make(&["RPUSH", keys[1], U2]).await;
    assert_eq!(fixture.keep("keep", &keys, U1, "9000").await, Value::Int(1));
    let messages = fixture.messages(&mut heard).await;
    assert_eq!(messages, [format!("{CHANNEL}:{U2} 0")]);
    fixture.is_kept_for("L", 9_000).await;
    // The second time it is no sooner; but who waits may have been told of an earlier holder.
    for _ in 0..2 {
        assert_eq!(fixture.keep("keep", &keys, U1, "900").await, Value::Int(1));
        let messages = fixture.messages(&mut heard).await;
        assert_eq!(messages, [format!("{CHANNEL}:{U2} 0")]);
    }
    let queue: Vec<String> = fixture.ask(&["LRANGE", keys[1], "0", "-1"]).await;
    assert_eq!(queue, [U2], "it stays in its place");
}

/// As where the lease of another reader may be on its way to another node of a cluster.
#[tokio::test]
async fn a_reader_that_is_left_beside_one_it_may_not_look_at_leaves_the_lock_as_long_as_it_is() {
    let mut fixture = Fixture::new().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        let args = [holder, "1", lease, "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    let mut user = fixture.user(&format!("resetkeys ~L ~{{L}}:{U1}:*")).await;
    let args = [U1, "9000", CHANNEL, "PUBLISH"];
    assert_eq!(user.run("rw_keep", &["L"], &args).await.unwrap(), DONE);
    fixture.is_kept_for("L", 30_000).await;
    let own = format!("{{L}}:{U1}:rwlock_timeout:1");
    fixture.is_kept_for(&own, 9_000).await;
}

#[tokio::test]
async fn a_reader_that_is_left_shortens_no_other_lease() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    let of = |holder: &str| format!("{{L}}:{holder}:rwlock_timeout:1");
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        let args = [holder, "1", lease, "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    let reply = fixture.keep("rw_keep", &["L"], U1, "9000").await;
    assert_eq!(reply, Value::Int(1));
    fixture.is_kept_for(&of(U1), 9_000).await;
    fixture.is_kept_for(&of(U2), 20_000).await;
    fixture.is_kept_for("L", 20_000).await;
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
    assert_eq!(fixture.keep("rw_keep", &["L"], U1, "50000").await, DONE);
    fixture.is_kept_for("L", 50_000).await;
    fixture
        .run(
            "rw_release",
            &keys,
            &[U2, "0", "0", "1", CHANNEL, "PUBLISH"],
        )
        .await;
    assert_eq!(
        fixture.messages(&mut heard).await,
        [""; 0],
        "no sooner than told"
    );
    let reply = fixture.keep("rw_keep", &["L"], U1, "8000").await;
    assert_eq!(reply, Value::Int(1));
    fixture.is_kept_for("L", 8_000).await;
    fixture.is_kept_for(&of(U1), 8_000).await;
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
    assert_eq!(fixture.keep("rw_keep", &["L"], U2, "1000").await, NOT_HELD);
    fixture.make(&["DEL", "L"]).await;
    assert_eq!(fixture.keep("rw_keep", &["L"], U1, "1000").await, NOT_HELD);
}

#[tokio::test]
async fn readers_that_are_all_left_leave_the_lock_for_the_longest_of_them() {
    let mut fixture = Fixture::new().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    for holder in [U1, U2] {
        let args = [holder, "1", "30000", "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    assert_eq!(fixture.keep("rw_keep", &["L"], U1, "9000").await, DONE);
    fixture.is_kept_for("L", 30_000).await;
    fixture.keep("rw_keep", &["L"], U2, "2000").await;
    fixture.is_kept_for("L", 9_000).await;
}

/// Who was refused was told of the longer one.
#[tokio::test]
async fn those_who_wait_are_told_when_a_shorter_lease_is_left() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    for (holder, lease) in [(U1, "30000"), (U2, "2000")] {
        let args = [holder, "1", lease, "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    let release = [U1, "0", "0", "1", CHANNEL, "PUBLISH"];
    let reply = fixture.run("rw_release", &keys, &release).await;
    assert_eq!(reply, DONE);
    fixture.is_kept_for("L", 2_000).await;
    assert_eq!(fixture.messages(&mut heard).await, all_told(CHANNEL));
}

/// Else it would be held for a whole lease.
#[tokio::test]
async fn a_full_server_lets_a_hold_be_left() {
    let mut fixture = Fixture::new().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    let of = |holder: &str| format!("{{L}}:{holder}:rwlock_timeout:1");
    for holder in [U1, U2] {
        let args = [holder, "1", "30000", "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    let args = [U1, "1", "30000", "0"];
    assert_eq!(fixture.run("reentrant_acquire", &["M"], &args).await, HELD);
    fixture.fill().await;
    assert_eq!(fixture.keep("rw_keep", &["L"], U1, "9000").await, DONE);
    fixture.is_kept_for(&of(U1), 9_000).await;
    fixture.keep("keep", &["M"], U1, "9000").await;
    fixture.is_kept_for("M", 9_000).await;
}

#[tokio::test]
async fn a_reader_that_is_left_does_not_take_the_lease_of_another_from_a_lock_without_one() {
    let mut fixture = Fixture::new().await;
    let keys = ["L", "lockset_rw_waiting:{L}"];
    for (holder, lease) in [(U1, "30000"), (U2, "20000")] {
        let args = [holder, "1", lease, "0", "1", "0", "0"];
        assert_eq!(fixture.run("read_acquire", &keys, &args).await, HELD);
    }
    fixture.make(&["PERSIST", "L"]).await;
    fixture.keep("rw_keep", &["L"], U1, "2000").await;
    fixture.is_kept_for("L", 20_000).await;
}
