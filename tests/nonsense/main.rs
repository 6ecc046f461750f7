//! A server sends nonsense on each of a client's connections. The tests check the error, the cost
//! in memory and processor time, and that the client recovers with the server.
//!
//! A separate program, because it measures memory and processor time.

mod peak;
mod relay;
#[cfg(feature = "tls")]
mod secured;
mod sentinel;

use std::alloc::System;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockset::{Client, ClientBuilder};
use lockset_testkit::{Server, eventually, within};
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Mutex;

use peak::Peak;
use relay::{LANES, Lane, Nonsense, Relay};

#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs one test at a time, so that each measures only itself.
static ALONE: Mutex<()> = Mutex::const_new(());

const LEASE: Duration = Duration::from_millis(1_500);
const SOON: Duration = Duration::from_secs(10);

/// A reply is awaited for a sixth of the lease, and a call retries until a third of the lease has
/// passed.
const TOLD: Duration = Duration::from_secs(3);

/// How long a waiter waits.
const WAIT: Duration = Duration::from_millis(1200);

/// Up to three clients, each on another lane, receive this at once: 16 MiB for one reply, and up to
/// three more copies of it.
const MEMORY_MAX: usize = 200 << 20;

/// The processor time per second of all clients that hear different nonsense at once.
const BUSY_MAX: f64 = 0.7;

/// Nonsense that ends by itself.
fn short() -> Vec<Nonsense> {
    let noise: Vec<u8> = (0..200_u32).map(|at| (at * at * 31 + 7) as u8).collect();
    vec![
        Nonsense::once("noise", noise),
        Nonsense::once("another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n"),
        Nonsense::once("half a text", "$10\r\nabc"),
        Nonsense::once("half an array", "*3\r\n:1\r\n"),
        Nonsense::once("a text of 1 GB", "$1073741824\r\nabc"),
        Nonsense::once("an array of 1 G", "*1073741824\r\n:1\r\n"),
        Nonsense::once("a push of 1 G", ">1073741824\r\n+message\r\n"),
        Nonsense::once("a negative length", "$-5\r\n"),
        Nonsense::once("unrequested replies", ":1\r\n".repeat(100)),
        Nonsense::once("a map", "%1\r\n+a\r\n:1\r\n".repeat(8)),
        Nonsense::once("a truth", "#t\r\n".repeat(8)),
        Nonsense::once("a text for a number", "$5\r\nhello\r\n".repeat(8)),
        Nonsense::once("an empty array", "*0\r\n".repeat(8)),
        Nonsense::once("an unknown status", ":-77\r\n".repeat(8)),
        Nonsense::once("an error without a word", "-\r\n".repeat(8)),
        Nonsense::once(
            "HELLO is refused",
            "-ERR unknown command 'HELLO'\r\n".repeat(8),
        ),
    ]
}

fn endless() -> Vec<Nonsense> {
    let text = format!("$60000\r\n{}\r\n", "x".repeat(60_000));
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n";
    let confirmed = (0..20_000).map(|nth| {
        let channel = format!("channel-{nth:06}");
        format!(">3\r\n$9\r\nsubscribe\r\n$14\r\n{channel}\r\n:1\r\n")
    });
    let confirmed: String = confirmed.collect();
    vec![
        Nonsense::endless("a line without end", "+", "x"),
        Nonsense::endless("a text of 1 GB", "$1073741824\r\n", "x"),
        Nonsense::endless("a text of 16 MB", "$16000000\r\n", "x"),
        Nonsense::endless("an array of long texts", "*125000\r\n", text),
        Nonsense::endless("an array of numbers", "*125000\r\n", ":1\r\n"),
        Nonsense::endless("arrays in arrays", "", "*1\r\n"),
        Nonsense::endless("empty arrays", "*125000\r\n", "*0\r\n"),
        Nonsense::endless("messages", "", message),
        Nonsense::endless("confirmations", "", confirmed),
        Nonsense::endless("replies", "", ":1\r\n"),
    ]
}

/// A client that uses all three connections: it holds one lock and waits for another.
struct Scene {
    server: Server,
    relay: Relay,
    client: Client,
    other: Client,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let relay = Relay::before(server.addr());
        let builder = Client::builder(&relay.url());
        Self::of(server, relay, builder).await
    }

    async fn of(server: Server, relay: Relay, builder: ClientBuilder) -> Self {
        let client = builder.lease(LEASE).build();
        let other = Client::builder(&server.url()).lease(LEASE).build();
        Self {
            client: client.await.unwrap(),
            other: other.await.unwrap(),
            relay,
            server,
        }
    }

    /// Checks the client while the server says this on one lane, and after it has stopped.
    async fn bears(&self, lane: Lane, nonsense: &Nonsense) {
        let held = self.client.lock("held").lock().await.unwrap();
        let busy = self.other.lock("busy").lock().await.unwrap();
        let lock = self.client.lock("busy");
        let waiter = tokio::spawn(async move { lock.try_lock_for(WAIT).await.map(drop) });
        self.waits().await;

        self.relay.says(lane, nonsense);
        let free = within(TOLD, self.client.lock("free").try_lock()).await;
        match (lane, free) {
            (Lane::Command, Ok(_)) => {
                // A valid reply to some command may be accepted.
                let may_be = nonsense.name.contains("replies");
                assert!(may_be, "{} was taken for a reply", nonsense.name);
            }
            (Lane::Command, Err(error)) => {
                let (told, at) = (error.to_string(), self.relay.address().to_string());
                let is_clear = told.contains(&at) || told.contains("what it never should");
                assert!(is_clear && told.contains("free"), "{told:.1000}");
                assert!(told.len() < 1000, "{told:.1000}");
            }
            (_, free) => drop(free.unwrap().expect("it is free")),
        }
        if lane == Lane::Renewal && !nonsense.name.starts_with("replies") {
            // Where no other connection for renewals can be made, they go over that of commands. What passes for
            // replies to a handshake costs the hold, and that is said.
            let lost = tokio::time::timeout(LEASE * 3 / 2, held.lost()).await;
            let is_kept = self.other.lock("held").is_locked().await.unwrap();
            assert!(lost.is_ok() || is_kept, "{}", nonsense.name);
        }
        // It fails or times out, but within its bound.
        let waited = within(WAIT + TOLD, waiter).await.unwrap();
        if let Err(error) = waited {
            assert!(!error.to_string().is_empty());
        }

        self.relay.is_sane();
        drop(held);
        self.works_again().await;
        drop(busy);
    }

    /// Waits until the client is subscribed.
    async fn waits(&self) {
        eventually(SOON, "it waits", async || {
            self.client.stats().waiters == 1 && !self.server.pubsub_channels().await.is_empty()
        })
        .await;
    }

    /// Checks all three lanes.
    async fn works_again(&self) {
        let lock = self.client.lock("again");
        eventually(SOON, "it takes a lock", async || {
            matches!(lock.try_lock().await, Ok(Some(_)))
        })
        .await;
        let patient = |client: &Client, name: &str| client.lock(name).give_up_after(SOON);
        let held = patient(&self.client, "renewed").lock().await.unwrap();
        let busy = patient(&self.other, "notified").lock().await.unwrap();
        let waits = patient(&self.client, "notified");
        let waiter = tokio::spawn(async move { waits.lock().await.map(drop) });
        self.waits().await;
        let renewed = tokio::time::sleep(LEASE * 2);
        tokio::select! {
            reason = held.lost() => panic!("it is not renewed: {reason:?}"),
            () = renewed => {}
        }
        let released = Instant::now();
        busy.release().await.unwrap();
        within(SOON, waiter).await.unwrap().unwrap();
        assert!(released.elapsed() < LEASE, "{:?}", released.elapsed());
    }
}

#[tokio::test]
async fn any_nonsense_is_an_error_and_the_client_recovers() {
    let _alone = ALONE.lock().await;
    let all = short();
    let cases = LANES
        .iter()
        .flat_map(|lane| all.iter().map(move |nonsense| (*lane, nonsense)));
    for some in cases.collect::<Vec<_>>().chunks(16) {
        join_all(some.iter().map(async |(lane, nonsense)| {
            Scene::new().await.bears(*lane, nonsense).await;
        }))
        .await;
    }
}

/// Checks a client that has its thread for itself.
fn alone_bears(lane: Lane, nonsense: &Nonsense) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { Scene::new().await.bears(lane, nonsense).await });
}

/// The processor time used by this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Messages arrive without end, and each is examined. Other tasks of the thread must still make progress. Each lane has
/// a thread, because a long reply is parsed in one turn.
#[test]
fn endless_replies_are_bounded_in_memory_and_time() {
    let _alone = ALONE.blocking_lock();
    for nonsense in endless() {
        let peak = Peak::begin();
        let all = LANES.map(|lane| {
            let nonsense = nonsense.clone();
            thread::spawn(move || alone_bears(lane, &nonsense))
        });
        for done in all {
            done.join().unwrap();
        }
        let peak = peak.end();
        println!("{}: {} KiB at most", nonsense.name, peak >> 10);
        assert!(peak < MEMORY_MAX, "{}: {peak}", nonsense.name);
    }
}

#[tokio::test]
async fn idle_clients_stay_idle_while_their_server_sends_nonsense() {
    let _alone = ALONE.lock().await;
    for lane in LANES {
        let said = short();
        let scenes = join_all(said.iter().map(async |nonsense| {
            let scene = Scene::new().await;
            // A held lock causes renewals.
            let held = scene.client.lock("held").lock().await.unwrap();
            scene.relay.says(lane, nonsense);
            let _ = within(TOLD, scene.client.lock("free").try_lock()).await;
            (scene, held)
        }));
        let scenes = scenes.await;
        let (began, used) = (Instant::now(), processor_time());
        tokio::time::sleep(LEASE).await;
        let used = (processor_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        println!("{lane:?}: {used:.3} of a processor");
        assert!(used < BUSY_MAX, "{lane:?}: {used}");
        drop(scenes);
    }
}
