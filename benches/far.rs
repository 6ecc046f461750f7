//! Servers that are 1 ms and 20 ms away: own locks, a hot lock, a fair lock, and a `Redlock` of three and of five.
//!
//! Everything goes through a way that delays both directions (`support/distance.rs`). So does the floor, with as many
//! tasks: own locks over one connection; for a lock that all want, one task that takes and releases, as a floor without
//! a hand-over does no better with more; for a `Redlock`, the bare commands to all servers at once, until
//! all have answered. How far a server is, is measured by `PING` over the same way in the same round. At a distance, grants a
//! second depend on it more than on the machine, so they are printed beside the ratios.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockset::{FairLock, Redlock, RedlockLock, ReentrantLock};
use lockset_testkit::Server;
use tokio::runtime::Runtime;

use support::arguments::{Arguments, Effort};
use support::distance::way_to;
use support::floor::{Floor, FloorLock, Nagle};
use support::rounds::{median, note, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const DISTANCES: [(&str, Duration); 2] = [
    ("1 ms", Duration::from_millis(1)),
    ("20 ms", Duration::from_millis(20)),
];

const WAY: &str = "far/the way itself";

const ROUNDS: usize = 5;
const SPAN: Duration = Duration::from_secs(1);

const TASKS: usize = 64;
const FAIR_TASKS: usize = 32;

/// `PING`s that say how far the server is.
const PINGS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Own,
    Hot,
    Fair,
    /// Own locks, and one that all want, on this many servers.
    Quorum(usize),
    HotQuorum(usize),
}

impl Job {
    const ALL: [Self; 7] = [
        Self::Own,
        Self::Hot,
        Self::Fair,
        Self::Quorum(3),
        Self::Quorum(5),
        Self::HotQuorum(3),
        Self::HotQuorum(5),
    ];

    fn name(self, distance: &str) -> String {
        let what = match self {
            Self::Own => format!("{TASKS} own locks"),
            Self::Hot => format!("hot lock, {TASKS} tasks"),
            Self::Fair => format!("fair lock, {FAIR_TASKS} tasks"),
            Self::Quorum(servers) => format!("Redlock of {servers}, {TASKS} own"),
            Self::HotQuorum(servers) => format!("Redlock of {servers}, hot"),
        };
        format!("far/{distance}/{what}")
    }
}

fn main() {
    let arguments = Arguments::of_this_run();
    let mut all = vec![(WAY.to_owned(), None)];
    for (distance, round_trip) in DISTANCES {
        all.extend(Job::ALL.map(|job| (job.name(distance), Some((job, round_trip)))));
    }
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    if arguments.listed(&names) {
        return;
    }
    let servers = place::servers(5);
    let runtime = Flavour::MultiThread.runtime();
    for (name, job) in &all {
        if !arguments.wants(name) {
            continue;
        }
        match *job {
            None => way_itself(&arguments, &runtime, &servers[0]),
            Some((job, round_trip)) => {
                compare(&arguments, name, &runtime, &servers, job, round_trip)
            }
        }
    }
}

/// One task's way to one lock.
#[derive(Clone)]
enum Subject {
    Reentrant(ReentrantLock),
    Fair(FairLock),
    Redlock(RedlockLock),
    Floor(FloorLock),
    /// The floor of a `Redlock`.
    Floors(Vec<FloorLock>),
}

impl Subject {
    /// Takes the lock and releases it.
    async fn hold(&mut self) {
        match self {
            Self::Reentrant(lock) => {
                let guard = lock.lock().await.expect("the lock");
                guard.release().await.expect("a hold that was kept");
            }
            Self::Fair(lock) => {
                let guard = lock.lock().await.expect("the lock");
                guard.release().await.expect("a hold that was kept");
            }
            Self::Redlock(lock) => {
                let guard = lock.lock().await.expect("the lock");
                guard.release().await.expect("a hold that was kept");
            }
            Self::Floor(lock) => lock.cycle().await,
            Self::Floors(locks) => {
                let taken = locks.iter_mut().map(FloorLock::try_acquire);
                let taken = join_all(taken).await;
                assert!(taken.into_iter().all(|taken| taken), "nobody else wants it");
                join_all(locks.iter_mut().map(FloorLock::release)).await;
            }
        }
    }
}

async fn ours(job: Job, urls: &[String]) -> Vec<Subject> {
    let client = lockset_client(&urls[0]).await;
    match job {
        Job::Own => own(|task| Subject::Reentrant(client.lock(format!("own:{task}")))),
        Job::Hot => vec![Subject::Reentrant(client.lock("hot")); TASKS],
        Job::Fair => vec![Subject::Fair(client.fair_lock("fair")); FAIR_TASKS],
        Job::Quorum(servers) => {
            let redlock = redlock(&urls[..servers]).await;
            own(|task| Subject::Redlock(redlock.lock(format!("own:{servers}:{task}"))))
        }
        Job::HotQuorum(servers) => {
            let redlock = redlock(&urls[..servers]).await;
            vec![Subject::Redlock(redlock.lock(format!("hot:{servers}"))); TASKS]
        }
    }
}

fn own(subject: impl FnMut(usize) -> Subject) -> Vec<Subject> {
    (0..TASKS).map(subject).collect()
}

async fn redlock(urls: &[String]) -> Redlock {
    let mut clients = Vec::new();
    for url in urls {
        clients.push(lockset_client(url).await);
    }
    // They have just been started, and vote at once.
    let redlock = Redlock::builder(clients).persistent_nodes();
    redlock.build().expect("servers that differ")
}

async fn floor(job: Job, urls: &[String], nagle: Nagle) -> Vec<Subject> {
    let (servers, tasks) = match job {
        Job::Own => (1, TASKS),
        Job::Hot | Job::Fair => (1, 1),
        Job::Quorum(servers) => (servers, TASKS),
        Job::HotQuorum(servers) => (servers, 1),
    };
    let mut floors = Vec::new();
    for url in &urls[..servers] {
        floors.push(Floor::connect(url, nagle).await);
    }
    let subject = |task| {
        let key = format!("floor:{job:?}:{nagle:?}:{task}");
        let mut locks = floors.iter().map(|floor| floor.lock(&key, &key));
        match servers {
            1 => Subject::Floor(locks.next().expect("one server")),
            _ => Subject::Floors(locks.collect()),
        }
    };
    (0..tasks).map(subject).collect()
}

/// Lets all subjects go on for `span`; returns grants a second.
fn speed(runtime: &Runtime, subjects: &[Subject], span: Duration) -> f64 {
    let subjects = subjects.to_vec();
    in_a_task(runtime, async move {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let tasks: Vec<_> = subjects
            .into_iter()
            .map(|mut subject| {
                let stop = Arc::clone(&stop);
                tokio::spawn(async move {
                    let mut grants = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        subject.hold().await;
                        grants += u64::from(!stop.load(Ordering::Relaxed));
                    }
                    grants
                })
            })
            .collect();
        tokio::time::sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        let elapsed = started.elapsed();
        let mut grants = 0;
        for task in tasks {
            grants += task.await.expect("no task panics");
        }
        grants as f64 / elapsed.as_secs_f64()
    })
}

/// The time of a `PING`, in seconds.
fn distance(runtime: &Runtime, floor: &Floor) -> f64 {
    let mut floor = floor.clone();
    in_a_task(runtime, async move {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let started = Instant::now();
            floor.ping().await;
            times.push(started.elapsed().as_secs_f64());
        }
        median(&times)
    })
}

fn compare(
    arguments: &Arguments,
    name: &str,
    runtime: &Runtime,
    servers: &[Server],
    job: Job,
    round_trip: Duration,
) {
    let ways = servers.iter().map(|server| way_to(server, round_trip));
    let urls: Vec<String> = ways.collect();
    let (probe, subjects) = runtime.block_on(async {
        let probe = Floor::connect(&urls[0], Nagle::Off).await;
        let off = floor(job, &urls, Nagle::Off).await;
        let on = floor(job, &urls, Nagle::On).await;
        (probe, [ours(job, &urls).await, off, on])
    });
    let span = span(arguments);
    let results = rounds(arguments, ROUNDS, name, |_| {
        let trip = distance(runtime, &probe);
        let speeds = subjects
            .each_ref()
            .map(|subjects| speed(runtime, subjects, span));
        (trip, speeds)
    });
    let of = |figure: &dyn Fn(f64, &[f64; 3]) -> f64| -> Vec<f64> {
        let figures = results.iter().map(|(trip, speeds)| figure(*trip, speeds));
        figures.collect()
    };
    let best = match median(&of(&|_, speeds| speeds[1])) >= median(&of(&|_, speeds| speeds[2])) {
        true => 1,
        false => 2,
    };
    let asked = round_trip.as_secs_f64();
    report(
        arguments,
        name,
        "PING/the distance asked for",
        &of(&|trip, _| trip / asked),
    );
    let ratios = of(&|_, speeds| speeds[0] / speeds[best]);
    report(arguments, name, "grants/s, lockset/floor", &ratios);
    for (who, index) in [("lockset", 0), ("floor", best)] {
        let a_second = of(&|_, speeds| speeds[index]);
        note(arguments, name, &format!("{who}: grants/s"), &a_second);
        let a_trip = of(&|trip, speeds| speeds[index] * trip);
        note(
            arguments,
            name,
            &format!("{who}: grants a round trip"),
            &a_trip,
        );
    }
}

/// What the way can carry: the floor over a way without a delay, against the floor without a way.
fn way_itself(arguments: &Arguments, runtime: &Runtime, server: &Server) {
    let urls = [way_to(server, Duration::ZERO), server.url()];
    let subjects = urls.map(|url| runtime.block_on(floor(Job::Own, &[url], Nagle::On)));
    let span = span(arguments);
    let results = rounds(arguments, ROUNDS, WAY, |_| {
        subjects
            .each_ref()
            .map(|subjects| speed(runtime, subjects, span))
    });
    let of =
        |figure: &dyn Fn(&[f64; 2]) -> f64| -> Vec<f64> { results.iter().map(figure).collect() };
    let what = "grants/s, floor over it/floor without it";
    report(arguments, WAY, what, &of(&|speeds| speeds[0] / speeds[1]));
    note(
        arguments,
        WAY,
        "floor over it: grants/s",
        &of(&|speeds| speeds[0]),
    );
}

fn span(arguments: &Arguments) -> Duration {
    match arguments.effort {
        Effort::Test => Duration::from_millis(50),
        _ => SPAN,
    }
}
