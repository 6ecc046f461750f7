//! Other processes that use the lock of a test until they are killed.

use lockset::{Client, Result};
use lockset_testkit::Server;

use crate::failures::process::{Process, started_for};
use crate::support::client;

/// Starts a process that reads.
pub(super) fn that_reads(server: &Server, name: &str) -> Process {
    let process = Process::start("kinds::rwlock::process::reader", server, name);
    assert_eq!(process.answer(), "held");
    process
}

/// Starts a process that writes as soon as it can.
pub(super) fn that_wants_to_write(server: &Server, name: &str) -> Process {
    Process::start("kinds::rwlock::process::writer", server, name)
}

#[test]
#[ignore = "not a test: another process of the tests of the read-write lock"]
fn reader() {
    hold(async |client, name| client.rw_lock(name).read().await);
}

#[test]
#[ignore = "not a test: another process of the tests of the read-write lock"]
fn writer() {
    hold(async |client, name| client.rw_lock(name).write().await);
}

fn hold<G>(take: impl AsyncFnOnce(Client, String) -> Result<G>) {
    let Some((url, name)) = started_for() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let take = async { take(client(&url).await, name).await };
    let _guard = runtime.block_on(take).unwrap();
    println!("answer:held");
    // Until it is killed, or its parent exits.
    let _ = std::io::stdin().lines().next();
}
