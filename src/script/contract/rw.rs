//! The read-write lock: its trace, the leases of readers and writers, and the order between them.

use std::collections::HashSet;

use redis::{Cmd, Value};

use super::fixture::{
    DONE, Fixture, HELD, Keys, NOT_HELD, U1, U1_WRITE, U2, U3, U3_WRITE, U4, U5, U6, U9, UNKNOWN,
    elsewhere, list, near, script, token_of,
};
use crate::conn::error_reply::code;
use crate::engine::counts::Mode;
use crate::script::reply;

pub(super) const WAITING: &str = "lockset_rw_waiting:{W}";
pub(super) const TOKEN: &str = "redisson_lock_token:{W}";
pub(super) const CHANNEL: &str = "redisson_rwlock:{W}";
pub(super) const KEYS: [&str; 2] = ["W", WAITING];

pub(super) fn lease_of(holder: &str, hold: u32) -> String {
    format!("{{W}}:{holder}:rwlock_timeout:{hold}")
}

fn try_write(holder: &str) -> Cmd {
    script("write_acquire", &KEYS, &[holder, "30000", "0", "0"])
}

fn rw_release(holder: &str) -> Cmd {
    script("rw_release", &KEYS, &release_args(holder))
}

pub(super) fn release_args(holder: &str) -> [&str; 3] {
    [holder, CHANNEL, "PUBLISH"]
}

impl Fixture {
    pub(super) async fn read(&mut self, holder: &str, lease: &str) -> Value {
        self.read_waiting(holder, lease, "0").await
    }

    /// Asks to read, and is recorded as waiting for this many ms.
    async fn read_waiting(&mut self, holder: &str, lease: &str, heartbeat: &str) -> Value {
        let args = [holder, lease, "0", heartbeat, "0"];
        self.run("read_acquire", &KEYS, &args).await
    }

    /// Asks to write, and waits. New readers let a waiting writer go first.
    pub(super) async fn write(&mut self, holder: &str) -> Value {
        let args = [holder, "30000", "0", "3000"];
        self.run("write_acquire", &KEYS, &args).await
    }

    pub(super) async fn try_write(&mut self, holder: &str) -> Value {
        let args = [holder, "30000", "0", "0"];
        self.run("write_acquire", &KEYS, &args).await
    }

    pub(super) async fn rw_release(&mut self, holder: &str) -> Value {
        self.run("rw_release", &KEYS, &release_args(holder)).await
    }

    pub(super) async fn downgrade(&mut self, holder: &str) -> Value {
        let args = [holder, "1000", CHANNEL, "PUBLISH"];
        self.run("rw_downgrade", &KEYS, &args).await
    }

    /// Redisson writes this when a reader enters again: a second lease of its own.
    async fn java_reads_twice(&mut self, holder: &str, lease: &str) {
        self.make(&["HSET", "W", "mode", "read", holder, "2"]).await;
        self.make(&["PEXPIRE", "W", lease]).await;
        for hold in [1, 2] {
            let key = lease_of(holder, hold);
            self.make(&["SET", &key, "1", "PX", lease]).await;
        }
    }

    pub(super) async fn renew_rw(&mut self, holder: &str, lease: &str) -> Value {
        self.run("rw_renew", &["W"], &[holder, lease]).await
    }

    async fn seen(&mut self) -> Vec<(String, Mode, u32)> {
        let reply = self.run("rw_inspect", &["W"], &[]).await;
        let seen = reply::inspected_all(&reply).unwrap().into_iter();
        let mut seen: Vec<_> = seen
            .map(|hold| (hold.holder.id, hold.mode, hold.holder.hold_count))
            .collect();
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        seen
    }

    /// Ends the lease of this read hold.
    async fn reader_dies(&mut self, holder: &str) {
        self.make(&["DEL", &lease_of(holder, 1)]).await;
    }
}

/// The content of the hash: the mode, then the fields in order.
pub(super) fn hash(keys: &Keys) -> Vec<(&str, &str)> {
    let words = keys.get("W").map(Vec::as_slice).unwrap_or_default();
    let mut fields: Vec<_> = words.chunks(2).map(|two| (&*two[0], &*two[1])).collect();
    fields.sort_unstable_by_key(|(field, _)| (*field != "mode", *field));
    fields
}

/// The messages that wake all of Redisson's waiters: a 1 for waiters that sleep, and a 00 for a waiter that does not
/// sleep yet. lockset ignores the 00.
pub(super) fn all_told(channel: &str) -> [String; 2] {
    ["1", "00"].map(|payload| format!("{channel} {payload}"))
}

/// A reader whose lease the user may not read counts neither as alive nor as moving to another node.
#[tokio::test]
async fn a_writer_that_may_not_see_the_leases_of_readers_is_told_so() {
    for (rights, may_see_the_living) in [
        ("resetkeys ~W ~lockset_rw_waiting:*", false),
        ("-exists", true),
    ] {
        for is_alive in [true, false] {
            let mut fixture = Fixture::new().await;
            assert_eq!(fixture.read(U1, "30000").await, HELD);
            assert_eq!(fixture.read(U3, "30000").await, HELD);
            if !is_alive {
                fixture.reader_dies(U1).await;
                fixture.reader_dies(U3).await;
            }
            let before = fixture.keys().await;
            let mut user = fixture.user(rights).await;
            let args = [U2, "30000", "0", "0"];
            let said = user.run("write_acquire", &KEYS, &args).await;
            assert_eq!(fixture.keys().await, before, "{rights}");
            if is_alive && may_see_the_living {
                assert!(elsewhere(&said.unwrap(), 30_000), "{rights}");
                continue;
            }
            let error = said.unwrap_err();
            assert_eq!(code(&error), Some("NOPERM-INSIDE"), "{rights}: {error}");
        }
    }
}

/// Rights are by key. The death of one visible reader says nothing about a reader that the user may not see.
#[tokio::test]
async fn a_reader_that_may_not_be_seen_is_not_taken_for_dead_like_another() {
    let rights = format!("resetkeys ~W ~lockset_rw_waiting:* ~{{W}}:{U1}:* ~{{W}}:{U2}:*");
    let mut fixture = Fixture::new().await;
    for holder in [U1, U2, U3] {
        assert_eq!(fixture.read(holder, "30000").await, HELD);
    }
    fixture.reader_dies(U1).await;
    let mut user = fixture.user(&rights).await;
    let args = [U1, "30000", "0", "0"];
    // The script samples three of the four fields at random.
    let mut left: Vec<String> = Vec::new();
    for _ in 0..100 {
        let refused = user.run("write_acquire", &KEYS, &args).await;
        assert!(elsewhere(&refused.unwrap(), 30_000));
        let keys = fixture.keys().await;
        left = hash(&keys).iter().map(|held| held.0.to_owned()).collect();
        if left.len() < 4 {
            break;
        }
    }
    assert_eq!(left, ["mode", U2, U3], "only the dead reader is gone");
    fixture.reader_dies(U2).await;
    let before = fixture.keys().await;
    let error = user.run("write_acquire", &KEYS, &args).await.unwrap_err();
    assert_eq!(code(&error), Some("NOPERM-INSIDE"), "{error}");
    assert_eq!(fixture.keys().await, before, "nothing changes");
}

/// The trace of Redisson's `RReadWriteLock`, step by step, with our own replies and without its defects: leases do
/// not add up, and a writer that becomes a reader wakes other readers.
#[tokio::test]
async fn the_read_write_trace() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for _ in 0..2 {
        assert_eq!(fixture.try_write(U1).await, HELD);
        let keys = fixture.keys().await;
        assert_eq!(hash(&keys), [("mode", "write"), (U1_WRITE, "1")]);
        assert_eq!(keys.len(), 1);
    }
    assert!(
        near(fixture.pttl_of("W").await, 30_000),
        "leases do not add up"
    );
    assert!(elsewhere(&fixture.try_write(U2).await, 30_000));
    assert!(elsewhere(&fixture.read(U2, "30000").await, 30_000));
    let seen = fixture.seen().await;
    assert_eq!(seen, [(U1.to_owned(), Mode::Exclusive, 1)]);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    // The end of writing is announced once, although its owner continues to read.
    assert_eq!(fixture.downgrade(U1).await, Value::Int(1));
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    assert_eq!(fixture.downgrade(U1).await, DONE, "a repeat");
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert_eq!(hash(&fixture.keys().await), [("mode", "read"), (U1, "1")]);
    assert_eq!(fixture.keys().await[&lease_of(U1, 1)], ["1"]);
    assert!(near(fixture.pttl_of(&lease_of(U1, 1)).await, 30_000));
    assert!(near(fixture.pttl_of("W").await, 30_000));

    // Other readers enter beside it, and no writer does.
    for _ in 0..2 {
        assert_eq!(fixture.read(U2, "60000").await, HELD);
        assert!(near(fixture.pttl_of("W").await, 60_000));
        assert!(near(fixture.pttl_of(&lease_of(U2, 1)).await, 60_000));
        assert!(near(fixture.pttl_of(&lease_of(U1, 1)).await, 30_000));
    }
    assert!(elsewhere(&fixture.try_write(U3).await, 60_000));
    assert_eq!(fixture.read(U2, "1000").await, HELD);
    assert!(near(fixture.pttl_of("W").await, 60_000), "never shortened");
    assert!(near(fixture.pttl_of(&lease_of(U2, 1)).await, 60_000));
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    // The other readers' leases are shorter than the waiters were told.
    assert_eq!(fixture.rw_release(U2).await, DONE);
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    assert_eq!(fixture.rw_release(U2).await, NOT_HELD);
    assert_eq!(hash(&fixture.keys().await), [("mode", "read"), (U1, "1")]);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert_eq!(fixture.rw_release(U1).await, Value::Int(1));
    assert_eq!(
        fixture.messages(&mut subscriber).await,
        [format!("{CHANNEL} 0")]
    );
    assert_eq!(fixture.rw_release(U1).await, NOT_HELD);
    assert_eq!(
        fixture.messages(&mut subscriber).await,
        [""; 0],
        "a repeat announces nothing"
    );

    fixture.try_write(U1).await;
    assert_eq!(fixture.rw_release(U9).await, NOT_HELD, "no holder");
    assert_eq!(fixture.rw_release(U1).await, Value::Int(1));
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_downgrade_never_creates_a_hold() {
    let mut fixture = Fixture::new().await;
    for held_by in ["nobody", "a reader", "a writer"] {
        match held_by {
            "a reader" => drop(fixture.read(U2, "30000").await),
            "a writer" => drop(fixture.try_write(U2).await),
            _ => {}
        }
        let before = fixture.keys().await;
        assert_eq!(fixture.downgrade(U1).await, NOT_HELD, "{held_by}");
        assert_eq!(fixture.keys().await, before, "{held_by}");
        fixture.rw_release(U2).await;
    }
}

/// Redisson gives each hold of a reader a lease of its own. The reader counts as long as one of these leases lives.
#[tokio::test]
async fn a_reader_of_redissons_that_entered_twice_is_alive_by_either_lease() {
    let mut fixture = Fixture::new().await;
    fixture.java_reads_twice(U1, "30000").await;
    fixture.make(&["DEL", &lease_of(U1, 1)]).await;
    assert!(elsewhere(&fixture.try_write(U2).await, 30_000));
    assert_eq!(fixture.read(U3, "60000").await, HELD);
    assert_eq!(fixture.rw_release(U3).await, DONE, "the other one reads on");
    assert!(near(fixture.pttl_of("W").await, 60_000) || near(fixture.pttl_of("W").await, 30_000));
    fixture.make(&["DEL", &lease_of(U1, 2)]).await;
    assert_eq!(fixture.try_write(U2).await, HELD);
}

/// The reader with the longest lease leaves, and the lock gets the longest lease of the others.
#[tokio::test]
async fn a_lock_lives_as_long_as_the_longest_reader() {
    let mut fixture = Fixture::new().await;
    fixture.read(U1, "60000").await;
    fixture.read(U2, "5000").await;
    fixture.read(U3, "1000").await;
    assert!(near(fixture.pttl_of("W").await, 60_000));
    // A reader with a shorter lease changes nothing when it leaves.
    assert_eq!(fixture.rw_release(U3).await, DONE);
    assert!(near(fixture.pttl_of("W").await, 60_000));
    // The renewed read hold ends no earlier than the lock, however slow the server is.
    fixture.renew_rw(U1, "61000").await;
    assert_eq!(fixture.rw_release(U1).await, DONE);
    assert!(near(fixture.pttl_of("W").await, 5_000));
    assert!(elsewhere(&fixture.try_write(U4).await, 5_000));
    // An operator removed the lease of the lock: it gets the lease of the reader that is left.
    fixture.read(U1, "5000").await;
    fixture.make(&["PERSIST", "W"]).await;
    assert_eq!(fixture.rw_release(U1).await, DONE);
    assert!(near(fixture.pttl_of("W").await, 5_000));
}

/// A renewal on another connection may have come first, unknown to the caller.
#[tokio::test]
async fn a_writer_that_reads_now_keeps_the_lease_it_had() {
    let mut fixture = Fixture::new().await;
    fixture.try_write(U1).await;
    assert_eq!(fixture.renew_rw(U1, "60000").await, list(&[1]));
    fixture.downgrade(U1).await;
    for key in ["W", &lease_of(U1, 1)] {
        assert!(near(fixture.pttl_of(key).await, 60_000), "{key}");
    }
    assert!(elsewhere(&fixture.try_write(U2).await, 60_000));
}

#[tokio::test]
async fn dead_readers_hold_nobody_up() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.read(U1, "60000").await;
    fixture.read(U2, "60000").await;
    fixture.reader_dies(U1).await;
    assert!(elsewhere(&fixture.try_write(U3).await, 60_000));
    let seen = fixture.seen().await;
    assert_eq!(seen, [(U2.to_owned(), Mode::Shared, 1)]);
    // The last living reader leaves, and the dead ones go with it.
    fixture.renew_rw(U2, "61000").await;
    assert_eq!(fixture.rw_release(U2).await, Value::Int(1));
    assert_eq!(
        fixture.messages(&mut subscriber).await,
        [format!("{CHANNEL} 0")]
    );
    assert_eq!(fixture.server.keys().await, [""; 0]);
    // A writer removes dead readers as well.
    fixture.read(U1, "60000").await;
    fixture.reader_dies(U1).await;
    assert_eq!(fixture.try_write(U3).await, HELD);
    let keys = fixture.keys().await;
    assert_eq!(hash(&keys), [("mode", "write"), (U3_WRITE, "1")]);
    assert!(
        near(fixture.pttl_of("W").await, 30_000),
        "the writer's own lease"
    );
    assert_eq!(fixture.renew_rw(U1, "60000").await, list(&[0]));
}

/// New readers let a waiting writer go first. Readers that waited when the last writer left enter before it.
#[tokio::test]
async fn readers_and_writers_take_turns() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.read(U1, "30000").await;
    for _ in 0..2 {
        assert!(elsewhere(&fixture.write(U2).await, 30_000));
        assert_eq!(fixture.keys().await[WAITING], [U2]);
        assert!(near(fixture.pttl_of(WAITING).await, 3_000));
    }
    assert!(elsewhere(&fixture.read(U3, "30000").await, 30_000));
    assert_eq!(fixture.read(U1, "30000").await, HELD, "it reads");
    // The writer stops waiting: readers are notified once.
    assert_eq!(fixture.rw_release(U2).await, DONE);
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    assert_eq!(fixture.rw_release(U2).await, NOT_HELD);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert!(!fixture.keys().await.contains_key(WAITING));
    assert_eq!(fixture.read(U3, "30000").await, HELD);
    fixture.rw_release(U3).await;

    // A granted writer no longer waits, and another writer joins.
    fixture.write(U2).await;
    fixture.rw_release(U1).await;
    assert_eq!(
        fixture.read(U3, "30000").await,
        UNKNOWN,
        "free, but not for it"
    );
    assert_eq!(fixture.write(U2).await, HELD);
    assert!(!fixture.keys().await.contains_key(WAITING));
    fixture.write(U4).await;
    // A reader that does not wait is not recorded. One that waits is, until it leaves.
    assert!(elsewhere(&fixture.read(U6, "30000").await, 30_000));
    for holder in [U3, U6] {
        let refused = fixture.read_waiting(holder, "30000", "3000").await;
        assert!(elsewhere(&refused, 30_000));
    }
    assert_eq!(fixture.keys().await[WAITING], [U3, U4, U6]);
    assert_eq!(fixture.rw_release(U6).await, DONE, "it stops waiting");
    fixture.messages(&mut subscriber).await;
    // The free lock is kept for a moment for the reader that waited, and for no other caller.
    let [_, waiting, new, writer, waited] = fixture
        .at_once([
            rw_release(U2),
            Cmd::zrange(WAITING, 0, -1),
            script("read_acquire", &KEYS, &[U5, "30000", "0", "0", "0"]),
            script("write_acquire", &KEYS, &[U4, "30000", "0", "3000"]),
            script("read_acquire", &KEYS, &[U3, "30000", "0", "3000", "0"]),
        ])
        .await;
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    let waiting: HashSet<String> = redis::from_redis_value(waiting).unwrap();
    assert_eq!(waiting, ["done", U3, U4, "turn"].map(str::to_owned).into());
    assert_eq!(new, UNKNOWN, "a new reader");
    match writer {
        Value::Int(left) => assert!((1..=100).contains(&left), "{left}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(waited, HELD);
    assert_eq!(fixture.keys().await[WAITING], ["done", U4]);
    assert!(elsewhere(&fixture.write(U4).await, 30_000));
    assert!(elsewhere(&fixture.read(U5, "30000").await, 30_000));
    // The writer's heartbeat is over.
    fixture.make(&["ZADD", WAITING, "1", U4]).await;
    assert_eq!(fixture.read(U5, "30000").await, HELD);
    assert!(fixture.pttl_of(WAITING).await > 0, "the key expires");
}

/// Entries from before the server's clock was set back keep no caller out until the clock has caught up.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_nobody_out() {
    let mut fixture = Fixture::new().await;
    let ahead = (fixture.now().await + 3_600_000).to_string();
    fixture.make(&["ZADD", WAITING, &ahead, U9]).await;
    assert_eq!(fixture.read(U1, "30000").await, HELD, "a writer");
    fixture.rw_release(U1).await;
    fixture
        .make(&["ZADD", WAITING, &ahead, "done", "0", "turn"])
        .await;
    assert_eq!(fixture.try_write(U2).await, HELD, "a turn of readers");
}

/// A writer's end in the future counts as none: new readers keep waiting for the writer, however often they ask.
#[tokio::test]
async fn a_clock_that_is_set_back_lets_no_reader_go_first() {
    let mut fixture = Fixture::new().await;
    let ahead = (fixture.now().await + 3_600_000).to_string();
    fixture.read(U1, "30000").await;
    fixture.write(U2).await;
    fixture.make(&["ZADD", WAITING, &ahead, "done"]).await;
    for _ in 0..3 {
        assert!(elsewhere(&fixture.read(U3, "30000").await, 30_000));
        let waits = fixture.read_waiting(U4, "30000", "3000").await;
        assert!(elsewhere(&waits, 30_000));
    }
    fixture.rw_release(U1).await;
    assert_eq!(fixture.read(U3, "30000").await, UNKNOWN);
    assert_eq!(fixture.write(U2).await, HELD);
}

/// A reader that asked in the future may be long dead, so no turn is kept for it.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_turn() {
    let mut fixture = Fixture::new().await;
    fixture.try_write(U1).await;
    let ahead = (-(fixture.now().await + 3_600_000)).to_string();
    fixture.make(&["ZADD", WAITING, &ahead, U9]).await;
    fixture.rw_release(U1).await;
    assert_eq!(fixture.keys().await[WAITING], ["done", U9]);
    assert_eq!(fixture.try_write(U2).await, HELD);
}

/// Readers that waited and do not return keep a free lock for a moment only.
#[tokio::test]
async fn a_turn_that_nobody_takes_ends() {
    let mut fixture = Fixture::new().await;
    fixture.write(U1).await;
    fixture.read_waiting(U2, "30000", "3000").await;
    let [_, kept] = fixture.at_once([rw_release(U1), try_write(U3)]).await;
    assert!(matches!(kept, Value::Int(1..=100)), "{kept:?}");
    // Simulates the end of that moment.
    fixture.make(&["ZINCRBY", WAITING, "-101", "done"]).await;
    assert_eq!(fixture.try_write(U3).await, HELD);
    // The reader has not asked for more than three seconds, so it gets no turn.
    fixture.make(&["ZADD", WAITING, "-1", U2]).await;
    fixture.rw_release(U3).await;
    assert_eq!(fixture.try_write(U3).await, HELD);
}

#[tokio::test]
async fn each_side_is_renewed_and_forced_on_its_own() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    let read = ["read", CHANNEL, "PUBLISH"];
    let write = ["write", CHANNEL, "PUBLISH"];
    for side in [read, write] {
        let forced = fixture.run("rw_force_unlock", &["W"], &side).await;
        assert_eq!(forced, DONE, "there is no holder");
    }
    fixture.read(U1, "1000").await;
    fixture.make(&["SET", "foreign", "x"]).await;
    let args = [U1, "60000", U1, "60000", U1, "60000", U9, "1"];
    let keys = ["W", "absent", "foreign", "W"];
    let renewed = fixture.run("rw_renew", &keys, &args).await;
    assert_eq!(renewed, list(&[1, 0, 0, 0]));
    for key in ["W", &lease_of(U1, 1)] {
        assert!(near(fixture.pttl_of(key).await, 60_000), "{key}");
    }
    fixture.renew_rw(U1, "1000").await;
    for key in ["W", &lease_of(U1, 1)] {
        assert!(near(fixture.pttl_of(key).await, 60_000), "{key}: shortened");
    }
    fixture.make(&["DEL", "foreign"]).await;
    assert_eq!(fixture.run("rw_force_unlock", &["W"], &write).await, DONE);
    let forced = fixture.run("rw_force_unlock", &["W"], &read).await;
    assert_eq!(forced, Value::Int(1));
    assert_eq!(fixture.messages(&mut subscriber).await, all_told(CHANNEL));
    assert_eq!(fixture.server.keys().await, [""; 0]);
    assert_eq!(fixture.renew_rw(U1, "60000").await, list(&[0]));

    fixture.try_write(U1).await;
    assert_eq!(fixture.renew_rw(U1, "60000").await, list(&[1]));
    assert!(near(fixture.pttl_of("W").await, 60_000));
    assert_eq!(fixture.run("rw_force_unlock", &["W"], &read).await, DONE);
    let forced = fixture.run("rw_force_unlock", &["W"], &write).await;
    assert_eq!(forced, Value::Int(1));
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_grant_of_either_side_has_its_token() {
    let mut fixture = Fixture::new().await;
    let keys = ["W", WAITING, TOKEN];
    let mut last = 0;
    for script in ["write_acquire", "write_acquire", "read_acquire"] {
        if script == "read_acquire" {
            assert_eq!(fixture.rw_release(U1).await, DONE);
        }
        let args = [U1, "30000", "1", "0", "0"];
        let reply = fixture.run(script, &keys, &args).await;
        let token = token_of(&reply);
        assert!(token > last && token < 1 << 53);
        last = token;
        let kept: String = fixture.ask(&["GET", TOKEN]).await;
        assert_eq!(kept, last.to_string());
    }
}
