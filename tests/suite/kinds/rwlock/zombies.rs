//! Dead or forgotten readers, while others keep reading.

use std::time::Duration;

use lockset_testkit::{Redisson, eventually, within};

use super::Scene;
use crate::support::SOON;

/// The number of readers of a killed process whose leases have ended.
const DEAD: usize = 2_000;

/// A bound for the sweeps of several renewals.
const SWEPT: Duration = Duration::from_secs(20);

impl Scene {
    /// Adds readers without lease keys, as if their leases had ended.
    async fn dead_readers(&self) {
        let mut hset = redis::cmd("HSET");
        hset.arg(&self.name);
        for thread in 0..DEAD {
            let id = format!("8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:{thread}");
            hset.arg(id).arg(1 + thread % 3);
        }
        let _: i64 = hset.query_async(&mut self.admin.clone()).await.unwrap();
    }

    /// The number of fields in the hash. One field is the mode.
    async fn fields(&self) -> usize {
        self.ask(&["HLEN", &self.name]).await
    }

    async fn calls(&self, command: &str) -> u64 {
        let stats = self.server.commandstats().await;
        stats.get(command).copied().unwrap_or_default()
    }
}

/// Without any other caller, the renewals of the one live reader remove the dead ones.
#[tokio::test]
async fn the_renewals_of_a_reader_take_out_the_dead() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    scene.dead_readers().await;
    eventually(SWEPT, "a few are left", async || scene.fields().await <= 16).await;
    assert!(!reader.is_lost());
    reader.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}

/// The polls of a waiting writer do not become more and more expensive.
#[tokio::test]
async fn the_polls_of_a_writer_remove_the_dead() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    scene.dead_readers().await;
    let lock = scene.lock(&theirs);
    let mut looks = 0;
    while scene.fields().await > 2 {
        assert!(lock.try_write().await.unwrap().is_none(), "it is read");
        looks += 1;
        assert!(looks <= 20, "{} are left", scene.fields().await);
    }
    assert!(looks > 1, "each takes out a bounded number");
    scene.server.reset_stats().await;
    assert!(lock.try_write().await.unwrap().is_none());
    let asked = scene.calls("pttl").await + scene.calls("exists").await;
    assert!(asked < 10, "{asked}");
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// Readers that come and go remove more dead readers than they could leave.
#[tokio::test]
async fn arriving_readers_remove_the_dead() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    scene.dead_readers().await;
    let lock = scene.lock(&theirs);
    for _ in 0..50 {
        within(SOON, lock.read())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let left = scene.fields().await;
    assert!(left < DEAD / 10, "{left}");
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson's readers have the same keys: a reader with one live key still reads.
#[tokio::test]
async fn a_live_redisson_reader_is_never_removed() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let peer = Redisson::connect(&scene.server).await;
    let (brief, lease) = (Duration::from_millis(50), Duration::from_secs(60));
    let name = &*scene.name;
    assert_eq!(peer.read_acquire(name, 1, lease).await, None);
    assert_eq!(peer.read_acquire(name, 2, brief).await, None);
    assert_eq!(peer.read_acquire(name, 2, lease).await, None);
    let first = peer.holder(2);
    eventually(SOON, "its first hold is over", async || {
        scene.read_lease(&first, 1).await == -2
    })
    .await;
    let reader = scene.lock(&ours).read().await.unwrap();
    scene.dead_readers().await;
    let lock = scene.lock(&theirs);
    eventually(SWEPT, "the living are left", async || {
        assert!(lock.try_write().await.unwrap().is_none(), "it is read");
        lock.read().await.unwrap().release().await.unwrap();
        let hash = scene.hash().await;
        for thread in [1, 2] {
            let holds = hash.get(&peer.holder(thread));
            assert_eq!(holds, Some(&thread.to_string()), "one for each entry");
        }
        hash.len() == 4
    })
    .await;
    assert_eq!(peer.read_release(name, 2).await, Some(0));
    reader.release().await.unwrap();
    assert_eq!(
        peer.read_release(name, 1).await,
        Some(1),
        "the last that is alive"
    );
    let writer = within(SOON, lock.write()).await.unwrap();
    writer.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}
