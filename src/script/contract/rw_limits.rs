//! The read-write lock on full servers, for users with fewer rights, and beside other kinds of locks.

use super::fixture::{DONE, Fixture, NOT_HELD, U1, U2, U3, U8, U9, User, elsewhere, list, near};
use super::rw::{CHANNEL, KEYS, TOKEN, WAITING, hash, lease_of, release_args};
use crate::conn::error_reply::code;

#[tokio::test]
async fn a_full_server_lets_readers_and_writers_go() {
    let mut fixture = Fixture::new().await;
    fixture.try_write(U1).await;
    fixture.write(U2).await;
    let before = fixture.keys().await;
    fixture.fill().await;
    let args = [U3, "30000", "0", "3000"];
    let refused = fixture.refused("write_acquire", &KEYS, &args).await;
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert_eq!(fixture.keys().await, before, "nothing is half done");
    // A writer that already waits keeps its place.
    let noted = fixture.score(WAITING, U2).await;
    let args = [U2, "30000", "0", "60000"];
    fixture.run("write_acquire", &KEYS, &args).await;
    assert!(fixture.score(WAITING, U2).await > noted + 30_000);
    assert_eq!(fixture.renew_rw(U1, "60000").await, list(&[1]));
    // There is no subscriber, so the reply counts none.
    assert_eq!(fixture.downgrade(U1).await, DONE);
    assert!(near(fixture.pttl_of(&lease_of(U1, 1)).await, 60_000));
    assert_eq!(hash(&fixture.keys().await), [("mode", "read"), (U1, "1")]);
    assert_eq!(fixture.rw_release(U2).await, DONE);
    let args = [U3, "30000", "0", "60000", "0"];
    let refused = fixture.refused("read_acquire", &KEYS, &args).await;
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert_eq!(hash(&fixture.keys().await), [("mode", "read"), (U1, "1")]);
    assert_eq!(fixture.rw_release(U1).await, DONE);
    assert!(!fixture.keys().await.contains_key("W"));
}

/// Scripts detect a foreign key before their first write. A hold can still be released.
#[tokio::test]
async fn a_foreign_key_beside_a_read_write_lock_is_not_touched() {
    let mut fixture = Fixture::new().await;
    for foreign in ["W", WAITING, TOKEN] {
        for script in ["read_acquire", "write_acquire"] {
            let _: () = fixture.ask(&["FLUSHALL"]).await;
            let value = ["RPUSH", foreign, "theirs"];
            fixture.make(&value).await;
            let before = fixture.keys().await;
            let args = [U1, "30000", "1", "0", "0"];
            let keys = ["W", WAITING, TOKEN];
            let error = fixture.refused(script, &keys, &args).await;
            assert_eq!(code(&error), Some("WRONGTYPE"), "{foreign}: {error}");
            assert_eq!(fixture.keys().await, before, "{foreign}, {script}");
        }
    }
    for mode in ["read", "write"] {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        match mode {
            "read" => drop(fixture.read(U1, "30000").await),
            _ => drop(fixture.try_write(U1).await),
        }
        fixture.make(&["SET", WAITING, "theirs"]).await;
        assert_eq!(fixture.rw_release(U1).await, DONE, "{mode}");
        assert_eq!(fixture.server.keys().await, [WAITING]);
    }
}

async fn anything(user: &mut User, name: &str, args: &[&str]) {
    // Ignores an error about the right. The test checks the state that is left.
    let _ = user.run(name, &KEYS, args).await;
}

/// With any one right missing, there is no hold without a lease, and no lock without a holder.
#[tokio::test]
async fn a_missing_right_leaves_no_half_of_a_read_or_write_hold() {
    let mut fixture = Fixture::new().await;
    for right in [
        "hset", "hdel", "hmget", "hget", "hexists", "hlen", "hgetall", "pttl", "pexpire", "del",
        "set", "zadd", "zrem", "zscore", "zcount", "exists", "time", "publish",
    ] {
        let mut user = fixture.user(&format!("-{right}")).await;
        for script in ["read_acquire", "write_acquire"] {
            for waits in [false, true] {
                let _: () = fixture.ask(&["FLUSHALL"]).await;
                if waits {
                    // Another writer waits, and the lock is free.
                    fixture.read(U8, "30000").await;
                    fixture.write(U9).await;
                    fixture.rw_release(U8).await;
                }
                let args = [U1, "30000", "0", "60000", "0"];
                anything(&mut user, script, &args).await;
                let what = format!("{right}, {script}, {waits}");
                assert_ne!(fixture.pttl_of("W").await, -1, "{what}: a hold for ever");
                anything(&mut user, "rw_release", &release_args(U1)).await;
                if hash(&fixture.keys().await).len() == 1 {
                    panic!("{what}: a lock without a holder");
                }
                for key in fixture.server.keys().await {
                    assert_ne!(fixture.pttl_of(&key).await, -1, "{what}: {key} for ever");
                }
            }
        }
    }
}

/// A hash of another kind looks held, or is refused. Locks of two kinds are never held at once.
#[tokio::test]
async fn kinds_that_share_a_name_exclude_each_other() {
    let mut fixture = Fixture::new().await;
    fixture.make(&["HSET", "W", U1, "1"]).await;
    fixture.make(&["PEXPIRE", "W", "30000"]).await;
    let before = fixture.keys().await;
    assert!(elsewhere(&fixture.read(U2, "30000").await, 30_000));
    assert!(elsewhere(&fixture.try_write(U2).await, 30_000));
    for side in ["read", "write"] {
        let args = [side, CHANNEL, "PUBLISH"];
        let error = fixture.refused("rw_force_unlock", &["W"], &args).await;
        assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
    }
    let error = fixture.refused("rw_inspect", &["W"], &[]).await;
    assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
    assert_eq!(fixture.rw_release(U2).await, NOT_HELD);
    assert_eq!(fixture.keys().await, before);

    for mode in ["read", "write"] {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        match mode {
            "read" => drop(fixture.read(U1, "30000").await),
            _ => drop(fixture.try_write(U1).await),
        }
        let before = fixture.keys().await;
        let args = [U2, "30000", "0"];
        let reply = fixture.run("reentrant_acquire", &["W"], &args).await;
        assert!(elsewhere(&reply, 30_000), "{mode}: {reply:?}");
        let keys = ["W", "queue", "timeouts", "alive"];
        let args = [U2, "30000", "0", "0", "wake", "channel", "PUBLISH"];
        let reply = fixture.run("fair_acquire", &keys, &args).await;
        assert!(elsewhere(&reply, 30_000), "{mode}: {reply:?}");
        let args = ["channel", "PUBLISH"];
        for (script, keys) in [
            ("reentrant_force_unlock", &keys[..1]),
            ("fair_force_unlock", &keys[..]),
        ] {
            let error = fixture.refused(script, keys, &args).await;
            assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
        }
        let args = [U2, "channel", "PUBLISH"];
        let reply = fixture.run("reentrant_release", &["W"], &args).await;
        assert_eq!(reply, NOT_HELD);
        let renewed = fixture.run("renew", &["W"], &[U2, "60000"]).await;
        assert_eq!(renewed, list(&[0]));
        assert_eq!(fixture.keys().await, before, "{mode}");
    }
}
