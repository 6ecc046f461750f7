//! A server that was stopped or away: how a client under load behaves during and after that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockset::{Client, ReentrantLock};
use lockset_testkit::{Cluster, Proxy, Server, eventually, unique_name, within};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{SOON, idle};

/// The target is one second; a busy machine takes longer.
const BACK: Duration = Duration::from_secs(3);

/// How long a busy machine may take to reach the full rate at first.
const BEFORE: Duration = Duration::from_secs(30);

/// The window over which the rate of calls is measured.
const WINDOW: Duration = Duration::from_millis(500);

/// How long the server is stopped: longer than any reply timeout.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Starts calls at a fixed rate, regardless of the calls before.
struct Load {
    rate: u64,
    done: Arc<AtomicU64>,
    _calls: JoinSet<()>,
}

impl Load {
    /// Each call acquires and releases its own free lock.
    fn on(client: &Client, rate: u64) -> Self {
        let done = Arc::<AtomicU64>::default();
        let (client, counted) = (client.clone(), Arc::clone(&done));
        let mut calls = JoinSet::new();
        calls.spawn(async move {
            let name = unique_name("load");
            let mut turns = tokio::time::interval(Duration::from_secs(1) / rate as u32);
            let mut calls = JoinSet::new();
            for number in 0_u64.. {
                turns.tick().await;
                while calls.try_join_next().is_some() {}
                let lock = client.lock(format!("{name}-{number}"));
                let done = Arc::clone(&counted);
                calls.spawn(async move {
                    if let Ok(Some(guard)) = lock.try_lock().await
                        && guard.release().await.is_ok()
                    {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self {
            rate,
            done,
            _calls: calls,
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until a new call succeeds.
    async fn succeeds(&self, bound: Duration) {
        let before = self.done();
        let more = async || self.done() > before;
        eventually(bound, "a call succeeds", more).await;
    }

    /// Waits until calls succeed at about the rate at which they start.
    async fn is_at_full_rate(&self, bound: Duration) {
        let at_rate = async || {
            let (before, began) = (self.done(), Instant::now());
            sleep(WINDOW).await;
            let come = self.rate as f64 * began.elapsed().as_secs_f64();
            (self.done() - before) as f64 >= 0.8 * come
        };
        eventually(bound, "the full rate", at_rate).await;
    }
}

/// The measurements of a recovery.
struct Comeback {
    /// From the server's return until the first call succeeded, and until the calls of half a
    /// second did.
    first: Duration,
    full: Duration,
    /// The number of connections opened since the server was stopped.
    opened: u64,
}

/// Stops a server at this distance for two seconds while calls start at this rate.
async fn comes_back(distance: Duration, rate: u64) -> Comeback {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    proxy.delay_replies(distance);
    let load = Load::on(&client, rate);
    load.is_at_full_rate(BEFORE).await;
    let before = proxy.asked_for();
    server.stop();
    sleep(STANDSTILL).await;
    server.cont();
    let back = Instant::now();
    load.succeeds(BACK).await;
    let first = back.elapsed();
    load.is_at_full_rate(SOON * 2).await;
    let full = back.elapsed().saturating_sub(WINDOW);
    let opened = proxy.asked_for() - before;
    assert!(opened <= 6, "{opened} connections");
    drop(load);
    idle(&client).await;
    Comeback {
        first,
        full,
        opened,
    }
}

/// The figures of docs/topology.md.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn time_until_a_server_is_used_again() {
    for (distance, rate) in [
        (1, 1000),
        (5, 200),
        (20, 20),
        (50, 20),
        (50, 200),
        (50, 1000),
    ] {
        let Comeback {
            first,
            full,
            opened,
        } = comes_back(Duration::from_millis(distance), rate).await;
        println!(
            "| {distance} ms | {rate} | {} ms | {} ms | {opened} |",
            first.as_millis(),
            full.as_millis()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_used_again() {
    comes_back(Duration::from_millis(1), 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_distant_server_is_used_again_at_once() {
    comes_back(Duration::from_millis(20), 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_is_one_far_away() {
    comes_back(Duration::from_millis(50), 200).await;
}

/// For all kinds of callers, and any number of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_is_asked_a_few_times_a_second() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let lease = Duration::from_secs(3);
    let client = Client::builder(&proxy.url()).lease(lease).build();
    let client = client.await.unwrap();
    let _held = client.lock("held").lock().await.unwrap();
    let lock = client.lock("held");
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.map(drop) });
    let load = Load::on(&client, 200);
    load.is_at_full_rate(BEFORE).await;
    proxy.refuse(true);
    proxy.cut();
    let before = (proxy.asked_for(), Instant::now());
    sleep(Duration::from_secs(4)).await;
    let asked_for = proxy.asked_for() - before.0;
    let allowed = 4.0 * before.1.elapsed().as_secs_f64() + 2.0;
    assert!((asked_for as f64) < allowed, "{asked_for} in four seconds");
    assert!(asked_for > 4, "it keeps trying: {asked_for}");
    proxy.refuse(false);
    load.succeeds(BACK).await;
    load.is_at_full_rate(SOON * 2).await;
    waiter.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_is_used_again() {
    let cluster = Cluster::builder().replicas(0).proxied();
    let cluster = cluster.node_timeout(Duration::from_secs(30)).start().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    for node in cluster.nodes() {
        cluster.proxy(node).delay_replies(Duration::from_millis(20));
    }
    let load = Load::on(&client, 200);
    load.is_at_full_rate(BEFORE).await;
    let frozen = cluster.node(0);
    frozen.stop();
    sleep(STANDSTILL).await;
    let before = cluster.proxy(frozen).asked_for();
    frozen.cont();
    load.is_at_full_rate(SOON * 2).await;
    // Connections to this node: the client's three, and a few for the slot map.
    let opened = cluster.proxy(frozen).asked_for() - before;
    assert!(opened <= 20, "{opened} connections");
}

/// A dropped client stops dialling, even if its callers were waiting.
#[tokio::test]
async fn a_dropped_client_stops_dialling() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::builder(&proxy.url()).lazy().build().await.unwrap();
    proxy.hold_requests();
    let lock = client.lock("x");
    let call = lockset_testkit::spawn(async move { lock.try_lock().await.map(drop) });
    let dials = async || proxy.connections() == 1;
    eventually(SOON, "it dials", dials).await;
    call.abort();
    drop(client);
    eventually(SOON, "it hangs up", async || proxy.connections() == 0).await;
}

/// A server that never answers, and a client without a connection.
async fn without_an_answer() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::builder(&proxy.url()).lazy().build().await.unwrap();
    proxy.hold_requests();
    (server, proxy, client)
}

/// Calls on a separate runtime, without an answer, and returns the runtime, which is not driven
/// afterwards. Blocks.
fn call_without_an_answer(lock: &ReentrantLock) -> Runtime {
    let builder = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = builder.unwrap();
    let call = async { tokio::time::timeout(Duration::from_millis(300), lock.try_lock()).await };
    assert!(runtime.block_on(call).is_err(), "there is no answer");
    runtime
}

/// A thread may make a single call on a runtime and keep the runtime without driving it.
#[tokio::test]
async fn a_stalled_runtime_delays_no_other_caller() {
    let (_server, proxy, client) = without_an_answer().await;
    let lock = client.lock("x");
    let asks = tokio::task::spawn_blocking(move || call_without_an_answer(&lock));
    let still = within(SOON, asks).await.unwrap();
    proxy.pass();
    let guard = within(SOON, client.lock("y").lock()).await.unwrap();
    within(SOON, guard.release()).await.unwrap();
    still.shutdown_background();
}

#[tokio::test]
async fn a_runtime_that_ends_does_not_hang_calls() {
    let (_server, proxy, client) = without_an_answer().await;
    let lock = client.lock("x");
    let asks = tokio::task::spawn_blocking(move || drop(call_without_an_answer(&lock)));
    let lock = client.lock("y");
    let call =
        lockset_testkit::spawn(async move { lock.try_lock().await.map(|guard| guard.is_some()) });
    within(SOON, asks).await.unwrap();
    proxy.pass();
    assert!(within(SOON, call).await.unwrap().unwrap(), "it is taken");
}
