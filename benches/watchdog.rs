//! The cost of keeping ten thousand locks, and a hundred thousand: renewals, seen by the server, by this process, and
//! by another client of the server.
//!
//! Compared with Redisson's way: its batches of 100, one after the other, over a bare connection of
//! the same library. lockset also lengthens no lease that is longer already, and knows the deadline
//! of each hold; that is the price to be seen here.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use lockset::{Client, ReentrantGuard};
use lockset_testkit::Server;
use tokio::runtime::Runtime;
use tokio::time::{sleep, sleep_until};

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, Nagle};
use support::place::cpu;
use support::rounds::{report, rounds};
use support::{Flavour, TAKERS, in_a_task, place, redisson, slow};

/// The number of holds, their lease, and the rounds. A third of a lease passes before anything is renewed; the first is
/// short, so that a round is.
const SIZES: [(usize, Duration, usize); 2] = [
    (10_000, Duration::from_secs(3), 3),
    (100_000, Duration::from_secs(30), 1),
];

/// The lease that the share of a processor refers to: the default.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// Redisson's default.
const BATCH: usize = 100;

/// A batch that takes the server longer than this holds up others.
const BATCH_TIME_MAX: Duration = Duration::from_millis(1);

fn main() {
    let arguments = Arguments::of_this_run();
    let names = SIZES.map(|(holds, ..)| format!("watchdog/{holds} holds"));
    if arguments.listed(&names.each_ref().map(String::as_str)) {
        return;
    }
    let server = Arc::new(place::server());
    let runtime = Flavour::MultiThread.runtime();
    for (name, (holds, lease, rounds)) in names.iter().zip(SIZES) {
        if arguments.wants(name) {
            let load = match arguments.effort {
                Effort::Test => Load::of(BATCH, Duration::from_secs(3), 1),
                _ => Load::of(holds, lease, rounds),
            };
            compare(&arguments, name, &server, &runtime, load);
        }
    }
}

/// Holds that are renewed once while they are looked at.
#[derive(Clone, Copy)]
struct Load {
    holds: usize,
    lease: Duration,
    /// Begins before the first renewal and ends before any hold has its second.
    window: Duration,
    rounds: usize,
}

impl Load {
    fn of(holds: usize, lease: Duration, rounds: usize) -> Self {
        Self {
            holds,
            lease,
            window: lease * 3 / 10,
            rounds,
        }
    }
}

fn compare(arguments: &Arguments, name: &str, server: &Arc<Server>, runtime: &Runtime, load: Load) {
    let results = rounds(arguments, load.rounds, name, |_| {
        // Once for the costs, and once with another client at the server.
        let of_lockset = [false, true].map(|beside| lockset(runtime, server, load, beside));
        let of_redisson = [false, true].map(|beside| redisson(runtime, server, load, beside));
        (of_lockset, of_redisson)
    });
    let of = |figure: &dyn Fn(&[Renewing; 2], &[Renewing; 2]) -> f64| -> Vec<f64> {
        let figures = results.iter().map(|(ours, theirs)| figure(ours, theirs));
        figures.collect()
    };
    if cpu::of_server(server).is_some() {
        for (what, cost) in [
            ("server CPU of a renewal, lockset/Redisson", 0),
            ("client CPU of a renewal, lockset/Redisson", 1),
        ] {
            let ratios = of(&|ours, theirs| ours[0].costs[cost] / theirs[0].costs[cost]);
            report(arguments, name, what, &ratios);
        }
        // The share includes other work of this process during that time.
        let shares = of(&|ours, _| {
            let each = Duration::from_nanos(ours[0].costs[1] as u64);
            (each * load.holds as u32).as_secs_f64() / (USUAL_LEASE / 3).as_secs_f64()
        });
        let what = "client CPU/1 % of a processor, lease 30 s";
        report(
            arguments,
            name,
            what,
            &shares.iter().map(|share| share * 100.0).collect::<Vec<_>>(),
        );
    }
    let batches = of(&|ours, theirs| ours[0].batch / theirs[0].batch);
    report(
        arguments,
        name,
        "holds in one command, lockset/Redisson",
        &batches,
    );
    let longest = of(&|ours, _| ours[0].longest.as_secs_f64() / BATCH_TIME_MAX.as_secs_f64());
    report(
        arguments,
        name,
        "lockset: longest command/1 ms of the server",
        &longest,
    );
    let least = of(&|ours, _| ours[1].least_left);
    report(
        arguments,
        name,
        "lockset: shortest lease left/lease",
        &least,
    );
    for (who, tails) in [
        ("lockset", of(&|ours, _| ours[1].tail)),
        ("Redisson", of(&|_, theirs| theirs[1].tail)),
    ] {
        let what = format!("{who}: PINGs beside it, p99/p50");
        report(arguments, name, &what, &tails);
    }
}

/// The cost of renewing all holds once.
struct Renewing {
    /// Nanoseconds of the server and of this process for one hold. Both ways include what an idle
    /// server and an idle client cost in the same time.
    costs: [f64; 2],
    /// Holds in one command.
    batch: f64,
    /// The command that kept the server longest.
    longest: Duration,
    /// The rest of the lease of the hold that was renewed last, as a part of the lease.
    least_left: f64,
    /// A hundredth of another client's `PING`s took longer than this multiple of their median; 0 without another
    /// client.
    tail: f64,
}

fn lockset(runtime: &Runtime, server: &Arc<Server>, load: Load, beside: bool) -> Renewing {
    let server = Arc::clone(server);
    in_a_task(runtime, async move {
        empty(&server).await;
        // Only what renews: to announce itself, it would set another lease now and then.
        let client = Client::builder(&server.url())
            .lease(load.lease)
            .announce_every(Duration::MAX);
        let client = client.build().await.expect("a client");
        let started = Instant::now();
        let guards = take(&client, load.holds).await;
        let first_renewal = started + load.lease / 3;
        // It may come a little early, to go together with others.
        sleep_until((first_renewal - load.lease / 10).into()).await;
        let end = Instant::now() + load.window;
        let work = async {
            match beside {
                // Reading the leases adds to no cost that counts.
                true => least_left(&guards, load.lease, end).await,
                false => {
                    sleep_until(end.into()).await;
                    1.0
                }
            }
        };
        let renewing = window(&server, load.holds, beside, work).await;
        assert!(guards.iter().all(|guard| !guard.is_lost()), "all are kept");
        // Without this each guard would be released.
        client.shutdown().await.expect("an end");
        renewing
    })
}

async fn take(client: &Client, holds: usize) -> Vec<ReentrantGuard> {
    let takes = (0..holds).map(|hold| {
        let lock = client.lock(format!("watchdog:{hold}"));
        async move { lock.lock().await.expect("the lock") }
    });
    stream::iter(takes).buffer_unordered(TAKERS).collect().await
}

fn redisson(runtime: &Runtime, server: &Arc<Server>, load: Load, beside: bool) -> Renewing {
    let server = Arc::clone(server);
    in_a_task(runtime, async move {
        empty(&server).await;
        let mut floor = Floor::connect(&server.url(), Nagle::Off).await;
        let acquire = floor.load(redisson::ACQUIRE).await;
        let renew = floor.load(redisson::RENEW).await;
        let id = uuid::Uuid::new_v4();
        let locks: Vec<(String, String)> = (0..load.holds)
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
            tokio::join!(work, sleep(load.window));
            1.0
        };
        window(&server, load.holds, beside, work).await
    })
}

/// The costs while `work` goes on, and whether all holds were renewed in it.
async fn window(
    server: &Arc<Server>,
    holds: usize,
    beside: bool,
    work: impl Future<Output = f64>,
) -> Renewing {
    let mut admin = Floor::connect(&server.url(), Nagle::Off).await;
    slow::note(&mut admin, BATCH_TIME_MAX / 10).await;
    let stop = Arc::new(AtomicBool::new(false));
    let other = beside.then(|| tokio::spawn(pings(server.url(), Arc::clone(&stop))));
    server.reset_stats().await;
    let cpu = || [cpu::of_server(server), cpu::of_clients()].map(|cpu| cpu.unwrap_or(0));
    let before = cpu();
    let least_left = work.await;
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
        longest: slow::longest_script(&mut admin).await,
        least_left,
        tail,
    }
}

/// The least that was seen of any lease until `end`, as a part of it.
async fn least_left(guards: &[ReentrantGuard], lease: Duration, end: Instant) -> f64 {
    let mut least = lease;
    while Instant::now() < end {
        let left = guards.iter().map(ReentrantGuard::remaining).min();
        least = least.min(left.unwrap_or_default());
        sleep(lease / 100).await;
    }
    least.as_secs_f64() / lease.as_secs_f64()
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
    floor.ask(redis::cmd("FLUSHALL").arg("SYNC")).await;
}
