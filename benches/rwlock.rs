//! The read-write lock where most only read, against the same work under the reentrant lock.
//!
//! 64 tasks of one client go on as fast as they can on one lock; a few of their turns write. With
//! work under the lock, readers that are beside each other pay; without any, it is the price of the
//! lock alone.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockset::{ReentrantLock, RwLock};
use lockset_testkit::Server;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use support::arguments::{Arguments, Effort};
use support::rounds::{median, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const TASKS: usize = 64;

const ROUNDS: usize = 7;

/// How long each subject runs before the other has its turn.
const TURN: Duration = Duration::from_millis(500);

/// Reading turns out of 100.
const MIXES: [u32; 2] = [90, 99];

/// The work under the lock.
const WORKS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(1)];

fn main() {
    let arguments = Arguments::of_this_run();
    let name = |reads: u32, work: Duration| {
        let (writes, work) = (100 - reads, work.as_millis());
        format!("rwlock/{reads}-{writes}/{work} ms of work")
    };
    let all = MIXES.map(|reads| WORKS.map(|work| name(reads, work)));
    if arguments.listed(
        &all.as_flattened()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    ) {
        return;
    }
    let server = place::server();
    for reads in MIXES {
        for work in WORKS {
            let name = name(reads, work);
            if arguments.wants(&name) {
                mix(&arguments, &server, reads, work, &name);
            }
        }
    }
}

#[derive(Clone)]
enum Subject {
    ReadWrite(RwLock),
    Reentrant(ReentrantLock),
}

impl Subject {
    /// One turn; says how long the wait for the lock was.
    async fn turn(&self, reads: bool, work: Duration) -> Duration {
        let asked = Instant::now();
        macro_rules! hold {
            ($guard:expr) => {{
                let guard = $guard.await.expect("the lock");
                let waited = asked.elapsed();
                if !work.is_zero() {
                    sleep(work).await;
                }
                guard.release().await.expect("a hold that was kept");
                waited
            }};
        }
        match self {
            Self::ReadWrite(lock) if reads => hold!(lock.read()),
            Self::ReadWrite(lock) => hold!(lock.write()),
            Self::Reentrant(lock) => hold!(lock.lock()),
        }
    }
}

/// The result of one turn of one subject.
struct Turn {
    per_second: f64,
    /// The waits of writers; each task finishes its turn when time is up.
    writers: Vec<Duration>,
}

impl Turn {
    fn median_writer(&self) -> Option<f64> {
        (!self.writers.is_empty()).then(|| median(&self.writers).as_secs_f64())
    }
}

fn run(runtime: &Runtime, subject: &Subject, reads: u32, work: Duration, span: Duration) -> Turn {
    let subject = subject.clone();
    in_a_task(runtime, async move {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (subject, stop) = (subject.clone(), Arc::clone(&stop));
                // Both subjects get equal turns.
                let mut dice = fastrand::Rng::with_seed(task as u64);
                tokio::spawn(async move {
                    let (mut in_time, mut writers) = (0_u64, Vec::new());
                    while !stop.load(Ordering::Relaxed) {
                        let is_read = dice.u32(..100) < reads;
                        let waited = subject.turn(is_read, work).await;
                        if !is_read {
                            writers.push(waited);
                        }
                        in_time += u64::from(!stop.load(Ordering::Relaxed));
                    }
                    (in_time, writers)
                })
            })
            .collect();
        sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        let elapsed = started.elapsed();
        let (mut turns, mut writers) = (0, Vec::new());
        for task in tasks {
            let (in_time, waits) = task.await.expect("no task panics");
            turns += in_time;
            writers.extend(waits);
        }
        Turn {
            per_second: turns as f64 / elapsed.as_secs_f64(),
            writers,
        }
    })
}

fn mix(arguments: &Arguments, server: &Server, reads: u32, work: Duration, name: &str) {
    let runtime = Flavour::MultiThread.runtime();
    // A client each, so that neither waits for what the other left in the background.
    let clients = [(); 2].map(|()| runtime.block_on(lockset_client(&server.url())));
    let subjects = [
        Subject::ReadWrite(clients[0].rw_lock(name)),
        Subject::Reentrant(clients[1].lock(format!("{name}/reentrant"))),
    ];
    let span = match arguments.effort {
        Effort::Test => Duration::from_millis(20),
        _ => TURN,
    };
    let results = rounds(arguments, ROUNDS, name, |round| {
        let mut turns = [0, 1].map(|_| None);
        for index in [round % 2, 1 - round % 2] {
            turns[index] = Some(run(&runtime, &subjects[index], reads, work, span));
        }
        turns.map(|turn| turn.expect("both had their turn"))
    });
    let speeds = results
        .iter()
        .map(|[rw, plain]| rw.per_second / plain.per_second);
    let what = "turns/s, read-write/reentrant";
    report(arguments, name, what, &speeds.collect::<Vec<_>>());
    let waits = results
        .iter()
        .filter_map(|[rw, plain]| Some(rw.median_writer()? / plain.median_writer()?));
    let waits: Vec<f64> = waits.collect();
    if !waits.is_empty() {
        let what = "a writer's wait p50, read-write/reentrant";
        report(arguments, name, what, &waits);
    }
}
