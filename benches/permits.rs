//! Permits of a semaphore: one task, many tasks on few permits, and permits that are kept.
//!
//! Compared with Redisson's way over the same library, by the scripts of its semaphore with leases, and with a floor: a
//! number that a script counts down and `INCR` counts up. The floor knows no lease, no holder and no waiter.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use lockset::{Client, Semaphore, SemaphoreGuard};
use lockset_testkit::Server;
use tokio::runtime::Runtime;
use tokio::time::{sleep, sleep_until};

use support::arguments::{Arguments, Effort};
use support::floor::{FloorPermits, Nagle};
use support::place::cpu;
use support::redisson::RedissonPermits;
use support::rounds::{median_micros, report, rounds};
use support::{Flavour, TAKERS, in_a_task, lockset_client, place};

const ONE_TASK: &str = "permits/one task";
const MANY_TASKS: &str = "permits/64 tasks on 8";
const KEPT: &str = "permits/10000 kept";

const ROUNDS: usize = 7;

/// Of one task: cycles of a subject before the next has its turn, and such blocks in a round.
const BLOCK: usize = 100;
const BLOCKS: usize = 12;

/// Of many tasks on few permits: how long each subject runs in a round.
const TASKS: usize = 64;
const PERMITS: u32 = 8;
const TURN: Duration = Duration::from_millis(600);

/// Permits that are kept, and their lease. A third of it passes before anything is
/// renewed; it is short, so that a round is.
const KEPT_PERMITS: usize = 10_000;
const KEPT_LEASE: Duration = Duration::from_secs(3);
const KEPT_ROUNDS: usize = 3;

/// The lease that the share of a processor refers to: the default.
const USUAL_LEASE: Duration = Duration::from_secs(30);

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[ONE_TASK, MANY_TASKS, KEPT]) {
        return;
    }
    let server = place::server();
    let runtime = Flavour::MultiThread.runtime();
    if arguments.wants(ONE_TASK) {
        one_task(&arguments, &server, &runtime);
    }
    if arguments.wants(MANY_TASKS) {
        many_tasks(&arguments, &server, &runtime);
    }
    if arguments.wants(KEPT) {
        kept(&arguments, &server, &runtime);
    }
}

/// One task's way to a permit.
#[derive(Clone)]
enum Subject {
    Lockset(Semaphore),
    Redisson(RedissonPermits),
    Floor(FloorPermits),
}

impl Subject {
    /// Takes a permit and gives it back at once.
    async fn cycle(&mut self) {
        match self {
            Self::Lockset(semaphore) => {
                let guard = semaphore.acquire().await.expect("a permit");
                guard.release().await.expect("a permit that was kept");
            }
            Self::Redisson(permits) => {
                let id = permits.acquire().await;
                permits.release(id).await;
            }
            Self::Floor(permits) => permits.cycle().await,
        }
    }
}

/// One subject of each way, on a semaphore of its own.
async fn subjects(server: &Server, name: &str) -> [Subject; 3] {
    let (url, key) = (server.url(), |way: &str| format!("{name}:{way}"));
    let semaphore = lockset_client(&url).await.semaphore(key("lockset"));
    let redisson = RedissonPermits::connect(&url, &key("Redisson"), PERMITS).await;
    let floor = FloorPermits::connect(&url, Nagle::Off, &key("floor"), PERMITS).await;
    [
        Subject::Lockset(semaphore.permits(PERMITS)),
        Subject::Redisson(redisson),
        Subject::Floor(floor),
    ]
}

fn one_task(arguments: &Arguments, server: &Server, runtime: &Runtime) {
    let subjects = runtime.block_on(subjects(server, ONE_TASK));
    let (blocks, block) = (arguments.scaled(BLOCKS), arguments.scaled(BLOCK));
    let results = rounds(arguments, ROUNDS, ONE_TASK, |_| {
        let mut subjects = subjects.clone();
        in_a_task(runtime, async move {
            let mut times: [Vec<Duration>; 3] = Default::default();
            for _ in 0..blocks {
                for (subject, times) in subjects.iter_mut().zip(&mut times) {
                    for _ in 0..block {
                        let started = Instant::now();
                        subject.cycle().await;
                        times.push(started.elapsed());
                    }
                }
            }
            times.map(|times| median_micros(&times))
        })
    });
    for (against, index) in [("Redisson", 1), ("floor", 2)] {
        let ratios: Vec<f64> = results.iter().map(|p50| p50[0] / p50[index]).collect();
        let what = format!("cycle p50, lockset/{against}");
        report(arguments, ONE_TASK, &what, &ratios);
    }
}

fn many_tasks(arguments: &Arguments, server: &Server, runtime: &Runtime) {
    let [lockset, redisson, _] = runtime.block_on(subjects(server, MANY_TASKS));
    let span = match arguments.effort {
        Effort::Test => Duration::from_millis(20),
        _ => TURN,
    };
    let results = rounds(arguments, ROUNDS, MANY_TASKS, |_| {
        [&lockset, &redisson].map(|subject| cycles_per_second(runtime, subject, span))
    });
    let ratios: Vec<f64> = results.iter().map(|[ours, theirs]| ours / theirs).collect();
    report(arguments, MANY_TASKS, "holds/s, lockset/Redisson", &ratios);
}

/// Lets many tasks go on for `span`. Each ends with the permit that it wants when time is up.
fn cycles_per_second(runtime: &Runtime, subject: &Subject, span: Duration) -> f64 {
    let subject = subject.clone();
    in_a_task(runtime, async move {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = [(); TASKS].map(|()| {
            let (mut subject, stop) = (subject.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut in_time = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    subject.cycle().await;
                    in_time += u64::from(!stop.load(Ordering::Relaxed));
                }
                in_time
            })
        });
        let started = Instant::now();
        sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        let elapsed = started.elapsed();
        let mut cycles = 0;
        for task in tasks {
            cycles += task.await.expect("no task panics");
        }
        cycles as f64 / elapsed.as_secs_f64()
    })
}

fn kept(arguments: &Arguments, server: &Server, runtime: &Runtime) {
    if cpu::of_clients().is_none() {
        println!("{KEPT}: this system does not say how long threads use a processor");
        return;
    }
    let permits = match arguments.effort {
        Effort::Test => TAKERS,
        _ => KEPT_PERMITS,
    };
    let url = server.url();
    let shares = rounds(arguments, KEPT_ROUNDS, KEPT, |_| {
        let url = url.clone();
        in_a_task(
            runtime,
            async move { share_of_renewals(&url, permits).await },
        )
    });
    let what = "client CPU/1 % of a processor, lease 30 s";
    report(arguments, KEPT, what, &shares);
}

/// The part of a processor, in hundredths, that this process needs to keep so many permits with the default lease.
/// Other work of the process during that time is included.
async fn share_of_renewals(url: &str, permits: usize) -> f64 {
    // Only what renews: to announce itself, it would set another lease now and then.
    let client = Client::builder(url)
        .lease(KEPT_LEASE)
        .announce_every(Duration::MAX);
    let client = client.build().await.expect("a client");
    let started = Instant::now();
    let guards = take(&client, permits).await;
    // A renewal may come a little early, to go together with others.
    sleep_until((started + KEPT_LEASE / 3 - KEPT_LEASE / 10).into()).await;
    let before = cpu::of_clients().unwrap_or(0);
    sleep(KEPT_LEASE * 3 / 10).await;
    let after = cpu::of_clients().unwrap_or(0);
    assert!(guards.iter().all(|guard| !guard.is_lost()), "all are kept");
    // Without this each guard would be released.
    client.shutdown().await.expect("an end");
    let each_time = Duration::from_nanos(after - before);
    100.0 * each_time.as_secs_f64() / (USUAL_LEASE / 3).as_secs_f64()
}

async fn take(client: &Client, permits: usize) -> Vec<SemaphoreGuard> {
    let total = u32::try_from(permits).expect("a small number");
    // A name for each round: a shutdown gives permits back in its time.
    let name = format!("permits:kept:{}", uuid::Uuid::new_v4());
    let semaphore = client.semaphore(name).permits(total);
    let takes = (0..permits).map(|_| {
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.expect("a permit") }
    });
    stream::iter(takes).buffer_unordered(TAKERS).collect().await
}
