//! One task, one lock, no contention: the distance of a cycle from the floor.
//!
//! Criterion measures both subjects one after the other. Its subjects cannot take turns, as a ratio on a busy machine
//! requires: rounds of short blocks after it do that.

mod support;

use std::time::{Duration, Instant};

use criterion::Criterion;
use lockset::{ReentrantLock, STICKY_MAX};
use lockset_testkit::Server;
use tokio::runtime::Runtime;

use support::arguments::Arguments;
use support::floor::{Floor, FloorLock, Nagle};
use support::rounds::{median_micros, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const GROUP: &str = "uncontended";

/// Rounds of a full comparison.
const ROUNDS: usize = 9;

/// The subjects take turns after this many cycles, some 15 ms.
const BLOCK: usize = 100;

/// Blocks of each subject in a round.
const BLOCKS: usize = 16;

fn main() {
    let arguments = Arguments::of_this_run();
    let server = place::server();
    if !arguments.ratios_only {
        times(&server);
    }
    for flavour in Flavour::ALL {
        let name = format!("{GROUP}/{}", flavour.name());
        if arguments.wants(&name) {
            cycle_ratio(&arguments, &server, flavour, &name);
            round_trips(&arguments, &server, flavour, &name);
            sticky(&arguments, &server, flavour, &name);
        }
    }
}

fn times(server: &Server) {
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for flavour in Flavour::ALL {
        cycle_times(&mut criterion, server, flavour);
    }
    criterion.final_summary();
}

/// A subject of the comparison: it can take a free lock and release it.
#[derive(Clone)]
enum Subject {
    Floor(FloorLock),
    Lockset(ReentrantLock),
}

impl Subject {
    async fn floor(server: &Server) -> Self {
        let floor = Floor::connect(&server.url(), Nagle::Off).await;
        Self::Floor(floor.lock(
            "uncontended:floor",
            "owner:0123456789abcdef0123456789abcdef",
        ))
    }

    async fn lockset(server: &Server) -> Self {
        let client = lockset_client(&server.url()).await;
        Self::Lockset(client.lock("uncontended:lockset"))
    }

    async fn cycle(&mut self) {
        match self {
            Self::Floor(lock) => lock.cycle().await,
            Self::Lockset(lock) => {
                let guard = lock.lock().await.expect("the lock");
                guard.release().await.expect("a hold that was kept");
            }
        }
    }

    /// The times of `cycles` cycles.
    async fn sample(&mut self, cycles: usize, times: &mut Vec<Duration>) {
        for _ in 0..cycles {
            let started = Instant::now();
            self.cycle().await;
            times.push(started.elapsed());
        }
    }
}

fn cycle_times(criterion: &mut Criterion, server: &Server, flavour: Flavour) {
    let runtime = flavour.runtime();
    let subjects = runtime.block_on(async {
        [
            ("floor", Subject::floor(server).await),
            ("lockset", Subject::lockset(server).await),
        ]
    });
    let mut group = criterion.benchmark_group(format!("{GROUP}/{}", flavour.name()));
    for (name, subject) in subjects {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|cycles| time_of(&runtime, &subject, cycles));
        });
    }
    group.finish();
}

fn time_of(runtime: &Runtime, subject: &Subject, cycles: u64) -> Duration {
    let mut subject = subject.clone();
    in_a_task(runtime, async move {
        let started = Instant::now();
        for _ in 0..cycles {
            subject.cycle().await;
        }
        started.elapsed()
    })
}

fn cycle_ratio(arguments: &Arguments, server: &Server, flavour: Flavour, name: &str) {
    let runtime = flavour.runtime();
    let (floor, lockset) = runtime.block_on(async {
        let floor = Subject::floor(server).await;
        (floor, Subject::lockset(server).await)
    });
    let blocks = arguments.scaled(BLOCKS);
    let block = arguments.scaled(BLOCK);
    let ratios = rounds(arguments, ROUNDS, name, |_| {
        let (mut floor, mut lockset) = (floor.clone(), lockset.clone());
        in_a_task(&runtime, async move {
            let (mut floors, mut locksets) = (Vec::new(), Vec::new());
            for _ in 0..blocks {
                floor.sample(block, &mut floors).await;
                lockset.sample(block, &mut locksets).await;
            }
            median_micros(&locksets) / median_micros(&floors)
        })
    });
    report(arguments, name, "cycle p50, lockset/floor", &ratios);
}

/// The caller's wait, in round trips: a `PING` on a connection like lockset's is one. The excess of the floor over a
/// round trip is the cost of any lock.
fn round_trips(arguments: &Arguments, server: &Server, flavour: Flavour, name: &str) {
    let runtime = flavour.runtime();
    let (floor, client) = runtime.block_on(async {
        let floor = Floor::connect(&server.url(), Nagle::Off).await;
        (floor, lockset_client(&server.url()).await)
    });
    let samples = arguments.scaled(BLOCK * BLOCKS / 2);
    let what = format!("{name}, in round trips");
    let results = rounds(arguments, ROUNDS, &what, |_| {
        let mut floor = floor.clone();
        let lock = client.lock("uncontended:round-trips");
        let mut floor_lock = floor.lock("uncontended:round-trips:floor", "somebody");
        in_a_task(&runtime, async move {
            let mut times: [Vec<Duration>; 5] = Default::default();
            for _ in 0..samples {
                let started = Instant::now();
                floor.ping().await;
                times[0].push(started.elapsed());

                let started = Instant::now();
                let guard = lock.lock().await.expect("the lock");
                times[1].push(started.elapsed());

                let started = Instant::now();
                guard.release().await.expect("a hold that was kept");
                times[2].push(started.elapsed());

                let started = Instant::now();
                drop(lock.lock().await.expect("the lock"));
                times[3].push(started.elapsed());
                // Lets the release through first, so that it delays nothing later.
                floor.ping().await;
                floor.ping().await;

                let started = Instant::now();
                assert!(floor_lock.try_acquire().await, "nobody else wants it");
                times[4].push(started.elapsed());
                floor_lock.release().await;
            }
            times.map(|times| median_micros(&times))
        })
    });
    let verbs = [
        "lock",
        "release",
        "lock + drop, as the caller sees it",
        "the floor's acquire",
    ];
    for (verb, index) in verbs.into_iter().zip(1..) {
        let ratios: Vec<f64> = results
            .iter()
            .map(|times| times[index] / times[0])
            .collect();
        report(arguments, name, &format!("{verb}, in PINGs"), &ratios);
    }
}

/// How many times as fast as the floor a client takes a lock again that stayed with it.
fn sticky(arguments: &Arguments, server: &Server, flavour: Flavour, name: &str) {
    let runtime = flavour.runtime();
    let (floor, client) = runtime.block_on(async {
        let floor = Subject::floor(server).await;
        (floor, lockset_client(&server.url()).await)
    });
    let lock = client.lock("uncontended:sticky").sticky(STICKY_MAX);
    let sticky = Subject::Lockset(lock);
    let blocks = arguments.scaled(BLOCKS);
    let block = arguments.scaled(BLOCK);
    let ratios = rounds(arguments, ROUNDS, name, |_| {
        let (mut floor, mut sticky) = (floor.clone(), sticky.clone());
        in_a_task(&runtime, async move {
            let (mut floors, mut stickies) = (Vec::new(), Vec::new());
            for _ in 0..blocks {
                floor.sample(block, &mut floors).await;
                sticky.sample(block, &mut stickies).await;
            }
            median_micros(&floors) / median_micros(&stickies)
        })
    });
    report(
        arguments,
        name,
        "sticky, taken again: floor/lockset p50",
        &ratios,
    );
}
