//! The order of lock, body with its commit, release and return, and what happens when a step is cut
//! short.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset::{Client, locked};
use lockset_testkit::{Proxy, eventually, within};
use tokio::sync::Notify;

use super::{Failed, is_held, start};
use crate::support::{SOON, client, idle, nothing_left, took_less, waiting};

/// A value that callers increment one after another, in several steps.
#[derive(Default)]
struct Account {
    balance: Mutex<u32>,
    commits: Mutex<Vec<u32>>,
}

impl Account {
    #[locked("account", client = locks)]
    async fn raise(&self, locks: &Client) -> Result<u32, Failed> {
        let seen = *self.balance.lock().unwrap();
        tokio::task::yield_now().await;
        // At the commit the lock is still held.
        assert!(is_held(locks, "account").await);
        *self.balance.lock().unwrap() = seen + 1;
        self.commits.lock().unwrap().push(seen + 1);
        Ok(seen + 1)
    }
}

#[tokio::test]
async fn the_next_holder_sees_what_was_committed() {
    let (server, client) = start().await;
    let other = crate::support::client(&server.url()).await;
    let account = Arc::new(Account::default());
    let calls = (0..20).map(|i| {
        let (account, locks) = (Arc::clone(&account), [&client, &other][i % 2].clone());
        lockset_testkit::spawn(async move { account.raise(&locks).await })
    });
    let done = within(SOON, futures_util::future::join_all(calls)).await;
    let mut results: Vec<u32> = done
        .into_iter()
        .map(|done| done.unwrap().unwrap())
        .collect();
    results.sort_unstable();
    assert_eq!(results, (1..=20).collect::<Vec<_>>());
    assert_eq!(*account.commits.lock().unwrap(), results);
    nothing_left(&server).await;
}

/// The lock is free once the function has returned, with `Ok` or with `Err`.
#[tokio::test]
async fn it_is_released_when_the_function_returns() {
    #[locked("x")]
    async fn end(locks: &Client, result: Result<u32, Failed>) -> Result<u32, Failed> {
        assert!(is_held(locks, "x").await);
        let value = result?;
        if value > 1 {
            return Ok(value * 2);
        }
        Ok(value)
    }

    let (_server, client) = start().await;
    for (given, expected) in [
        (Ok(1), Some(1)),
        (Ok(2), Some(4)),
        (Err(Failed::Work("no")), None),
    ] {
        let ended = end(&client, given).await;
        assert!(!is_held(&client, "x").await);
        assert_eq!(ended.ok(), expected);
    }
}

/// Records that it was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[locked("x")]
async fn never_ends(_locks: &Client, begun: Arc<Notify>, body: Dropped) -> Result<(), Failed> {
    begun.notify_one();
    std::future::pending::<()>().await;
    drop(body);
    Ok(())
}

#[tokio::test]
async fn a_loss_drops_the_body_and_is_the_error() {
    let (server, client) = start().await;
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let body = Dropped(Arc::clone(&dropped));
    let call = lockset_testkit::spawn({
        let (client, begun) = (client.clone(), Arc::clone(&begun));
        async move { never_ends(&client, begun, body).await }
    });
    within(SOON, begun.notified()).await;
    assert!(!dropped.load(Ordering::SeqCst));

    let other = crate::support::client(&server.url()).await;
    assert!(other.lock("x").force_unlock().await.unwrap());
    let error = within(SOON, call).await.unwrap().unwrap_err().lock();
    assert!(
        dropped.load(Ordering::SeqCst),
        "the body is dropped before the error is returned"
    );
    assert!(error.is_not_held(), "{error:?}");
    assert_eq!(error.lock_name(), Some("x"));
    nothing_left(&server).await;
}

/// Work that ended before its loss was noticed was not protected to its end, so it is reported as
/// lost.
#[tokio::test]
async fn a_body_that_blocked_past_its_lease_is_a_loss() {
    #[locked("x", fixed_lease = "100ms")]
    async fn blocks(_locks: &Client, span: Duration) -> Result<(), Failed> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        Ok(())
    }

    let (server, client) = start().await;
    let span = Duration::from_millis(400);
    let error = blocks(&client, span).await.unwrap_err().lock();
    assert!(error.is_not_held(), "{error:?}");
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing() {
    let (server, client) = start().await;
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let call = never_ends(&client, Arc::clone(&begun), Dropped(Arc::clone(&dropped)));
    tokio::select! {
        _ = call => panic!("it never ends"),
        () = begun.notified() => {}
    }
    assert!(dropped.load(Ordering::SeqCst));
    idle(&client).await;
    nothing_left(&server).await;

    // Dropped while it waits.
    let held = client.lock("x").lock().await.unwrap();
    let call = lockset_testkit::spawn({
        let (client, body) = (client.clone(), Dropped(Arc::clone(&dropped)));
        async move { never_ends(&client, begun, body).await }
    });
    waiting(&client, 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    idle(&client).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_panic_releases() {
    #[locked("x")]
    async fn panics(locks: &Client) -> Result<(), Failed> {
        assert!(is_held(locks, "x").await);
        panic!("on purpose");
    }

    let (server, client) = start().await;
    let ended = std::panic::AssertUnwindSafe(panics(&client)).catch_unwind();
    let panicked = ended.await.unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
    idle(&client).await;
    nothing_left(&server).await;
}

/// A committed body must not be reported as failed, or the caller would repeat it.
#[tokio::test]
async fn a_committed_body_is_never_reported_as_failed() {
    #[locked("x")]
    async fn cuts_the_line(_locks: &Client, line: &Proxy) -> Result<&'static str, Failed> {
        line.hold_requests();
        Ok("committed")
    }

    #[locked("x", client = locks)]
    async fn is_freed(locks: &Client, other: &Client) -> Result<&'static str, Failed> {
        assert!(other.lock("x").force_unlock().await?);
        Ok("committed")
    }

    let (server, direct) = start().await;
    let line = Proxy::start(server.addr()).await;
    let client = client(&line.url()).await;
    let asked = Instant::now();
    let done = within(SOON, cuts_the_line(&client, &line)).await;
    took_less(asked, SOON / 2);
    assert_eq!(done.unwrap(), "committed");
    line.pass();
    eventually(SOON, "it is released in the background", async || {
        !is_held(&direct, "x").await
    })
    .await;

    // Another client frees the lock, so this client does not know when the body ends.
    assert_eq!(is_freed(&client, &direct).await.unwrap(), "committed");
    nothing_left(&server).await;
}
