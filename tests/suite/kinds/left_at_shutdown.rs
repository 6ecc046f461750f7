//! A client that is shut down leaves nothing of semaphores, barriers and elections at the server, not even for futures that are no
//! longer polled.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::support::{SOON, ask, idle, patient_client};

struct Scene {
    server: Server,
    ours: Client,
    theirs: Client,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        Self {
            ours: patient_client(&server.url()).await,
            theirs: patient_client(&server.url()).await,
            name: unique_name("end"),
            server,
        }
    }

    async fn number_at(&self, words: &[&str]) -> u64 {
        ask(&mut self.server.admin().await, words).await
    }

    async fn permits_taken(&self) -> usize {
        let semaphore = self.theirs.semaphore(&self.name);
        semaphore.holders().await.unwrap().len()
    }

    async fn places(&self) -> u64 {
        let queue = format!("lockset_sem_queue:{{{}}}", self.name);
        self.number_at(&["ZCARD", &queue]).await
    }
}

fn polled_once<F: Future>(future: Pin<&mut F>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.poll(&mut context).is_pending());
}

#[tokio::test]
async fn an_unpolled_attempt_for_a_permit() {
    let scene = Scene::new().await;
    let semaphore = scene.ours.semaphore(&scene.name).permits(1);
    let mut attempt = pin!(semaphore.try_acquire());
    polled_once(attempt.as_mut());
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert_eq!(scene.permits_taken().await, 0);
    let error = attempt.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}

#[tokio::test]
async fn a_permit_that_was_given_to_an_unpolled_task() {
    let scene = Scene::new().await;
    let semaphore = scene.ours.semaphore(&scene.name).permits(1);
    let guard = semaphore.acquire().await.unwrap();
    let mut waiter = pin!(semaphore.acquire());
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut waiter);
    assert!(waits.await.is_err());
    guard.release().await.unwrap();
    eventually(SOON, "the waiter has it", async || {
        scene.permits_taken().await == 1
    })
    .await;
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert_eq!(scene.permits_taken().await, 0);
    let error = waiter.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}

#[tokio::test]
async fn the_places_of_unpolled_tasks() {
    let scene = Scene::new().await;
    let held = scene.theirs.semaphore(&scene.name).permits(1);
    let held = held.acquire().await.unwrap();
    let semaphore = scene.ours.semaphore(&scene.name).permits(1).fair();
    let mut waiters: Vec<_> = (0..2).map(|_| Box::pin(semaphore.acquire())).collect();
    for waiter in &mut waiters {
        polled_once(waiter.as_mut());
    }
    eventually(SOON, "both have places", async || scene.places().await == 2).await;
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert_eq!(scene.places().await, 0);
    held.release().await.unwrap();
    assert_eq!(scene.permits_taken().await, 0);
    for waiter in waiters {
        let error = waiter.await.expect_err("closed");
        assert!(error.is_closed(), "{error}");
    }
}

#[tokio::test]
async fn an_unpolled_attempt_for_a_plain_permit() {
    let scene = Scene::new().await;
    let semaphore = scene.ours.plain_semaphore(&scene.name).permits(1);
    let mut attempt = pin!(semaphore.try_acquire());
    polled_once(attempt.as_mut());
    let other = scene.theirs.plain_semaphore(&scene.name);
    eventually(SOON, "it is taken", async || {
        scene.number_at(&["EXISTS", &scene.name]).await == 1
    })
    .await;
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert_eq!(other.available().await.unwrap(), 1);
    let error = attempt.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}

/// Its reply is lost, and nobody polls the call that would send it again.
#[tokio::test]
async fn an_unpolled_release_of_a_plain_permit() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let semaphore = ours.plain_semaphore(&scene.name).permits(1);
    let permit = semaphore.acquire().await.unwrap();
    proxy.drop_replies();
    let mut release = pin!(permit.release());
    polled_once(release.as_mut());
    eventually(SOON, "it is executed, its reply is lost", async || {
        scene.number_at(&["GET", &scene.name]).await == 1 && proxy.dropped() > 0
    })
    .await;
    proxy.pass();
    within(SOON, ours.shutdown()).await.unwrap();
    let other = scene.theirs.plain_semaphore(&scene.name);
    assert_eq!(other.available().await.unwrap(), 1);
}

/// Nobody polls the shutdown either, which waits for the call that waits for a lock.
#[tokio::test]
async fn a_plain_permit_of_an_unpolled_attempt_though_the_shutdown_was_dropped() {
    let scene = Scene::new().await;
    let lock = scene.ours.lock("held");
    let held = scene.theirs.lock("held").lock().await.unwrap();
    let mut waiter = pin!(lock.lock());
    polled_once(waiter.as_mut());
    let semaphore = scene.ours.plain_semaphore(&scene.name).permits(1);
    let mut attempt = pin!(semaphore.try_acquire());
    polled_once(attempt.as_mut());
    eventually(SOON, "it is taken", async || {
        scene.number_at(&["EXISTS", &scene.name]).await == 1
    })
    .await;
    let mut shutdown = Box::pin(scene.ours.clone().shutdown());
    polled_once(shutdown.as_mut());
    drop(shutdown);
    let other = scene.theirs.plain_semaphore(&scene.name);
    eventually(SOON, "it is given back", async || {
        other.available().await.unwrap() == 1
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn an_unpolled_party() {
    let scene = Scene::new().await;
    let barrier = scene.ours.barrier(&scene.name, 2);
    let mut waiter = pin!(barrier.wait());
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut waiter);
    assert!(waits.await.is_err());
    let arrivals = format!("lockset_barrier_arrived:{{{}}}", scene.name);
    assert_eq!(scene.number_at(&["ZCARD", &arrivals]).await, 1);
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert_eq!(scene.number_at(&["ZCARD", &arrivals]).await, 0);
    let error = waiter.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}

/// It has the lock, and its value is on its way.
#[tokio::test]
async fn an_unpolled_candidate() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let election = ours.election(&scene.name);
    election
        .try_campaign()
        .await
        .unwrap()
        .unwrap()
        .resign()
        .await
        .unwrap();
    idle(&ours).await;
    proxy.hold_request_containing(b"lockset_leader");
    let mut campaign = pin!(election.campaign());
    let held = async {
        while proxy.held() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut campaign => panic!("its value is not written"),
        () = held => {}
    }
    assert_eq!(scene.number_at(&["EXISTS", &scene.name]).await, 1);
    proxy.release_held();
    within(SOON, ours.clone().shutdown()).await.unwrap();
    assert_eq!(scene.number_at(&["EXISTS", &scene.name]).await, 0);
    assert!(
        scene
            .theirs
            .election(&scene.name)
            .leader()
            .await
            .unwrap()
            .is_none()
    );
    let error = campaign.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}
