//! `Loss`: a view of a loss without the guard, for tasks and threads beside the work.

use std::time::Duration;

use lockset::{Loss, LostReason, Owner};
use lockset_testkit::{Server, eventually, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{LEASE, SOON, client, client_with_lease, idle};

/// Whether it resolves within a few turns of the runtime.
async fn resolves(loss: &Loss) -> bool {
    tokio::time::timeout(Duration::from_millis(20), loss.wait())
        .await
        .is_ok()
}

/// After a loss, every task and thread sees it, and keeps seeing it.
async fn it_says_what_the_guard_says<P: Primitive>() {
    let server = Server::start();
    let lease = LEASE * 3;
    let client = client_with_lease(&server.url(), lease).await;
    let lock = P::of(&client, "x");
    let guard = lock.lock().await.unwrap();
    let loss = guard.loss();
    assert_eq!((loss.is_lost(), loss.reason()), (false, None));
    assert!(!loss.remaining().is_zero() && loss.remaining() <= lease);
    let (by_task, by_thread) = (loss.clone(), loss.clone());
    let task = lockset_testkit::spawn(async move { by_task.wait().await });
    let thread = tokio::task::spawn_blocking(move || {
        while !by_thread.is_lost() {
            std::thread::sleep(Duration::from_millis(1));
        }
        by_thread.reason()
    });
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(within(SOON, task).await.unwrap(), LostReason::Revoked);
    assert_eq!(
        within(SOON, thread).await.unwrap(),
        Some(LostReason::Revoked)
    );
    assert!(guard.is_lost());
    for _ in 0..2 {
        assert_eq!(within(SOON, loss.wait()).await, LostReason::Revoked);
    }
    drop(guard);
    assert_eq!(loss.reason(), Some(LostReason::Revoked));
    assert_eq!(within(SOON, loss.wait()).await, LostReason::Revoked);
    assert!(loss.remaining().is_zero());
}

/// This includes a fixed lease that ends after the release.
async fn a_released_guard_is_never_lost_by_its_view<P: Primitive>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    for fixed in [false, true] {
        let lock = P::of(&client, "x");
        let lock = if fixed { lock.fixed_lease(LEASE) } else { lock };
        let guard = lock.lock().await.unwrap();
        let (loss, before) = (guard.loss(), guard.loss());
        let waiting = lockset_testkit::spawn(async move { before.wait().await });
        guard.release().await.unwrap();
        assert_eq!((loss.reason(), loss.remaining()), (None, Duration::ZERO));
        tokio::time::sleep(LEASE + Duration::from_millis(50)).await;
        assert!(!loss.is_lost() && !waiting.is_finished());
        assert!(!resolves(&loss).await);
        waiting.abort();
        // Forgotten and dropped guards end in the same way.
        let guard = lock.lock().await.unwrap();
        let loss = guard.loss();
        drop(guard);
        idle(&client).await;
        assert!(!loss.is_lost() && !resolves(&loss).await);
    }
}

/// On a single thread, a task that waits for the loss is polled again while the release is in
/// flight.
async fn a_task_waiting_for_the_loss_can_rest_after_a_release<P: Primitive>() {
    let server = Server::start();
    let url = server.url();
    let (done, is_done) = tokio::sync::oneshot::channel();
    // On a separate thread, because a task that never yields would block this one.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = client(&url).await;
            let guard = P::of(&client, "x").lock().await.unwrap();
            let loss = guard.loss();
            let waiting = lockset_testkit::spawn(async move { loss.wait().await });
            tokio::task::yield_now().await;
            guard.release().await.unwrap();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!waiting.is_finished());
            waiting.abort();
        });
        done.send(()).expect("the test waits");
    });
    within(SOON, is_done).await.expect("it did not panic");
}

/// Each guard has its own view, even if guards share a hold.
async fn it_ends_with_its_own_guard<P: Primitive>() {
    let server = Server::start();
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    let owner = Owner::new();
    let lock = P::of(&client, "x").owner(&owner);
    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let (of_outer, of_inner) = (outer.loss(), inner.loss());
    inner.release().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(within(SOON, of_outer.wait()).await, LostReason::Revoked);
    assert_eq!(of_inner.reason(), None);
    assert!(!resolves(&of_inner).await);
}

/// A remaining view must not keep the client or its connections alive.
async fn it_keeps_nothing_alive<P: Primitive>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let id = client.id().to_owned();
    let guard = P::of(&client, "x").lock().await.unwrap();
    let loss = guard.loss();
    let by_task = loss.clone();
    let task = lockset_testkit::spawn(async move { by_task.wait().await });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    drop(client);
    eventually(SOON, "its connections are closed", async || {
        let all = server.clients(lockset_testkit::ClientKind::All).await;
        !all.iter().any(|line| line.name.ends_with(&id))
    })
    .await;
    assert!(!task.is_finished() && !loss.is_lost());
    task.abort();
}

for_every_primitive!("multi_thread":
    it_says_what_the_guard_says
    a_released_guard_is_never_lost_by_its_view
    a_task_waiting_for_the_loss_can_rest_after_a_release
    it_ends_with_its_own_guard
    it_keeps_nothing_alive
);

for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    it_says_what_the_guard_says
    a_released_guard_is_never_lost_by_its_view
    a_task_waiting_for_the_loss_can_rest_after_a_release
    it_ends_with_its_own_guard
    it_keeps_nothing_alive
}

/// A blocking thread may have obtained its view before the downgrade.
#[tokio::test]
async fn the_loss_view_of_a_writer_follows_its_reader() {
    let server = Server::start();
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    let lock = client.rw_lock("x");
    let writing = lock.write().await.unwrap();
    let of_writing = writing.loss();
    let reading = writing.downgrade().await.unwrap();
    assert!(lock.read_side().force_unlock().await.unwrap());
    assert_eq!(
        within(SOON, reading.loss().wait()).await,
        LostReason::Revoked
    );
    assert_eq!(of_writing.reason(), Some(LostReason::Revoked));
}
