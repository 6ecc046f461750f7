//! Tests of work whose caller polls it first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

use super::LEASE;
use crate::client::Client;
use crate::testing::{Answer, Scripted, granted};

fn client() -> Client {
    Client::over(&Scripted::new(|_| Answer::Value(granted())), LEASE)
}

#[tokio::test]
async fn work_that_is_begun_is_polled_at_once_and_driven_to_its_end() {
    let client = client();
    let watchdog = &client.core().watchdog;
    let polls = Arc::<AtomicUsize>::default();
    let (go_on, wait) = oneshot::channel::<()>();
    let (done, outcome) = oneshot::channel();
    let counted = Arc::clone(&polls);
    watchdog.begin(Box::pin(async move {
        counted.fetch_add(1, Ordering::Relaxed);
        wait.await.unwrap();
        done.send(()).unwrap();
    }));
    // The task has had no turn on this thread.
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    assert_eq!(watchdog.pending(), 1);
    go_on.send(()).unwrap();
    outcome.await.unwrap();
    watchdog.drain().await;
    assert_eq!(watchdog.pending(), 0);
}

#[tokio::test]
async fn work_that_ends_at_its_first_poll_is_not_handed_over() {
    let client = client();
    let (done, outcome) = oneshot::channel();
    let watchdog = &client.core().watchdog;
    watchdog.begin(Box::pin(async move { done.send(()).unwrap() }));
    assert_eq!(watchdog.pending(), 0);
    outcome.await.unwrap();
}

/// Otherwise its timers and sockets would belong to a runtime that may end.
#[tokio::test(flavor = "multi_thread")]
async fn elsewhere_than_on_its_runtime_work_is_only_handed_over() {
    let client = client();
    let here = Handle::current().id();
    let begin = || {
        let (done, outcome) = oneshot::channel();
        let client = client.clone();
        let begin = move || {
            client.core().watchdog.begin(Box::pin(async move {
                let there = Handle::try_current().map(|runtime| runtime.id());
                done.send(there.ok()).unwrap();
            }));
        };
        (begin, outcome)
    };
    let (on_a_thread, outcome) = begin();
    thread::spawn(on_a_thread).join().unwrap();
    assert_eq!(outcome.await.unwrap(), Some(here));
    let (on_another, outcome) = begin();
    thread::spawn(|| Runtime::new().unwrap().block_on(async { on_another() }))
        .join()
        .unwrap();
    assert_eq!(outcome.await.unwrap(), Some(here));
}

/// The runtime goes on.
#[tokio::test]
async fn an_error_after_a_panic_in_the_background_speaks_of_it() {
    let client = client();
    let watchdog = &client.core().watchdog;
    watchdog.drive(Box::pin(async { panic!("in the background") }));
    watchdog.drain().await;
    let error = client.lock("x").try_lock().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(error.to_string().contains("panic"), "{error}");
}
