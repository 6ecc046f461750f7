//! `polled`: waiting by a timer, without messages.

use std::time::{Duration, Instant};

use lockset::{Backoff, Client, Lock, Member, MultiLock};
use lockset_testkit::{Server, eventually, unique_name, within};

use crate::support::{
    BY_MESSAGE, SOON, ask, idle, nothing_left, patient_client, took_less, user_without, waiting,
};

const PAUSE: Duration = Duration::from_millis(10);

/// Below the poll interval of a client with the default lease, but many pauses.
const BY_PAUSES: Duration = BY_MESSAGE;

const ROUNDS: usize = 5;

/// Two clients of a user without the rights to subscribe and publish.
struct Scene {
    server: Server,
    ours: Client,
    theirs: Client,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let url = user_without(&server, "subscribe psubscribe publish").await;
        let (ours, theirs) = (patient_client(&url).await, patient_client(&url).await);
        let name = unique_name("polled");
        Self {
            server,
            ours,
            theirs,
            name,
        }
    }

    /// How often all clients have called this command.
    async fn calls_of(&self, command: &str) -> u64 {
        let mut admin = self.server.admin().await;
        let stats: String = ask(&mut admin, &["INFO", "commandstats"]).await;
        let row = stats
            .lines()
            .find_map(|row| row.strip_prefix(&format!("cmdstat_{command}:")));
        let calls = row.and_then(|row| row.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        calls.unwrap_or_default()
    }

    /// How often a waiter has asked, in all.
    async fn asked(&self) -> u64 {
        self.calls_of("evalsha").await
    }

    /// Waits until the waiter has asked some times more.
    async fn asks_on(&self, before: u64) {
        eventually(SOON, "it asks on", async || {
            self.asked().await >= before + 3
        })
        .await;
    }

    /// The waiter is granted the lock soon after each release, without any subscription.
    async fn waits_by_pauses<L: Lock, R: Lock>(&self, polled: L, rival: R) {
        for _ in 0..ROUNDS {
            let held = rival.lock().await.unwrap();
            let before = self.asked().await;
            let waiter = polled.clone();
            let waiter = lockset_testkit::spawn(async move { waiter.lock().await });
            waiting(&self.ours, 1).await;
            self.asks_on(before).await;
            let since = Instant::now();
            lockset::Guard::release(held).await.unwrap();
            let guard = within(SOON, waiter).await.unwrap().unwrap();
            took_less(since, BY_PAUSES);
            lockset::Guard::release(guard).await.unwrap();
        }
        // The deadline cuts a pause short.
        let held = rival.lock().await.unwrap();
        let (since, wait) = (Instant::now(), Duration::from_millis(25));
        assert!(polled.try_lock_for(wait).await.unwrap().is_none());
        took_less(since, BY_PAUSES);
        lockset::Guard::release(held).await.unwrap();
        assert_eq!(self.calls_of("subscribe").await, 0);
        idle(&self.ours).await;
        idle(&self.theirs).await;
        nothing_left(&self.server).await;
    }
}

#[tokio::test]
async fn a_reentrant_lock() {
    let scene = Scene::new().await;
    let polled = scene.ours.lock(&scene.name).polled(PAUSE);
    let rival = scene.theirs.lock(&scene.name);
    scene.waits_by_pauses(polled, rival).await;
}

#[tokio::test]
async fn a_fair_lock() {
    let scene = Scene::new().await;
    let polled = scene.ours.fair_lock(&scene.name).polled(PAUSE);
    let rival = scene.theirs.fair_lock(&scene.name);
    scene.waits_by_pauses(polled, rival).await;
}

#[tokio::test]
async fn both_sides_of_a_read_write_lock() {
    for reads in [true, false] {
        let scene = Scene::new().await;
        let polled = scene.ours.rw_lock(&scene.name).polled(PAUSE);
        let rival = scene.theirs.rw_lock(&scene.name).write_side();
        if reads {
            scene.waits_by_pauses(polled.read_side(), rival).await;
        } else {
            scene.waits_by_pauses(polled.write_side(), rival).await;
        }
    }
}

#[tokio::test]
async fn a_multi_lock() {
    let scene = Scene::new().await;
    let several = |client: &Client| {
        let [one, two] =
            ["1", "2"].map(|number| client.lock(format!("{{{}}}{number}", scene.name)));
        MultiLock::new([Member::from(&one), Member::from(&two)]).unwrap()
    };
    let (polled, rival) = (several(&scene.ours).polled(PAUSE), several(&scene.theirs));
    scene.waits_by_pauses(polled, rival).await;
}

#[tokio::test]
async fn what_is_no_lock() {
    let scene = Scene::new().await;
    let (ours, theirs) = (&scene.ours, &scene.theirs);
    let steady = Backoff::from(PAUSE).jitter(0);
    let latch = ours.latch(&scene.name).polled(steady);
    latch.init(1).await.unwrap();
    let before = scene.asked().await;
    let waiter = lockset_testkit::spawn(async move { latch.wait().await });
    scene.asks_on(before).await;
    let since = Instant::now();
    theirs.latch(&scene.name).count_down().await.unwrap();
    within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_PAUSES);

    let permit = theirs
        .plain_semaphore(&scene.name)
        .permits(1)
        .acquire()
        .await
        .unwrap();
    let semaphore = ours.plain_semaphore(&scene.name).polled(PAUSE);
    let before = scene.asked().await;
    let waiter = lockset_testkit::spawn(async move { semaphore.acquire().await });
    scene.asks_on(before).await;
    let since = Instant::now();
    permit.release().await.unwrap();
    within(SOON, waiter).await.unwrap().unwrap().forget();
    took_less(since, BY_PAUSES);

    let barrier = ours.barrier(&scene.name, 2).polled(PAUSE);
    let before = scene.asked().await;
    let waiter = lockset_testkit::spawn(async move { barrier.wait().await });
    scene.asks_on(before).await;
    let since = Instant::now();
    let other = theirs.barrier(&scene.name, 2).polled(PAUSE);
    within(SOON, other.wait()).await.unwrap();
    within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_PAUSES);

    let name = unique_name("election");
    let leads = theirs.election(&name).campaign().await.unwrap();
    let election = ours.election(&name).polled(PAUSE).value("a");
    let waiter = lockset_testkit::spawn(async move { election.campaign().await });
    waiting(ours, 1).await;
    let since = Instant::now();
    leads.resign().await.unwrap();
    let leads = within(SOON, waiter).await.unwrap().unwrap();
    took_less(since, BY_PAUSES);
    assert_eq!(scene.calls_of("subscribe").await, 0);
    leads.resign().await.unwrap();
}

#[tokio::test]
async fn pauses_that_cannot_work_are_refused() {
    let scene = Scene::new().await;
    let ours = &scene.ours;
    let zero = Duration::ZERO;
    ours.latch(&scene.name).init(1).await.unwrap();
    let errors = [
        ours.lock(&scene.name)
            .polled(zero)
            .lock()
            .await
            .unwrap_err(),
        ours.fair_lock(&scene.name)
            .polled(zero)
            .try_lock()
            .await
            .unwrap_err(),
        ours.latch(&scene.name)
            .polled(zero)
            .wait()
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
    }
}
