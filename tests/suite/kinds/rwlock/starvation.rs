//! An endless stream of readers does not starve a writer, and two crowds take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{eventually, within};

use super::Scene;
use crate::support::SOON;

const TIMES: usize = 20;

/// A small part of a lease. A waiter without a message would ask twice in this time.
const BOUND: Duration = Duration::from_secs(2);

/// Tasks that acquire and release the lock until they are stopped.
struct Crowd {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// The number of grants to all of them.
    turns: Arc<AtomicUsize>,
}

impl Crowd {
    fn come(scene: &Scene, clients: &[Client], size: usize, reads: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicUsize::new(0));
        let tasks = clients.iter().cycle().take(size).enumerate();
        let tasks = tasks.map(|(number, client)| {
            let (lock, stop) = (scene.lock(client), Arc::clone(&stop));
            let turns = Arc::clone(&turns);
            // Different spans, so that they do not leave all at once.
            let span = Duration::from_millis(1 + number as u64 % 7);
            lockset_testkit::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if reads {
                        let guard = lock.read().await.unwrap();
                        turns.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(span * 3).await;
                        guard.release().await.unwrap();
                    } else {
                        let guard = lock.write().await.unwrap();
                        turns.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(span).await;
                        guard.release().await.unwrap();
                    }
                }
            })
        });
        let tasks = tasks.collect();
        Self { stop, tasks, turns }
    }

    /// Waits until the crowd has taken `count` more turns, also after another holder.
    async fn turns(&self, count: usize) {
        let before = self.turns.load(Ordering::Relaxed);
        eventually(SOON, "the crowd takes turns", async || {
            self.turns.load(Ordering::Relaxed) >= before + count
        })
        .await;
    }

    async fn leave(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            within(SOON, task).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_gets_in_among_readers_without_end() {
    let scene = Scene::new().await;
    let crowd_of: [_; 3] = scene.patient().await;
    let [lone] = scene.patient().await;
    let crowd = Crowd::come(&scene, &crowd_of, 50, true);
    crowd.turns(100).await;
    // Also from the crowd's own clients.
    let clients = [&lone, &crowd_of[0]];
    for time in 0..TIMES {
        let lock = scene.lock(clients[time % clients.len()]);
        let guard = within(BOUND, lock.write()).await;
        guard.unwrap().release().await.unwrap();
        crowd.turns(100).await;
    }
    crowd.leave().await;
    let [one, two, three] = crowd_of.each_ref();
    scene.nothing_left([one, two, three, &lone]).await;
}

/// Two crowds at once: each makes progress.
#[tokio::test(flavor = "multi_thread")]
async fn two_crowds_take_turns() {
    let scene = Scene::new().await;
    let crowd_of: [_; 3] = scene.patient().await;
    let readers = Crowd::come(&scene, &crowd_of, 24, true);
    let writers = Crowd::come(&scene, &crowd_of, 6, false);
    for _ in 0..TIMES {
        within(BOUND, async {
            tokio::join!(readers.turns(4), writers.turns(4))
        })
        .await;
    }
    readers.leave().await;
    writers.leave().await;
    scene.nothing_left(crowd_of.each_ref()).await;
}

/// A reader of a client that also writes is served in the order of its client's own queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_in_among_writers_without_end() {
    let scene = Scene::new().await;
    let crowd_of: [_; 3] = scene.patient().await;
    let crowd = Crowd::come(&scene, &crowd_of, 6, false);
    crowd.turns(12).await;
    let clients = crowd_of.each_ref();
    for time in 0..TIMES {
        let lock = scene.lock(clients[time % clients.len()]);
        let guard = within(BOUND, lock.read()).await;
        guard.unwrap().release().await.unwrap();
        crowd.turns(6).await;
    }
    crowd.leave().await;
    scene.nothing_left(clients).await;
}
