//! The testkit's waits end, and their panics say where and why.

use std::future::pending;
use std::time::{Duration, Instant};

use lockset_testkit::{eventually, within};

const SHORT: Duration = Duration::from_millis(50);

/// The message with which `wait` panics.
async fn panic_of(wait: impl Future<Output = ()> + Send + 'static) -> String {
    let panic = tokio::spawn(wait).await.unwrap_err().into_panic();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[tokio::test]
async fn within_gives_the_value() {
    assert_eq!(within(SHORT, async { 7 }).await, 7);
}

#[tokio::test]
async fn within_panics_when_late() {
    let message = panic_of(within(SHORT, pending())).await;
    assert!(message.starts_with("not within 50ms, at "), "{message}");
    assert!(message.contains(file!()), "{message}");
}

#[tokio::test]
async fn eventually_waits_for_the_answer() {
    let started = Instant::now();
    eventually(Duration::from_secs(5), "50 ms pass", async || {
        started.elapsed() >= SHORT
    })
    .await;
    assert!(started.elapsed() >= SHORT);
}

#[tokio::test]
async fn eventually_panics_with_the_reason() {
    let message = panic_of(eventually(SHORT, "pigs fly", async || false)).await;
    assert!(
        message.starts_with("pigs fly: not within 50ms"),
        "{message}"
    );
    assert!(message.contains(file!()), "{message}");
}

#[tokio::test]
async fn eventually_times_out_on_a_check_that_hangs() {
    let message = panic_of(eventually(SHORT, "it answers", async || pending().await)).await;
    assert!(message.starts_with("it answers"), "{message}");
}
