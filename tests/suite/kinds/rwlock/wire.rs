//! The keys and messages of the read-write lock are Redisson's.

use lockset::Owner;
use lockset_testkit::{Redisson, within};

use super::{Scene, fields};
use crate::support::SOON;

#[tokio::test]
async fn readers_and_writers_look_like_redissons() {
    for name in ["plain", "with:colons:1", "app:{order}:7", "{a}{b}"] {
        let scene = Scene::named(name).await;
        let [ours] = scene.patient().await;
        let lock = scene.lock(&ours).owner(&Owner::new());
        let mut messages = scene.messages().await;
        let is_lease = |lease: i64| (25_000..=30_000).contains(&lease);

        // Two readers, one of them twice.
        let first = lock.read().await.unwrap();
        let holder = scene.holder().await;
        let (uuid, number) = holder.rsplit_once(':').expect("uuid:number");
        assert!(uuid::Uuid::parse_str(uuid).is_ok(), "{holder}");
        assert!(number.parse::<u64>().is_ok(), "{holder}");
        let second = lock.read().await.unwrap();
        assert_eq!(scene.hash().await, fields("read", &holder, 0, 1));
        let other = scene.lock(&ours).read().await.unwrap();
        let hash = scene.hash().await;
        let stranger = hash
            .keys()
            .find(|field| *field != "mode" && **field != holder)
            .expect("the other reader");
        assert_eq!((hash.len(), &*hash[stranger]), (3, "1"));
        let mut keys = vec![
            name.to_owned(),
            Redisson::read_hold(name, &holder, 1),
            Redisson::read_hold(name, stranger, 1),
        ];
        keys.sort();
        assert_eq!(scene.server.keys().await, keys);
        let braced = match name.contains('{') {
            true => name.to_owned(),
            false => format!("{{{name}}}"),
        };
        assert!(keys.contains(&format!("{braced}:{holder}:rwlock_timeout:1")));
        for key in &keys[1..] {
            if key != name {
                assert_eq!(scene.ask::<String>(&["GET", key]).await, "1");
            }
        }
        for key in &keys {
            let lease = scene.ask(&["PTTL", key]).await;
            assert!(is_lease(lease), "{key}: {lease}");
        }
        // The message comes only after the last reader has left.
        first.release().await.unwrap();
        assert!(is_lease(scene.read_lease(&holder, 1).await));
        other.release().await.unwrap();
        messages.no_more(&scene).await;
        second.release().await.unwrap();
        assert_eq!(messages.next().await, "0");
        assert!(scene.server.keys().await.is_empty());

        // A writer that entered twice.
        let first = lock.write().await.unwrap();
        let second = lock.write().await.unwrap();
        let writer = scene.holder().await;
        assert_ne!(writer, holder, "each hold has an id of its own");
        assert_eq!(scene.hash().await, fields("write", &writer, 1, 0));
        assert!(is_lease(scene.lease().await));
        assert_eq!(scene.server.keys().await, [name]);
        first.release().await.unwrap();
        messages.no_more(&scene).await;

        // It also reads.
        let reader = lock.read().await.unwrap();
        assert_eq!(scene.hash().await, fields("write", &writer, 1, 0));
        assert_eq!(reader.hold_count(), 1);
        reader.release().await.unwrap();
        assert_eq!(scene.hash().await, fields("write", &writer, 1, 0));
        messages.no_more(&scene).await;
        second.release().await.unwrap();
        assert_eq!(messages.next().await, "1");
        messages.no_more(&scene).await;
        drop(messages);
        scene.nothing_left([&ours]).await;
    }
}

/// The record of a waiting writer, in a separate key with a lease.
#[tokio::test]
async fn a_waiting_writer_is_noted_beside_the_hash() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    let before = scene.hash().await;
    let lock = scene.lock(&theirs);
    let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.writers_wait(1).await;
    assert_eq!(scene.hash().await, before);
    let lease: i64 = scene.ask(&["PTTL", &scene.writers()]).await;
    assert!((1..=3_000).contains(&lease), "{lease}");
    assert_eq!(
        scene.writers(),
        format!("lockset_rw_waiting:{{{}}}", scene.name)
    );
    reader.release().await.unwrap();
    let writer = within(SOON, waiter).await.unwrap();
    let exists: i64 = scene.ask(&["EXISTS", &scene.writers()]).await;
    assert_eq!(exists, 0, "it no longer waits");
    writer.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// A key of another type or kind of lock under the same name is left alone.
#[tokio::test]
async fn a_foreign_key_is_left_alone() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    let plain = ours.lock(&scene.name).lock().await.unwrap();
    let before = scene.hash().await;
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(lock.try_write().await.unwrap().is_none());
    for forced in [
        lock.read_side().force_unlock().await,
        lock.write_side().force_unlock().await,
    ] {
        assert!(forced.unwrap_err().is_wrong_type());
    }
    assert_eq!(scene.hash().await, before);
    plain.release().await.unwrap();
    let _: () = scene.ask(&["SET", &scene.name, "x"]).await;
    assert!(lock.read().await.unwrap_err().is_wrong_type());
    assert!(lock.write().await.unwrap_err().is_wrong_type());
    let read = lock.read_side().force_unlock().await;
    assert!(read.unwrap_err().is_wrong_type());
    assert_eq!(scene.ask::<String>(&["GET", &scene.name]).await, "x");
    assert_eq!(scene.server.keys().await, [&*scene.name]);
}
