//! Many readers or one writer, and the reported holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockset_testkit::within;

use super::Scene;

#[tokio::test]
async fn readers_share_and_a_writer_excludes_all() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let locks = [scene.lock(&ours), scene.lock(&theirs)];
    let mut readers = Vec::new();
    for lock in [&locks[0], &locks[0], &locks[1], &locks[1]] {
        readers.push(lock.read().await.unwrap());
        readers.push(lock.try_read().await.unwrap().expect("beside the others"));
        let timed = lock.try_read_for(Duration::from_secs(1)).await.unwrap();
        readers.push(timed.expect("beside the others"));
    }
    assert!(readers.iter().all(|reader| reader.hold_count() == 1));
    for reader in readers {
        for lock in &locks {
            assert!(lock.try_write().await.unwrap().is_none(), "while one reads");
        }
        reader.release().await.unwrap();
    }
    let writer = locks[0]
        .try_write()
        .await
        .unwrap()
        .expect("there are no readers");
    for lock in &locks {
        assert!(lock.try_read().await.unwrap().is_none());
        assert!(lock.try_write().await.unwrap().is_none());
        let wait = Duration::from_millis(50);
        assert!(lock.try_read_for(wait).await.unwrap().is_none());
        assert!(lock.try_write_for(wait).await.unwrap().is_none());
    }
    writer.release().await.unwrap();
    let reader = locks[1]
        .try_read()
        .await
        .unwrap()
        .expect("there is no writer");
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

#[derive(Default)]
struct Pair {
    one: AtomicU64,
    other: AtomicU64,
    reading: AtomicUsize,
    together: AtomicUsize,
}

impl Pair {
    async fn read(&self) {
        let inside = self.reading.fetch_add(1, Ordering::Relaxed) + 1;
        self.together.fetch_max(inside, Ordering::Relaxed);
        let one = self.one.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        assert_eq!(one, self.other.load(Ordering::Relaxed), "a torn read");
        self.reading.fetch_sub(1, Ordering::Relaxed);
    }

    async fn write(&self) {
        let seen = self.one.load(Ordering::Relaxed);
        self.one.store(seen + 1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        assert_eq!(self.reading.load(Ordering::Relaxed), 0, "beside a writer");
        self.other.store(seen + 1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unprotected_pair_stays_consistent() {
    const TASKS: usize = 16;
    const ROUNDS: usize = 20;
    let scene = Scene::new().await;
    let clients: [_; 3] = scene.patient().await;
    let pair = Arc::new(Pair::default());
    let mut tasks = Vec::new();
    for client in &clients {
        for task in 0..TASKS {
            let (lock, pair) = (scene.lock(client).fenced(), Arc::clone(&pair));
            tasks.push(lockset_testkit::spawn(async move {
                for round in 0..ROUNDS {
                    // One in four writes. The next one after it continues as a reader.
                    match (task + round) % 4 {
                        0 => {
                            let guard = lock.write().await.unwrap();
                            pair.write().await;
                            assert!(!guard.is_lost());
                            guard.release().await.unwrap();
                        }
                        1 if round % 2 == 0 => {
                            let guard = lock.write().await.unwrap();
                            pair.write().await;
                            let guard = guard.downgrade().await.unwrap();
                            pair.read().await;
                            assert!(!guard.is_lost());
                        }
                        _ => {
                            let guard = lock.read().await.unwrap();
                            pair.read().await;
                            assert!(!guard.is_lost());
                            // Alternates between releasing and dropping.
                            if round % 2 == 0 {
                                guard.release().await.unwrap();
                            }
                        }
                    }
                }
            }));
        }
    }
    for task in tasks {
        within(Duration::from_secs(60), task).await.unwrap();
    }
    let writes = (0..TASKS * ROUNDS)
        .map(|turn| (turn / ROUNDS, turn % ROUNDS))
        .filter(|(task, round)| match (task + round) % 4 {
            0 => true,
            1 => round % 2 == 0,
            _ => false,
        })
        .count() as u64;
    assert_eq!(pair.one.load(Ordering::Relaxed), 3 * writes);
    assert_eq!(pair.other.load(Ordering::Relaxed), 3 * writes);
    assert!(pair.together.load(Ordering::Relaxed) > 1, "readers share");
    scene.nothing_left(clients.each_ref()).await;
}

#[tokio::test]
async fn each_side_reports_the_holder() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&lockset::Owner::new());
    let (reads, writes) = (
        scene.lock(&theirs).read_side(),
        scene.lock(&theirs).write_side(),
    );
    let is_locked = async || {
        (
            reads.is_locked().await.unwrap(),
            writes.is_locked().await.unwrap(),
        )
    };
    assert_eq!(is_locked().await, (false, false));
    let writer = lock.write().await.unwrap();
    let again = writer.reenter().await.unwrap();
    assert_eq!(is_locked().await, (false, true));
    let seen = writes.holder().await.unwrap().expect("it writes");
    assert_eq!((seen.hold_count, again.hold_count()), (1, 2));
    assert!(seen.remaining > Duration::from_secs(25) && seen.remaining <= Duration::from_secs(30));
    assert!(reads.holders().await.unwrap().is_empty());
    let reader = lock.read().await.unwrap();
    assert_eq!(
        is_locked().await,
        (false, true),
        "it writes, whatever it reads"
    );
    again.release().await.unwrap();
    writer.release().await.unwrap();
    assert_eq!(is_locked().await, (true, false));
    let [own] = &reads.holders().await.unwrap()[..] else {
        panic!("one reader");
    };
    assert_eq!((&own.id, own.hold_count), (&seen.id, 1));
    let stranger = scene.lock(&theirs).read().await.unwrap();
    let mut ids: Vec<_> = reads.holders().await.unwrap();
    ids.retain(|holder| holder.id != own.id);
    assert_eq!(ids.len(), 1);
    assert!(ids[0].remaining > Duration::from_secs(25));
    reader.release().await.unwrap();
    stranger.release().await.unwrap();
    assert_eq!(is_locked().await, (false, false));
}

/// Force-unlocking readers does not end a writer, nor the other way round.
#[tokio::test]
async fn force_ends_one_side_only() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let (reads, writes) = (
        scene.lock(&theirs).read_side(),
        scene.lock(&theirs).write_side(),
    );
    assert!(!reads.force_unlock().await.unwrap(), "there are no readers");
    assert!(!writes.force_unlock().await.unwrap(), "there is no writer");
    let writer = lock.write().await.unwrap();
    let own = scene
        .lock(&ours)
        .owner(writer.owner())
        .read()
        .await
        .unwrap();
    assert!(
        !reads.force_unlock().await.unwrap(),
        "the reader writes too"
    );
    assert!(lock.try_read().await.unwrap().is_none());
    own.release().await.unwrap();
    writer.release().await.unwrap();
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    assert!(!writes.force_unlock().await.unwrap());
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(reads.force_unlock().await.unwrap());
    assert!(scene.server.keys().await.is_empty(), "their leases go too");
    let writer = lock
        .try_write()
        .await
        .unwrap()
        .expect("there are no readers");
    for reader in readers {
        // The server knows, but this client has not been notified yet.
        assert!(reader.release().await.unwrap_err().is_not_held());
    }
    assert!(!reads.force_unlock().await.unwrap());
    assert!(writes.force_unlock().await.unwrap());
    assert!(writer.release().await.unwrap_err().is_not_held());
    scene.nothing_left([&ours, &theirs]).await;
}
