//! The hold counts of an owner with read and write holds, in every order.

use std::time::{Duration, Instant};

use lockset::{Owner, ReadGuard, Result, WriteGuard};
use lockset_testkit::within;

use super::{Scene, fields};
use crate::support::{BY_MESSAGE, SOON, took_less};

enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    fn hold_count(&self) -> u32 {
        match self {
            Self::Read(guard) => guard.hold_count(),
            Self::Write(guard) => guard.hold_count(),
        }
    }
}

fn orders(of: usize) -> Vec<Vec<usize>> {
    let Some(last) = of.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let shorter = orders(last).into_iter();
    let longer = shorter.flat_map(|order| {
        (0..of).map(move |place| {
            let mut order = order.clone();
            order.insert(place, last);
            order
        })
    });
    longer.collect()
}

#[tokio::test]
async fn nested_in_every_order() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let stranger = scene.lock(&theirs);
    for taken in ["wr", "wwr", "wrw", "wrr", "rr"] {
        for order in orders(taken.len()) {
            let owner = Owner::new();
            let lock = scene.lock(&ours).owner(&owner);
            let mut held = Vec::new();
            for side in taken.chars() {
                held.push(Some(match side {
                    'w' => Held::Write(lock.write().await.unwrap()),
                    _ => Held::Read(lock.read().await.unwrap()),
                }));
            }
            let holder = scene.holder().await;
            for index in std::iter::once(None).chain(order.iter().map(Some)) {
                if let Some(index) = index {
                    let guard = held[*index].take().expect("each once");
                    guard.release().await.unwrap();
                }
                let case = format!("{taken} released in order {order:?}, after {index:?}");
                let left = || held.iter().flatten();
                let writes = left().filter(|guard| matches!(guard, Held::Write(_)));
                let writes = u32::try_from(writes.count()).unwrap();
                let reads = u32::try_from(left().count()).unwrap() - writes;
                for guard in left() {
                    let count = match guard {
                        Held::Read(_) => reads,
                        Held::Write(_) => writes,
                    };
                    assert_eq!(guard.hold_count(), count, "{case}");
                }
                let seen = scene.hash().await;
                if writes + reads == 0 {
                    assert!(seen.is_empty(), "{case}: {seen:?}");
                } else {
                    let mode = if writes > 0 { "write" } else { "read" };
                    // One hold for all guards.
                    let (writes, reads) = (writes.min(1), u32::from(writes == 0));
                    assert_eq!(seen, fields(mode, &holder, writes, reads), "{case}");
                }
                for number in 1..=3 {
                    let lease = scene.read_lease(&holder, number).await;
                    let is_there = number == 1 && writes == 0 && reads > 0;
                    assert_eq!(lease > 0, is_there, "{case}: {lease}");
                }
                let may_read = stranger.try_read().await.unwrap();
                assert_eq!(may_read.is_some(), writes == 0, "{case}");
                if let Some(guard) = may_read {
                    guard.release().await.unwrap();
                }
                let may_write = stranger.try_write().await.unwrap();
                assert_eq!(may_write.is_some(), writes + reads == 0, "{case}");
                if let Some(guard) = may_write {
                    guard.release().await.unwrap();
                }
            }
        }
    }
    scene.nothing_left([&ours, &theirs]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_task_of_the_writer_reads() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let owner = Owner::new();
    let lock = scene.lock(&ours).owner(&owner);
    let writer = lock.write().await.unwrap();
    let task = {
        let lock = lock.clone();
        lockset_testkit::spawn(async move {
            let waited = lock.read().await.unwrap();
            let tried = lock.try_read().await.unwrap().expect("its own lock");
            let timed = lock.try_read_for(SOON).await.unwrap().expect("its own");
            let again = timed.reenter().await.unwrap();
            [waited, tried, timed, again]
        })
    };
    let readers = within(SOON, task).await.unwrap();
    assert_eq!((writer.hold_count(), readers[0].hold_count()), (1, 4));
    assert!(readers.iter().all(|reader| *reader.owner() == owner));
    let stranger = scene.lock(&ours).owner(&Owner::new());
    assert!(stranger.try_read().await.unwrap().is_none());
    writer.release().await.unwrap();
    for reader in readers {
        assert!(stranger.try_write().await.unwrap().is_none());
        reader.release().await.unwrap();
    }
    scene.nothing_left([&ours]).await;
}

/// Redisson publishes no message.
#[tokio::test]
async fn a_writer_that_downgrades_lets_readers_in() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let writer = lock.write().await.unwrap();
    let reader = lock.read().await.unwrap();
    let mut waiters = Vec::new();
    for client in [&ours, &theirs] {
        let lock = scene.lock(client);
        waiters.push(lockset_testkit::spawn(
            async move { lock.read().await.unwrap() },
        ));
    }
    scene.listeners(1).await;
    // Neither waits for the other.
    let released = Instant::now();
    writer.release().await.unwrap();
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(within(SOON, waiter).await.unwrap());
    }
    took_less(released, BY_MESSAGE);
    assert!(!reader.is_lost());
    for guard in guards {
        guard.release().await.unwrap();
    }
    let stranger = scene.lock(&theirs);
    assert!(stranger.try_write().await.unwrap().is_none(), "it reads on");
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

#[tokio::test]
async fn a_writer_that_stops_reading_still_writes() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let writer = lock.write().await.unwrap();
    let mut messages = scene.messages().await;
    lock.read().await.unwrap().release().await.unwrap();
    drop(lock.read().await.unwrap());
    let stranger = scene.lock(&theirs);
    let wait = Duration::from_millis(100);
    assert!(stranger.try_read_for(wait).await.unwrap().is_none());
    assert!(stranger.try_write_for(wait).await.unwrap().is_none());
    // The message says that the waiting writer has left.
    assert_eq!(messages.next().await, "1");
    messages.no_more(&scene).await;
    assert_eq!(writer.hold_count(), 1);
    writer.release().await.unwrap();
    assert_eq!(messages.next().await, "1");
    drop(messages);
    scene.nothing_left([&ours, &theirs]).await;
}

/// Both sides of a hold have the same token.
#[tokio::test]
async fn both_sides_of_an_owner_have_one_token() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new()).fenced();
    let writer = lock.write().await.unwrap();
    let token = writer.fencing_token();
    assert!(token.is_some());
    let reader = lock.read().await.unwrap();
    assert_eq!(reader.fencing_token(), token);
    let reader = {
        reader.release().await.unwrap();
        writer.downgrade().await.unwrap()
    };
    assert_eq!(reader.fencing_token(), token);
    // Readers that hold the lock together each have their own token.
    let other = scene.lock(&ours).fenced().read().await.unwrap();
    assert!(other.fencing_token() > token);
}
