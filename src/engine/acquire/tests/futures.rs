//! Tests the sizes of futures. The future of a call is copied when it is made, and the future of a command is
//! allocated.

use std::time::Duration;

use crate::client::Client;
use crate::conn::Lane;
use crate::testing::{Answer, Scripted, granted};

/// Allocators serve smaller sizes from a cache.
const COMMAND_BYTES_MAX: usize = 384;
/// The limit with all features.
const CALL_BYTES_MAX: usize = 3_328;
const RELEASE_BYTES_MAX: usize = 768;

#[tokio::test]
async fn the_futures_of_a_call_are_small() {
    let client = Client::builder("redis://127.0.0.1:1").lazy();
    let client = client.build().await.unwrap();
    let transport = &client.core().scripts.transport;
    let (ping, limit) = (redis::cmd("PING"), Duration::from_secs(1));
    let pair = [&ping; 2];
    let sent = |commands| transport.exchange(Lane::Command, "x", commands, limit);
    let [one, both] = [&pair[..1], &pair].map(sent);
    let sizes = [size_of_val(&*one), size_of_val(&*both)];
    assert!(
        sizes.iter().all(|size| *size <= COMMAND_BYTES_MAX),
        "{sizes:?}"
    );
    let lock = client.lock("x");
    let calls = [
        size_of_val(&lock.lock()),
        size_of_val(&lock.try_lock()),
        size_of_val(&lock.try_lock_for(limit)),
    ];
    assert!(
        calls.iter().all(|size| *size <= CALL_BYTES_MAX),
        "{calls:?}"
    );
}

#[tokio::test]
async fn the_future_of_a_release_is_small() {
    let server = Scripted::new(|_| Answer::Value(granted()));
    let client = Client::over(&server, Duration::from_secs(30));
    let guard = client.lock("x").lock().await.unwrap();
    let size = size_of_val(&guard.release());
    assert!(size <= RELEASE_BYTES_MAX, "{size}");
}
