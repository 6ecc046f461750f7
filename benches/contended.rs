//! Many tasks: each on its own lock, and all on one.
//!
//! Own locks show what lockset adds to a busy connection. One hot lock shows the way from a release to the next holder.
//! It is compared with Redisson's way, with a floor that polls, and with a floor without hand-over: one task that takes
//! and releases as fast as it can.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use lockset::ReentrantLock;
use lockset_testkit::Server;
use tokio::runtime::Runtime;

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, FloorLock, Nagle};
use support::ours::catalog;
use support::redisson::{RedissonClient, RedissonLock};
use support::rounds::{jain_index, median, note, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const TASKS: usize = 64;

const ROUNDS_OWN: usize = 7;
const ROUNDS_HOT: usize = 5;

/// How long each subject runs before the next has its turn, and the turns of a round. Waits are
/// longer than a short turn where many want one lock.
const TURN_OWN: Duration = Duration::from_millis(50);
const TURNS_OWN: usize = 4;
const TURN_HOT: Duration = Duration::from_millis(800);

/// The least share of a hot lock that each client must get, as a part of an equal share.
const LEAST_SHARE: f64 = 0.6;

/// The pause of the lock that polls: the floor waits this long while another task has the lock.
const POLL: Duration = Duration::from_millis(10);

fn main() {
    let arguments = Arguments::of_this_run();
    let server = place::server();
    if !arguments.ratios_only {
        times(&server);
    }
    for flavour in Flavour::ALL {
        for tasks in [1, 8, TASKS, 512] {
            let name = format!("own locks/{tasks} tasks/{}", flavour.name());
            if arguments.wants(&name) {
                own_locks_ratio(&arguments, &server, flavour, tasks, &name);
            }
        }
    }
    for clients in [1, 4, 8, 16] {
        let name = format!("hot lock/{clients} x {} tasks", TASKS / clients);
        if arguments.wants(&name) {
            hot_lock_ratio(&arguments, &server, clients, &name);
        }
    }
}

fn times(server: &Server) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for flavour in Flavour::ALL {
        own_locks_times(&mut criterion, server, flavour);
    }
    hot_lock_times(&mut criterion, server);
    criterion.final_summary();
}

/// One task's way to one lock.
#[derive(Clone)]
enum Subject {
    Lockset(ReentrantLock),
    Floor(FloorLock),
    Scripts(FloorLock),
    Redisson(RedissonLock),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lockset,
    Floor(Nagle),
    /// The floor over lockset's socket.
    FloorInPortions,
    /// Lockset's scripts on the floor's connection, with nothing of lockset around them.
    Scripts(Nagle),
    Redisson,
}

impl Subject {
    /// Takes the lock and gives it back at once; says how long it took to get it.
    async fn hold(&mut self) -> Duration {
        let started = Instant::now();
        match self {
            Self::Lockset(lock) => {
                let guard = lock.lock().await.expect("the lock");
                let waited = started.elapsed();
                guard.release().await.expect("a hold that was kept");
                waited
            }
            Self::Floor(lock) => {
                while !lock.try_acquire().await {
                    tokio::time::sleep(POLL).await;
                }
                let waited = started.elapsed();
                lock.release().await;
                waited
            }
            Self::Scripts(lock) => {
                lock.scripts_cycle().await;
                started.elapsed()
            }
            Self::Redisson(lock) => {
                lock.acquire().await;
                let waited = started.elapsed();
                lock.release().await;
                waited
            }
        }
    }
}

/// `tasks` subjects of one client, each with the lock that `key` names for it.
async fn client_of(
    kind: Kind,
    server: &Server,
    tasks: usize,
    key: impl Fn(usize) -> String,
) -> Vec<Subject> {
    let url = server.url();
    let mut subjects = Vec::new();
    match kind {
        Kind::Lockset => {
            let client = lockset_client(&url).await;
            subjects.extend((0..tasks).map(|task| Subject::Lockset(client.lock(key(task)))));
        }
        Kind::Floor(nagle) => {
            let floor = Floor::connect(&url, nagle).await;
            subjects.extend(floor_locks(&floor, tasks, key).map(Subject::Floor));
        }
        Kind::FloorInPortions => {
            let floor = Floor::in_portions(&url).await;
            subjects.extend(floor_locks(&floor, tasks, key).map(Subject::Floor));
        }
        Kind::Scripts(nagle) => {
            let mut floor = Floor::connect(&url, nagle).await;
            for script in [&catalog::REENTRANT_ACQUIRE, &catalog::REENTRANT_RELEASE] {
                floor.load(script.text()).await;
            }
            subjects.extend(floor_locks(&floor, tasks, key).map(Subject::Scripts));
        }
        Kind::Redisson => {
            let client = RedissonClient::connect(&url, &key(0)).await;
            subjects.extend((0..tasks).map(|task| Subject::Redisson(client.lock(task))));
        }
    }
    subjects
}

fn floor_locks(
    floor: &Floor,
    tasks: usize,
    key: impl Fn(usize) -> String,
) -> impl Iterator<Item = FloorLock> {
    let id = uuid::Uuid::new_v4();
    (0..tasks).map(move |task| floor.lock(&key(task), &format!("{id}:{task}")))
}

/// Lets all subjects go on until `total` holds were had; says how long that took.
fn time_of(runtime: &Runtime, subjects: &[Subject], total: u64) -> Duration {
    let left = Arc::new(AtomicI64::new(total.try_into().expect("a count that fits")));
    let subjects = subjects.to_vec();
    in_a_task(runtime, async move {
        let started = Instant::now();
        let tasks: Vec<_> = subjects
            .into_iter()
            .map(|mut subject| {
                let left = Arc::clone(&left);
                tokio::spawn(async move {
                    while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                        subject.hold().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        started.elapsed()
    })
}

fn own_locks_times(criterion: &mut Criterion, server: &Server, flavour: Flavour) {
    let runtime = flavour.runtime();
    let mut group = criterion.benchmark_group(format!("own locks/64 tasks/{}", flavour.name()));
    group.throughput(Throughput::Elements(TASKS as u64));
    for (name, kind) in [
        ("floor", Kind::Floor(Nagle::Off)),
        ("floor, Nagle", Kind::Floor(Nagle::On)),
        ("lockset", Kind::Lockset),
    ] {
        let subjects = runtime.block_on(client_of(kind, server, TASKS, |task| {
            format!("own:{name}:{task}")
        }));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| time_of(&runtime, &subjects, times * TASKS as u64));
        });
    }
    group.finish();
}

fn hot_lock_times(criterion: &mut Criterion, server: &Server) {
    let runtime = Flavour::MultiThread.runtime();
    let mut group = criterion.benchmark_group("hot lock/1 x 64 tasks");
    group.throughput(Throughput::Elements(TASKS as u64));
    for (name, kind, tasks) in [
        ("floor, one task", Kind::Floor(Nagle::Off), 1),
        ("Redisson", Kind::Redisson, TASKS),
        ("lockset", Kind::Lockset, TASKS),
    ] {
        let client = client_of(kind, server, tasks, |_| format!("hot:{name}"));
        let subjects = runtime.block_on(client);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| time_of(&runtime, &subjects, times * TASKS as u64));
        });
    }
    group.finish();
}

/// The result of one turn of one subject. Each task ends with the hold it wants when time is up.
struct Turn {
    /// Until time was up, and until the last task had ended.
    elapsed: Duration,
    ended: Duration,
    /// How often each task had a lock before time was up.
    shares: Vec<u64>,
    /// The wait for each hold, with the holds at the end.
    waits: Vec<Duration>,
}

impl Turn {
    fn holds_per_second(&self) -> f64 {
        self.shares.iter().sum::<u64>() as f64 / self.elapsed.as_secs_f64()
    }

    /// The share of the client that got least, as a part of an equal share. The tasks of a client stand together.
    fn least_share(&self, clients: usize) -> f64 {
        let of_clients = self.shares.chunks(self.shares.len() / clients);
        let least = of_clients.map(|tasks| tasks.iter().sum::<u64>()).min();
        let all: u64 = self.shares.iter().sum();
        (least.unwrap_or(0) * clients as u64) as f64 / all as f64
    }

    fn longest_over_median_wait(&self) -> f64 {
        let longest = self.waits.iter().max().expect("each task waited once");
        longest.as_secs_f64() / median(&self.waits).as_secs_f64()
    }
}

/// Lets all subjects go on for `span`.
fn turn(runtime: &Runtime, subjects: &[Subject], span: Duration) -> Turn {
    let stop = Arc::new(AtomicBool::new(false));
    let subjects = subjects.to_vec();
    in_a_task(runtime, async move {
        let started = Instant::now();
        let tasks: Vec<_> = subjects
            .into_iter()
            .map(|mut subject| {
                let stop = Arc::clone(&stop);
                tokio::spawn(async move {
                    let mut waits = Vec::new();
                    let mut in_time = 0;
                    while !stop.load(Ordering::Relaxed) {
                        waits.push(subject.hold().await);
                        in_time += u64::from(!stop.load(Ordering::Relaxed));
                    }
                    (waits, in_time)
                })
            })
            .collect();
        tokio::time::sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        let elapsed = started.elapsed();
        let (mut waits, mut shares) = (Vec::new(), Vec::new());
        for task in tasks {
            let (of_task, in_time) = task.await.expect("no task panics");
            waits.extend(of_task);
            shares.push(in_time);
        }
        Turn {
            elapsed,
            ended: started.elapsed(),
            shares,
            waits,
        }
    })
}

/// The sum of several turns of one subject on own locks, with the ends of the turns, which are part of the processor
/// time too.
#[derive(Clone, Copy, Default)]
struct Work {
    holds: usize,
    elapsed: Duration,
    server_cpu: u64,
    client_cpu: u64,
}

impl Work {
    fn add(&mut self, server: &Server, turn: impl FnOnce() -> Turn) {
        // Where the kernel does not say, all that is 0.
        let cpu = || {
            let of_server = place::cpu::of_server(server);
            (
                of_server.unwrap_or(0),
                place::cpu::of_clients().unwrap_or(0),
            )
        };
        let before = cpu();
        let turn = turn();
        let after = cpu();
        self.holds += turn.waits.len();
        self.elapsed += turn.ended;
        self.server_cpu += after.0 - before.0;
        self.client_cpu += after.1 - before.1;
    }

    fn holds_per_second(&self) -> f64 {
        self.holds as f64 / self.elapsed.as_secs_f64()
    }

    /// How much of the time some processors were in use, where 1 is one of them all the time.
    fn share_of(&self, cpu: u64) -> f64 {
        cpu as f64 / self.elapsed.as_nanos() as f64
    }

    fn client_cost(&self) -> f64 {
        self.client_cpu as f64 / self.holds as f64
    }

    fn server_cost(&self) -> f64 {
        self.server_cpu as f64 / self.holds as f64
    }
}

const OWN_KINDS: [Kind; 6] = [
    Kind::Lockset,
    Kind::Floor(Nagle::Off),
    Kind::Floor(Nagle::On),
    Kind::FloorInPortions,
    Kind::Scripts(Nagle::Off),
    Kind::Scripts(Nagle::On),
];

fn own_locks_ratio(
    arguments: &Arguments,
    server: &Server,
    flavour: Flavour,
    tasks: usize,
    name: &str,
) {
    let runtime = flavour.runtime();
    let subjects = OWN_KINDS.map(|kind| {
        runtime.block_on(client_of(kind, server, tasks, |task| {
            format!("own:{kind:?}:{task}")
        }))
    });
    let span = span(arguments, TURN_OWN);
    let results = rounds(arguments, ROUNDS_OWN, name, |_| {
        let mut works = [Work::default(); OWN_KINDS.len()];
        for first in 0..arguments.scaled(TURNS_OWN) {
            // None of them always follows the same other one.
            for index in (first..first + works.len()).map(|index| index % OWN_KINDS.len()) {
                works[index].add(server, || turn(&runtime, &subjects[index], span));
            }
        }
        works
    });
    let of = |ratio: &dyn Fn(&[Work; OWN_KINDS.len()]) -> f64| -> Vec<f64> {
        results.iter().map(ratio).collect()
    };
    let speeds = |index: usize| of(&|works| works[index].holds_per_second());
    // The better setting of these rounds, by the median.
    let best = |[off, on]: [usize; 2]| {
        if median(&speeds(off)) >= median(&speeds(on)) {
            (off, "nodelay")
        } else {
            (on, "Nagle")
        }
    };
    let (floor, floor_setting) = best([1, 2]);
    let (scripts, scripts_setting) = best([4, 5]);
    for (what, subject, against) in [
        ("lockset/floor, nodelay".to_owned(), 0, 1),
        ("lockset/floor, Nagle".to_owned(), 0, 2),
        (format!("lockset/best floor ({floor_setting})"), 0, floor),
        (
            format!("lockset/its scripts alone ({scripts_setting})"),
            0,
            scripts,
        ),
        (
            format!("floor in portions/best ({floor_setting})"),
            3,
            floor,
        ),
    ] {
        let what = format!("cycles/s, {what}");
        let ratios =
            of(&|works| works[subject].holds_per_second() / works[against].holds_per_second());
        report(arguments, name, &what, &ratios);
    }
    if place::cpu::of_server(server).is_none() {
        return;
    }
    // The setting that is faster need not be the one that is cheaper.
    let best = format!("best floor ({floor_setting})");
    for (against, index) in [("floor", 1), (&*best, floor)] {
        let clients = of(&|works| works[0].client_cost() / works[index].client_cost());
        let what = format!("client CPU a cycle, lockset/{against}");
        report(arguments, name, &what, &clients);
        let servers = of(&|works| works[0].server_cost() / works[index].server_cost());
        let what = format!("server CPU a cycle, lockset/{against}");
        report(arguments, name, &what, &servers);
    }
    for (who, index) in [("lockset", 0), (&*best, floor)] {
        let clients = of(&|works| works[index].share_of(works[index].client_cpu));
        let what = format!("{who}: processors of the clients in use");
        note(arguments, name, &what, &clients);
        let servers = of(&|works| works[index].share_of(works[index].server_cpu));
        let what = format!("{who}: processor of the server in use");
        note(arguments, name, &what, &servers);
    }
}

fn hot_lock_ratio(arguments: &Arguments, server: &Server, clients: usize, name: &str) {
    let runtime = Flavour::MultiThread.runtime();
    let others = [
        ("lockset", Kind::Lockset, clients, TASKS / clients),
        ("Redisson", Kind::Redisson, clients, TASKS / clients),
        (
            "floor, polling",
            Kind::Floor(Nagle::Off),
            clients,
            TASKS / clients,
        ),
        ("floor, one task", Kind::Floor(Nagle::Off), 1, 1),
    ];
    let subjects = others.map(|(who, kind, clients, tasks)| {
        let mut subjects = Vec::new();
        for _ in 0..clients {
            let client = client_of(kind, server, tasks, |_| format!("hot:{clients}:{who}"));
            subjects.extend(runtime.block_on(client));
        }
        subjects
    });
    let span = span(arguments, TURN_HOT);
    let results = rounds(arguments, ROUNDS_HOT, name, |_| {
        subjects
            .each_ref()
            .map(|subjects| turn(&runtime, subjects, span))
    });
    let of =
        |figure: &dyn Fn(&[Turn; 4]) -> f64| -> Vec<f64> { results.iter().map(figure).collect() };
    for (index, (who, ..)) in others.iter().enumerate().skip(1) {
        let what = format!("holds/s, lockset/{who}");
        let speeds = of(&|turns| turns[0].holds_per_second() / turns[index].holds_per_second());
        report(arguments, name, &what, &speeds);
    }
    for (index, (who, ..)) in others.iter().enumerate().take(3) {
        let waits = of(&|turns| turns[index].longest_over_median_wait());
        report(
            arguments,
            name,
            &format!("{who}: longest/median wait"),
            &waits,
        );
        if clients > 1 {
            let least = of(&|turns| turns[index].least_share(clients));
            let what = format!("{who}: least share of a client/fair share");
            report(arguments, name, &what, &least);
            // In a very short turn, some tasks get no hold.
            if index == 0 && arguments.effort != Effort::Test {
                let least = median(&least);
                assert!(
                    least >= LEAST_SHARE,
                    "{name}: a client had {least} of its share"
                );
            }
        }
        let shares = of(&|turns| jain_index(&turns[index].shares));
        note(
            arguments,
            name,
            &format!("{who}: Jain index of the tasks"),
            &shares,
        );
    }
}

fn span(arguments: &Arguments, full: Duration) -> Duration {
    match arguments.effort {
        Effort::Test => Duration::from_millis(20),
        _ => full,
    }
}
