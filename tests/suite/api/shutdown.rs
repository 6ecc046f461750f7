//! Shutting down a client leaves only locks with a guard, in the middle of any call.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, hold_counts, patient_client, waiting};

async fn shut_down_leaves_nothing<P: Primitive>(client: Client, server: &Server, name: &str) {
    within(SOON, client.shutdown()).await.unwrap();
    let names = P::names(name);
    assert_eq!(hold_counts(server, &names).await, Vec::<u32>::new());
}

/// Released while another task waits, which is granted the lock during the shutdown.
async fn a_lock_on_its_way_to_another_task<P: Primitive>() {
    let server = Server::start();
    let (ours, name) = (patient_client(&server.url()).await, unique_name("end"));
    // `try_lock`, because a wait would count towards this client's turns.
    let guard = P::of(&ours, &name).try_lock().await.unwrap().unwrap();
    let lock = P::rival(&ours, &name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.map(drop) });
    waiting(&ours, 1).await;
    drop(guard);
    shut_down_leaves_nothing::<P>(ours, &server, &name).await;
    let error = within(SOON, waiter).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error}");
}

/// As above, but the other task is no longer polled.
async fn a_lock_on_its_way_to_an_unpolled_task<P: Primitive>() {
    let server = Server::start();
    let (ours, name) = (patient_client(&server.url()).await, unique_name("end"));
    // `try_lock`, because a wait would count towards this client's turns.
    let guard = P::of(&ours, &name).try_lock().await.unwrap().unwrap();
    let lock = P::rival(&ours, &name);
    let mut waiter = pin!(lock.lock());
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut waiter);
    assert!(waits.await.is_err());
    guard.release().await.unwrap();
    shut_down_leaves_nothing::<P>(ours, &server, &name).await;
    let error = waiter.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
}

/// The attempt was sent, and its future is no longer polled.
async fn an_unpolled_attempt<P: Primitive>() {
    let server = Server::start();
    let (ours, name) = (patient_client(&server.url()).await, unique_name("end"));
    let lock = P::of(&ours, &name);
    let mut attempt = pin!(lock.try_lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(attempt.as_mut().poll(&mut context).is_pending());
    shut_down_leaves_nothing::<P>(ours, &server, &name).await;
    assert!(attempt.await.expect_err("closed").is_closed());
}

/// One guard is dropped during the shutdown. The other stays and keeps its lock.
async fn a_guard_dropped_during_the_shutdown<P: Primitive>() {
    let server = Server::start();
    let (ours, name) = (patient_client(&server.url()).await, unique_name("end"));
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let goes = async {
        guard.lost().await;
        drop(guard);
    };
    let stays = P::of(&ours, "stays").lock().await.unwrap();
    tokio::join!(shut_down_leaves_nothing::<P>(ours, &server, &name), goes);
    let counts = hold_counts(&server, &P::names("stays")).await;
    assert_eq!(counts.len(), P::names("stays").len());
    drop(stays);
}

/// Tasks that acquire and release without a pause. On one thread, none has a guard between its
/// turns.
async fn a_busy_client<P: Primitive>() {
    async fn cycles(lock: impl Primitive, nth: usize) -> lockset::Error {
        for turn in nth.. {
            let wait = Duration::from_millis(5);
            let taken = match turn % 3 {
                0 => lock.try_lock().await,
                1 => lock.try_lock_for(wait).await,
                _ => lock.lock().await.map(Some),
            };
            match taken {
                Ok(Some(guard)) if turn % 2 == 0 => drop(guard),
                Ok(Some(guard)) => drop(guard.release().await),
                Ok(None) => tokio::task::yield_now().await,
                Err(error) => return error,
            }
        }
        unreachable!("it goes on until the client is closed")
    }
    let server = Server::start();
    for round in 0..40 {
        let (ours, name) = (patient_client(&server.url()).await, unique_name("end"));
        let mut tasks = Vec::new();
        for nth in 0..4 {
            tasks.push(lockset_testkit::spawn(cycles(P::of(&ours, &name), nth)));
            tasks.push(lockset_testkit::spawn(cycles(P::rival(&ours, &name), nth)));
        }
        tokio::time::sleep(Duration::from_micros(4_000 + 37 * round)).await;
        shut_down_leaves_nothing::<P>(ours, &server, &name).await;
        for task in tasks {
            let error = within(SOON, task).await.unwrap();
            assert!(error.is_closed(), "{error}");
        }
    }
}

/// The undo is as old as its lease when the server answers again.
async fn an_outage_longer_than_a_lease_that_is_just_over<P: Primitive>() {
    const LEASE: Duration = Duration::from_secs(4);
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = Client::builder(&proxy.url()).lease(LEASE).build();
    let (ours, name) = (ours.await.unwrap(), unique_name("end"));
    proxy.hold_replies();
    let lock = P::of(&ours, &name);
    let unanswered = tokio::time::timeout(Duration::from_millis(50), lock.try_lock());
    assert!(unanswered.await.is_err());
    proxy.refuse(true);
    proxy.cut();
    // Only time makes the undo old.
    tokio::time::sleep(LEASE + LEASE / 4).await;
    proxy.pass();
    shut_down_leaves_nothing::<P>(ours, &server, &name).await;
}

for_every_primitive! {"current_thread":
    an_outage_longer_than_a_lease_that_is_just_over
    a_lock_on_its_way_to_another_task
    a_lock_on_its_way_to_an_unpolled_task
    an_unpolled_attempt
    a_guard_dropped_during_the_shutdown
    a_busy_client
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_lock_on_its_way_to_another_task
    a_lock_on_its_way_to_an_unpolled_task
    an_unpolled_attempt
    a_guard_dropped_during_the_shutdown
    a_busy_client
}
