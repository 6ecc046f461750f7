//! Calls that were polled and no longer are, like a branch of a `select!` in a loop or an entry of
//! a full buffered stream.
//!
//! They keep their claim without blocking other callers.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset::Client;
use lockset_testkit::{Server, eventually, unique_name, within};
use tokio::task::JoinHandle;

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{
    LEASE, SLACK, SOON, client, idle, nothing_left, patient_client, took_less, waiting,
};

type Call<G> = Pin<Box<dyn Future<Output = lockset::Result<G>> + Send>>;

/// How long a call is polled before it is left: once, or until it has certainly been refused.
const SPANS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(60)];

/// Polls a call for `span` and leaves it. On one thread, no answer arrives within the first poll.
async fn left_alone<P: Primitive>(client: &Client, name: &str, span: Duration) -> Call<P::Guard> {
    let lock = P::of(client, name);
    let mut call: Call<P::Guard> = Box::pin(async move { lock.lock().await });
    if span.is_zero() {
        assert!((&mut call).now_or_never().is_none(), "it waits")
    } else {
        let waited = tokio::time::timeout(span, &mut call).await;
        assert!(waited.is_err(), "it waits");
    }
    call
}

/// Tasks that acquire one after another, or together if the lock is shared.
fn behind<P: Primitive>(client: &Client, name: &str) -> Vec<JoinHandle<lockset::Result<()>>> {
    async fn visit<L: Primitive>(lock: L) -> lockset::Result<()> {
        lock.lock().await?.release().await
    }
    vec![
        lockset_testkit::spawn(visit(P::rival(client, name))),
        lockset_testkit::spawn(visit(P::of(client, name))),
        lockset_testkit::spawn(visit(P::rival(client, name))),
    ]
}

async fn all_get_it(tasks: Vec<JoinHandle<lockset::Result<()>>>) {
    for task in tasks {
        within(SOON, task).await.unwrap().unwrap();
    }
}

/// Another client releases the lock, and our first caller does not take it.
async fn a_free_lock_is_available_to_later_callers<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for span in SPANS {
        let name = unique_name("lock");
        let guard = P::rival(&theirs, &name).lock().await.unwrap();
        let first = left_alone::<P>(&ours, &name, span).await;
        let tasks = behind::<P>(&ours, &name);
        waiting(&ours, 4).await;
        guard.release().await.unwrap();
        all_get_it(tasks).await;
        // The first caller has kept its claim.
        let guard = within(SOON, first).await.unwrap();
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// This client releases the lock, which would pass to a caller that does not take it.
async fn the_lock_passes_to_later_callers<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for span in SPANS {
        let name = unique_name("lock");
        let guard = P::rival(&ours, &name).lock().await.unwrap();
        let first = left_alone::<P>(&ours, &name, span).await;
        let tasks = behind::<P>(&ours, &name);
        waiting(&ours, 4).await;
        guard.release().await.unwrap();
        all_get_it(tasks).await;
        within(SOON, first).await.unwrap().release().await.unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A grant that its caller does not take lasts for a lease, and no longer.
async fn an_untaken_grant_ends_with_its_lease<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let name = unique_name("lock");
    let began = Instant::now();
    let first = left_alone::<P>(&ours, &name, Duration::ZERO).await;
    let tasks = behind::<P>(&ours, &name);
    all_get_it(tasks).await;
    took_less(began, LEASE + SLACK);
    drop(first);
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A grant that its caller does not take goes to the callers behind it long before the end of its lease.
async fn an_untaken_grant_is_taken_back<P: Primitive>() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let first = left_alone::<P>(&ours, &name, Duration::ZERO).await;
    eventually(SOON, "it is granted, and not polled", async || {
        ours.stats().holds > 0
    })
    .await;
    all_get_it(behind::<P>(&ours, &name)).await;
    // The first caller has kept its claim.
    within(SOON, first).await.unwrap().release().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

/// The first caller that needed a connection is gone when the connection could be made.
async fn a_connection_is_made_for_the_others<P: Primitive>() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).lease(LEASE).lazy();
    let ours = builder.build().await.unwrap();
    let first = left_alone::<P>(&ours, &unique_name("lock"), Duration::ZERO).await;
    let lock = P::of(&ours, &unique_name("lock"));
    within(SOON, lock.lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    drop(first);
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A shutdown fails the callers behind at once, and the unpolled call when it is polled again.
async fn a_shutdown_reaches_later_callers<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let guard = P::rival(&theirs, &name).lock().await.unwrap();
    let first = left_alone::<P>(&ours, &name, SPANS[1]).await;
    let tasks = behind::<P>(&ours, &name);
    waiting(&ours, 4).await;
    within(SOON, ours.clone().shutdown()).await.unwrap();
    for task in tasks {
        let error = within(SOON, task).await.unwrap().unwrap_err();
        assert!(error.is_closed(), "{error}");
    }
    let Err(error) = within(SOON, first).await else {
        panic!("a client that is closed takes nothing");
    };
    assert!(error.is_closed(), "{error}");
    guard.release().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

for_every_primitive! {"current_thread":
    a_free_lock_is_available_to_later_callers
    the_lock_passes_to_later_callers
    an_untaken_grant_ends_with_its_lease
    an_untaken_grant_is_taken_back
    a_connection_is_made_for_the_others
    a_shutdown_reaches_later_callers
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_free_lock_is_available_to_later_callers
    the_lock_passes_to_later_callers
    an_untaken_grant_ends_with_its_lease
    a_connection_is_made_for_the_others
    a_shutdown_reaches_later_callers
}
