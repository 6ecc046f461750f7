//! Hashes that are not locks: application data under the name of a lock is refused and left alone.

use std::time::Duration;

use lockset::Owner;
use lockset_operator::ReleaseHolder;
use lockset_testkit::{Redisson, Server, eventually, within};
use redis::aio::MultiplexedConnection;

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{LEASE, SOON, client, idle, keys_left, patient_client};

/// A holder id in Redisson's format.
const HOLDER: &str = "8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:57";

/// Hashes that applications may have, with or without a lease. `k` is the key.
fn hashes() -> Vec<String> {
    let persisted = format!("HSET k {HOLDER} 1");
    let stray = format!("HSET k {HOLDER} 1 state shipped; PEXPIRE k 60000");
    let plain = [
        "HSET k state shipped",
        "HSET k state shipped; PEXPIRE k 60000",
        "HSET k mode read",
        "HSET k mode read; PEXPIRE k 60000",
        "HSET k mode read lang 1; PEXPIRE k 60000",
        "HSET k mode write lang 1; PEXPIRE k 60000",
        "HSET k mode read lang 1",
        "HSET k sku:7 2; PEXPIRE k 60000",
        "HSET k sku:7 2 sku:8 1 mode read; PEXPIRE k 60000",
        "HSET k 8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a 1; PEXPIRE k 60000",
        "HSET k 8b2d-3f04-4c52-9a7e-0d1f:57 1; PEXPIRE k 60000",
    ];
    plain
        .map(str::to_owned)
        .into_iter()
        .chain([persisted, stray])
        .collect()
}

async fn ask<T: redis::FromRedisValue>(
    admin: &mut MultiplexedConnection,
    line: &str,
    key: &str,
) -> T {
    let mut command = redis::Cmd::new();
    for word in line.split_whitespace() {
        command.arg(if word == "k" { key } else { word });
    }
    command.query_async(admin).await.unwrap()
}

async fn make(admin: &mut MultiplexedConnection, hash: &str, key: &str) {
    for line in hash.split(';') {
        let _: redis::Value = ask(admin, line, key).await;
    }
}

/// The content of a key, and whether it has a lease.
async fn seen(admin: &mut MultiplexedConnection, key: &str) -> (Vec<u8>, bool) {
    let lease: i64 = ask(admin, "PTTL k", key).await;
    (ask(admin, "DUMP k", key).await, lease == -1)
}

async fn a_foreign_hash_is_refused_and_left_alone<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    for name in P::names("k") {
        for hash in hashes() {
            make(&mut admin, &hash, &name).await;
            let before = seen(&mut admin, &name).await;
            for lock in [P::of(&client, "k"), P::of(&client, "k").fenced()] {
                let errors = [
                    within(SOON, lock.lock()).await.err(),
                    lock.try_lock().await.err(),
                    within(SOON, lock.try_lock_for(SOON)).await.err(),
                    lock.is_locked().await.err(),
                    lock.force_unlock().await.err(),
                ];
                for (verb, error) in errors.into_iter().enumerate() {
                    let error = error.unwrap_or_else(|| panic!("{hash}: no error, verb {verb}"));
                    assert!(
                        error.is_wrong_type() && !error.is_transient(),
                        "{hash}: {error}"
                    );
                    assert!(names_it::<P>("k", error.lock_name()), "{error}");
                }
            }
            idle(&client).await;
            assert_eq!(seen(&mut admin, &name).await, before, "{hash}");
            assert_eq!(keys_left(&server).await, [&*name], "{hash}");
            let _: i64 = ask(&mut admin, "DEL k", &name).await;
        }
    }
}

/// The script looks at three fields, however many the hash has.
async fn a_hash_of_many_fields_is_refused<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let name = &P::names("k")[0];
    let mut fill = redis::cmd("HSET");
    fill.arg(name).arg(&["mode", "read"]);
    for field in 0..5_000 {
        fill.arg(format!("user:{field}")).arg(1);
    }
    let _: i64 = fill.query_async(&mut admin).await.unwrap();
    let _: i64 = ask(&mut admin, "PEXPIRE k 60000", name).await;
    let lock = P::of(&client, "k");
    server.reset_stats().await;
    assert!(lock.try_lock().await.expect_err("an error").is_wrong_type());
    assert!(
        lock.is_locked()
            .await
            .expect_err("an error")
            .is_wrong_type()
    );
    assert!(
        lock.force_unlock()
            .await
            .expect_err("an error")
            .is_wrong_type()
    );
    let stats = server.commandstats().await;
    for all in ["hgetall", "hkeys"] {
        assert!(!stats.contains_key(all), "{stats:?}");
    }
    assert_eq!(ask::<i64>(&mut admin, "HLEN k", name).await, 5_001);
}

/// An application overwrites a held lock: the holder is notified, and its release leaves the data
/// alone.
async fn a_hash_in_the_place_of_a_hold_is_not_touched<P: Primitive>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let mut admin = server.admin().await;
    for name in P::names("k") {
        for renewed in [false, true] {
            let guard = P::of(&client, "k").lock().await.unwrap();
            let _: i64 = ask(&mut admin, "DEL k", &name).await;
            make(&mut admin, "HSET k state shipped", &name).await;
            let before = seen(&mut admin, &name).await;
            if renewed {
                within(LEASE * 5, guard.lost()).await;
            }
            let error = guard.release().await.expect_err("it is not held");
            assert!(error.is_wrong_type() || error.is_not_held(), "{error}");
            idle(&client).await;
            assert_eq!(seen(&mut admin, &name).await, before);
            let _: () = ask(&mut admin, "FLUSHALL", "").await;
        }
    }
}

for_every_primitive! {"current_thread":
    a_foreign_hash_is_refused_and_left_alone
    a_hash_of_many_fields_is_refused
    a_hash_in_the_place_of_a_hold_is_not_touched
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_foreign_hash_is_refused_and_left_alone
    a_hash_of_many_fields_is_refused
    a_hash_in_the_place_of_a_hold_is_not_touched
}

/// A holder id could name any field: force-unlocking a holder must not delete an application's
/// data.
#[tokio::test]
async fn only_holders_of_locks_are_force_unlocked() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let (plain, fair, rw) = (client.lock("k"), client.fair_lock("k"), client.rw_lock("k"));
    let more = [
        "HSET k views 5 title x body y",
        "HSET k views 1 title x; PEXPIRE k 60000",
    ];
    for hash in hashes().into_iter().chain(more.map(str::to_owned)) {
        make(&mut admin, &hash, "k").await;
        let before = seen(&mut admin, "k").await;
        let mut holders: Vec<String> = ask(&mut admin, "HKEYS k", "k").await;
        holders.push(HOLDER.to_owned());
        for holder in holders {
            for taken in [
                plain.release_holder(&holder).await,
                fair.release_holder(&holder).await,
                rw.release_holder(&holder).await,
            ] {
                let error = taken.expect_err(&hash);
                assert!(error.is_wrong_type(), "{hash}, {holder}: {error}");
            }
            assert_eq!(seen(&mut admin, "k").await, before, "{hash}, {holder}");
        }
        let _: i64 = ask(&mut admin, "DEL k", "k").await;
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// A writer that also reads is one holder, under either of its fields.
#[tokio::test]
async fn a_writer_that_also_reads_is_force_unlocked_entirely() {
    let server = Server::start();
    let (ours, operator) = (
        client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let lock = ours.rw_lock("k").owner(&Owner::new());
    for suffix in ["", ":write"] {
        let writer = lock.write().await.unwrap();
        let reader = lock.read().await.unwrap();
        let id = format!("{}{suffix}", writer.holder_id());
        let others = operator.rw_lock("k");
        assert!(others.try_read().await.unwrap().is_none());
        assert!(others.release_holder(&id).await.unwrap());
        assert!(!others.release_holder(&id).await.unwrap(), "once");
        drop(others.try_write().await.unwrap().expect("it is free"));
        within(LEASE * 5, writer.lost()).await;
        within(LEASE * 5, reader.lost()).await;
    }
}

/// The lease is removed by hand: other clients do not take the key for a lock, and the holder's
/// next renewal restores the lease.
#[tokio::test]
async fn a_lock_without_a_lease_is_healed_by_its_holder() {
    let server = Server::start();
    let (ours, theirs) = (
        client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let mut admin = server.admin().await;
    let (plain, fair, rw) = (ours.lock("a"), ours.fair_lock("b"), ours.rw_lock("c"));
    let guards = (
        plain.lock().await.unwrap(),
        fair.lock().await.unwrap(),
        rw.read().await.unwrap(),
    );
    for name in ["a", "b", "c"] {
        let _: i64 = ask(&mut admin, "PERSIST k", name).await;
    }
    eventually(SOON, "all have a lease again", async || {
        let mut healed = true;
        for name in ["a", "b", "c"] {
            healed &= ask::<i64>(&mut admin.clone(), "PTTL k", name).await > 0;
        }
        healed
    })
    .await;
    assert!(theirs.lock("a").try_lock().await.unwrap().is_none());
    assert!(theirs.fair_lock("b").try_lock().await.unwrap().is_none());
    assert!(theirs.rw_lock("c").try_write().await.unwrap().is_none());
    guards.0.release().await.unwrap();
    guards.1.release().await.unwrap();
    guards.2.release().await.unwrap();
}

/// All of Redisson's holder formats are recognized: threads, negative ids, transactions.
#[tokio::test]
async fn every_holder_of_redisson_is_known() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let peer = Redisson::connect(&server).await;
    let lease = Duration::from_secs(60);
    assert_eq!(peer.lock_acquire("k", 57, lease).await, None);
    assert!(client.lock("k").try_lock().await.unwrap().is_none());
    assert!(client.fair_lock("k").try_lock().await.unwrap().is_none());
    assert!(client.lock("k").force_unlock().await.unwrap());
    let transaction = format!("{HOLDER}:9f86d081884c7d659a2feaa0c55ad015");
    let negative = HOLDER.replace(":57", ":-57");
    let upper = HOLDER.to_uppercase();
    for holder in [HOLDER, &transaction, &negative, &upper] {
        for (fields, mode) in [
            (vec![(holder.to_owned(), "1")], None),
            (
                vec![("mode".to_owned(), "read"), (holder.to_owned(), "2")],
                Some("read"),
            ),
            (
                vec![
                    ("mode".to_owned(), "write"),
                    (format!("{holder}:write"), "1"),
                ],
                Some("write"),
            ),
        ] {
            let mut hset = redis::cmd("HSET");
            let _: i64 = hset
                .arg("k")
                .arg(&fields)
                .query_async(&mut admin)
                .await
                .unwrap();
            let _: i64 = ask(&mut admin, "PEXPIRE k 60000", "k").await;
            if mode == Some("read") {
                let lease = "SET k 1 PX 60000".to_owned();
                let key = Redisson::read_hold("k", holder, 1);
                let _: () = ask(&mut admin, &lease, &key).await;
            }
            assert!(
                client.lock("k").try_lock().await.unwrap().is_none(),
                "{fields:?}"
            );
            assert!(
                client.rw_lock("k").try_write().await.unwrap().is_none(),
                "{fields:?}"
            );
            let read = client.rw_lock("k").try_read().await.unwrap();
            assert_eq!(read.is_some(), mode == Some("read"), "{fields:?}");
            let _: () = ask(&mut admin, "FLUSHALL", "").await;
        }
    }
}
