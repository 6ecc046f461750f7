//! What it costs to keep ten thousand locks, and a hundred thousand: renewals, seen by the server, by
//! this process, and by another client of the same server.
//!
//! Compared with Redisson's way: its batches of 100, one after the other, over a bare connection of
//! the same library. lockset also lengthens no lease that is longer already, and knows the deadline
//! of each hold; that is the price to be seen here.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockset::{Client, ReentrantGuard};
use lockset_testkit::Server;
use tokio::runtime::Runtime;
use tokio::time::{sleep, sleep_until};

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, Nagle};
use support::place::cpu;
use support::rounds::{report, rounds};
use support::{Flavour, in_a_task, place, redisson};


const ROUNDS: usize = 3;

/// So many holds, and their lease; a third of it passes before anything is renewed. The first is
/// short, so that a round is.
const SIZES: [(usize, Duration); 2] = [
    (10_000, Duration::from_secs(3)),
    (100_000, Duration::from_secs(30)),
];

/// The lease by which the share of a processor is told: the default.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// Redisson's default.
const BATCH: usize = 100;

/// A batch that takes the server longer than this holds up others.
const BATCH_TIME_MAX: Duration = Duration::from_millis(1);

/// Holds are taken by this many tasks.
const TAKERS: usize = 64;

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let server = Arc::new(place::server());
    let runtime = Flavour::MultiThread.runtime();
    let holds = match arguments.effort {
        Effort::Test => BATCH,
        _ => HOLDS,
    };
    let results = rounds(&arguments, ROUNDS, NAME, |_| {
        // Once for the costs, and once with somebody else at the server.
        let of_lockset = [false, true].map(|beside| lockset(&runtime, &server, holds, beside));
        let of_redisson = [false, true].map(|beside| redisson(&runtime, &server, holds, beside));
        (of_lockset, of_redisson)
    });
    if cpu::of_server(&server).is_some() {
        for (what, cost) in [
            ("server CPU of a renewal, lockset/Redisson", 0),
            ("client CPU of a renewal, lockset/Redisson", 1),
        ] {
            let ratios: Vec<f64> = results
                .iter()
                .map(|(ours, theirs)| ours[0].costs[cost] / theirs[0].costs[cost])
                .collect();
            report(&arguments, NAME, what, &ratios);
        }
    }
    let batches: Vec<f64> = results
        .iter()
        .map(|(ours, theirs)| ours[0].batch / theirs[0].batch)
        .collect();
    report(
        &arguments,
        NAME,
        "holds in one command, lockset/Redisson",
        &batches,
    );
    let ours: Vec<f64> = results.iter().map(|(ours, _)| ours[1].tail).collect();
    let theirs: Vec<f64> = results.iter().map(|(_, theirs)| theirs[1].tail).collect();
    for (who, tails) in [("lockset", ours), ("Redisson", theirs)] {
        let what = format!("{who}: PINGs beside it, p99/p50");
        report(&arguments, NAME, &what, &tails);
    }
}

/// What renewing all holds once came to.
struct Renewing {
    /// Nanoseconds of the server and of this process for one hold. Both ways include what an idle
    /// server and an idle client cost in the same time.
    costs: [f64; 2],
    /// Holds in one command.
    batch: f64,
    /// What a hundredth of another client's `PING`s exceeded, as a multiple of their median; 0 if
    /// there was no other client.
    tail: f64,
}

fn lockset(runtime: &Runtime, server: &Arc<Server>, holds: usize, beside: bool) -> Renewing {
    let server = Arc::clone(server);
    in_a_task(runtime, async move {
        empty(&server).await;
        let client = Client::builder(&server.url()).lease(LEASE);
        let client = client.build().await.expect("a client");
        let started = Instant::now();
        let guards = take(&client, holds).await;
        let first_renewal = started + LEASE / 3;
        sleep_until((first_renewal - LEASE / 20).into()).await;
        let renewing = window(&server, holds, beside, sleep(WINDOW)).await;
        assert!(guards.iter().all(|guard| !guard.is_lost()), "all are kept");
        // Without this each guard would be released.
        client.shutdown().await.expect("an end");
        renewing
    })
}

async fn take(client: &Client, holds: usize) -> Vec<ReentrantGuard> {
    let takers: Vec<_> = (0..TAKERS)
        .map(|taker| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for hold in (taker..holds).step_by(TAKERS) {
                    let lock = client.lock(format!("watchdog:{hold}"));
                    guards.push(lock.lock().await.expect("the lock"));
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for taker in takers {
        guards.extend(taker.await.expect("no task panics"));
    }
    guards
}

fn redisson(runtime: &Runtime, server: &Arc<Server>, holds: usize, beside: bool) -> Renewing {
    let server = Arc::clone(server);
    in_a_task(runtime, async move {
        empty(&server).await;
        let mut floor = Floor::connect(&server.url(), Nagle::Off).await;
        let acquire = floor.load(redisson::ACQUIRE).await;
        let renew = floor.load(redisson::RENEW).await;
        let id = uuid::Uuid::new_v4();
        let locks: Vec<(String, String)> = (0..holds)
            .map(|hold| (format!("watchdog:{hold}"), format!("{id}:{hold}")))
            .collect();
        for (key, holder) in &locks {
            floor.ask(&redisson::acquire(&acquire, key, holder)).await;
        }
        let work = async {
            for batch in locks.chunks(BATCH) {
                floor.ask(&redisson::renew(&renew, batch)).await;
            }
        };
        let work = async {
            tokio::join!(work, sleep(WINDOW));
        };
        window(&server, holds, beside, work).await
    })
}

/// What happens while `work` goes on, and whether all holds were renewed in it.
async fn window(
    server: &Arc<Server>,
    holds: usize,
    beside: bool,
    work: impl Future<Output = ()>,
) -> Renewing {
    let stop = Arc::new(AtomicBool::new(false));
    let other = beside.then(|| tokio::spawn(pings(server.url(), Arc::clone(&stop))));
    server.reset_stats().await;
    let cpu = || [cpu::of_server(server), cpu::of_clients()].map(|cpu| cpu.unwrap_or(0));
    let before = cpu();
    work.await;
    let after = cpu();
    stop.store(true, Ordering::Relaxed);
    let calls = server.commandstats().await;
    let renewed = calls.get("pexpire").copied();
    assert_eq!(renewed, Some(holds as u64), "each hold is renewed once");
    let tail = match other {
        Some(other) => other.await.expect("no task panics"),
        None => 0.0,
    };
    Renewing {
        costs: [0, 1].map(|who| (after[who] - before[who]) as f64 / holds as f64),
        batch: holds as f64 / calls["evalsha"] as f64,
        tail,
    }
}

/// Another client, which asks all the time: how much longer than usual its slow answers take.
async fn pings(url: String, stop: Arc<AtomicBool>) -> f64 {
    let mut floor = Floor::connect(&url, Nagle::Off).await;
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        floor.ping().await;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let at = |hundredth: usize| times[times.len() * hundredth / 100].as_secs_f64();
    at(99) / at(50)
}

async fn empty(server: &Server) {
    let mut floor = Floor::connect(&server.url(), Nagle::Off).await;
    let mut flush = redis::cmd("FLUSHALL");
    flush.arg("SYNC");
    floor.ask(&flush).await;
}
