//! Programs whose tests pause tokio's clock while they use a real server.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Proxy, Server, unique_name};

#[tokio::test(start_paused = true)]
async fn a_real_server_can_be_used_while_time_is_paused() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    proxy.delay_replies(Duration::from_millis(20));
    let (ours, theirs) = (
        Client::connect(&proxy.url()).await.unwrap(),
        Client::connect(&proxy.url()).await.unwrap(),
    );
    let name = unique_name("lock");
    let guard = ours.lock(&name).lock().await.unwrap();
    assert!(theirs.lock(&name).try_lock().await.unwrap().is_none());
    let lock = theirs.lock(&name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await });
    // An hour of the runtime's clock. The lease runs on the machine's clock.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// An outage is measured by the machine's clock.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_an_error_in_the_machines_time() {
    let server = Server::start();
    server.stop();
    let timeout = Duration::from_millis(500);
    // The paused clock is behind the machine's by more than the timeout.
    std::thread::sleep(timeout * 2);
    let began = Instant::now();
    let builder = Client::builder(&server.url()).connect_timeout(timeout);
    let error = builder.build().await.unwrap_err();
    server.cont();
    assert!(error.is_io(), "{error}");
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
}
