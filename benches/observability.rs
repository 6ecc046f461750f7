//! The cost of observation: cycles of a free lock, hand-offs in memory, and sticky locks that are taken again; with an
//! observer, a subscriber of `tracing`, a recorder of metrics.
//!
//! A subscriber and a recorder are there for a whole process, so each way to be observed has one of its own,
//! and they take turns. The benches compare the processor time of the clients. `LOCKSET_BENCH_WITHOUT` names this bench
//! as it is built without the features; then they are compared with that, too.
//!
//! Beside that, where there is a `valgrind`: the instructions, which are the same each time. They are counted in
//! runs that are over before what was counted is handed to the recorder, and to valgrind a look at the clock is a
//! system call of a few instructions; the times have both.

mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockset::{Client, Event, ReentrantLock, STICKY_MAX};
use tokio::runtime::Runtime;

use support::arguments::{Arguments, Effort};
use support::rounds::{median, rounds};
use support::{Flavour, LEASE, in_a_task, place};

const NAME: &str = "observability";

/// The first argument of a process that works for this bench; then come how it is observed, and the server.
const WORKER: &str = "worker";

const ROUNDS: usize = 15;

/// Turns of each in a round.
const TURNS: usize = 8;

/// Tasks that pass one lock on.
const TASKS: usize = 4;

/// A way to be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The features are not compiled.
    Without,
    /// The features are compiled and unused.
    Off,
    Observer,
    /// The client's announcement at the server.
    Announced,
    #[cfg(feature = "tracing")]
    Info,
    #[cfg(feature = "tracing")]
    Debug,
    #[cfg(feature = "metrics")]
    Recorder,
}

impl Way {
    const HERE: &[Self] = &[
        Self::Off,
        Self::Observer,
        Self::Announced,
        #[cfg(feature = "tracing")]
        Self::Info,
        #[cfg(feature = "tracing")]
        Self::Debug,
        #[cfg(feature = "metrics")]
        Self::Recorder,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Without => "without the features",
            Self::Off => "nothing on",
            Self::Observer => "an observer",
            Self::Announced => "client records",
            #[cfg(feature = "tracing")]
            Self::Info => "tracing, INFO",
            #[cfg(feature = "tracing")]
            Self::Debug => "tracing, DEBUG: spans",
            #[cfg(feature = "metrics")]
            Self::Recorder => "metrics, Prometheus",
        }
    }

    fn named(name: &str) -> Option<Self> {
        let here = Self::HERE.iter().copied();
        here.chain([Self::Without]).find(|way| way.name() == name)
    }

    /// Begins to observe this process.
    fn begin(self) {
        match self {
            #[cfg(feature = "tracing")]
            Self::Info => subscribe(tracing_subscriber::filter::LevelFilter::INFO),
            #[cfg(feature = "tracing")]
            Self::Debug => subscribe(tracing_subscriber::filter::LevelFilter::DEBUG),
            #[cfg(feature = "metrics")]
            Self::Recorder => {
                let recorder = metrics_exporter_prometheus::PrometheusBuilder::new();
                let scraped = recorder.install_recorder().expect("the first recorder");
                // The exporter keeps each value until a reader asks.
                std::thread::spawn(move || {
                    loop {
                        std::thread::sleep(Duration::from_millis(500));
                        scraped.run_upkeep();
                    }
                });
            }
            _ => {}
        }
    }

    async fn client(self, url: &str) -> Client {
        let mut client = Client::builder(url).lease(LEASE);
        if self == Self::Observer {
            client = client.observer(|event: &Event<'_>| eprintln!("{event}"));
        }
        if self != Self::Announced {
            client = client.announce_every(Duration::MAX);
        }
        client
            .build()
            .await
            .expect("a client of the bench's own server")
    }
}

#[cfg(feature = "tracing")]
fn subscribe(level: tracing_subscriber::filter::LevelFilter) {
    use tracing_subscriber::layer::SubscriberExt;
    let subscriber = tracing_subscriber::registry().with(level);
    tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
}

/// The work under observation.
#[derive(Clone, Copy, Debug)]
enum Work {
    Cycle,
    Handoff,
    Sticky,
}

impl Work {
    const ALL: [Self; 3] = [Self::Cycle, Self::Handoff, Self::Sticky];

    fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle of a free lock",
            Self::Handoff => "hand-off in memory",
            Self::Sticky => "sticky, taken again",
        }
    }

    /// This number takes some 20 ms.
    fn turn(self) -> usize {
        match self {
            Self::Cycle => 300,
            Self::Handoff => 6_000,
            Self::Sticky => 20_000,
        }
    }

    /// Two counts for valgrind: both take less time than metrics wait before they are recorded, except for the cycles,
    /// and only a few of these are counted in time.
    fn counted(self) -> [usize; 2] {
        match self {
            Self::Cycle => [40, 140],
            Self::Handoff => [100, 500],
            Self::Sticky => [200, 1_200],
        }
    }

    async fn run(self, client: &Client, times: usize) {
        // Of this client alone: what is sticky stays with it, and between its turns it does nothing.
        let lock = client.lock(format!("{} {}", self.name(), client.id()));
        match self {
            Self::Cycle => cycles(lock, times).await,
            Self::Sticky => cycles(lock.sticky(STICKY_MAX), times).await,
            Self::Handoff => {
                let task = |_| tokio::spawn(cycles(lock.clone(), times / TASKS));
                let tasks: Vec<_> = (0..TASKS).map(task).collect();
                for task in tasks {
                    task.await.expect("a task of a bench does not panic");
                }
            }
        }
    }
}

async fn cycles(lock: ReentrantLock, times: usize) {
    for _ in 0..times {
        let guard = lock.lock().await.expect("the lock");
        guard.release().await.expect("a hold that was kept");
    }
}

/// A process that works on request, and prints the processor time of the work.
fn work_as_told() {
    let mut words = std::env::args().skip(2);
    let way = words.next().and_then(|name| Way::named(&name));
    let (way, url) = (way.expect("a way"), words.next().expect("a URL"));
    way.begin();
    let runtime = Flavour::CurrentThread.runtime();
    let client = runtime.block_on(way.client(&url));
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let told = line.split_once(' ');
        let told =
            told.and_then(|(work, times)| Some((work.parse::<usize>().ok()?, times.parse().ok()?)));
        let (work, times) = told.expect("what to do and how often");
        println!("{}", spent(&runtime, &client, Work::ALL[work], times));
    }
}

/// The name of the function that valgrind counts.
const COUNTED: &str = "counted_by_valgrind";

#[inline(never)]
fn counted_by_valgrind(runtime: &Runtime, client: Client, work: Work, times: usize) {
    in_a_task(runtime, async move { work.run(&client, times).await });
}

/// Processor time of this thread, in nanoseconds: all the work is on it, but not the look at the metrics.
fn spent(runtime: &Runtime, client: &Client, work: Work, times: usize) -> u64 {
    let so_far = || {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
    };
    let before = so_far();
    counted_by_valgrind(runtime, client.clone(), work, times);
    so_far() - before
}

struct Worker {
    way: Way,
    child: Child,
    told: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(way: Way, program: &Path, url: &str) -> Self {
        let mut child = Command::new(program)
            .args([WORKER, way.name(), url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process of the bench");
        let told = child.stdin.take().expect("it is piped");
        let says = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self {
            way,
            child,
            told,
            says,
        }
    }

    /// How long it took on the processor, in nanoseconds.
    fn run(&mut self, work: Work, times: usize) -> u64 {
        writeln!(self.told, "{} {times}", work as usize).expect("it listens");
        let said = self.says.next().expect("it answers").expect("a line");
        said.parse().expect("a number")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Processes that have ended ignore this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This bench, and as it is without the features if that is known. `Off` comes first.
fn subjects() -> Vec<(Way, PathBuf)> {
    let this = std::env::current_exe().expect("a path");
    let here = Way::HERE.iter().map(|way| (*way, this.clone()));
    let without = std::env::var_os("LOCKSET_BENCH_WITHOUT").map(PathBuf::from);
    here.chain(without.map(|path| (Way::Without, path)))
        .collect()
}

fn main() {
    if std::env::args().nth(1).is_some_and(|word| word == WORKER) {
        return work_as_told();
    }
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let server = place::server();
    let start = |(way, path): (Way, PathBuf)| Worker::start(way, &path, &server.url());
    let mut workers: Vec<Worker> = subjects().into_iter().map(start).collect();
    for work in Work::ALL {
        times(&arguments, work, &mut workers);
    }
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if has_valgrind && arguments.effort != Effort::Test {
        drop(workers);
        for work in Work::ALL {
            instructions(work, &server.url());
        }
    }
}

fn instructions(work: Work, url: &str) {
    println!("{}, instructions:", work.name());
    let mut off = None;
    for (way, program) in subjects() {
        let [few, many] = work.counted().map(|times| {
            let counted = count(work, way, &program, times, url);
            (times as f64, counted as f64)
        });
        let each = (many.1 - few.1) / (many.0 - few.0);
        let off = *off.get_or_insert(each);
        let (name, more, part) = (way.name(), each - off, each / off);
        println!("  {name:<22} {each:>8.0}     {more:>+6.0}     {part:.3}x");
    }
}

/// The instructions of this many times, and of one turn of each kind of task before them.
fn count(work: Work, way: Way, program: &Path, times: usize, url: &str) -> u64 {
    let mut valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*::{COUNTED}"))
        .arg(program)
        .args([WORKER, way.name(), url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind");
    let mut told = valgrind.stdin.take().expect("it is piped");
    writeln!(told, "{} {times}", work as usize).expect("it listens");
    drop(told);
    let out = valgrind.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&out.stderr);
    let counted = said
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let counted = counted.unwrap_or_else(|| panic!("{said}"));
    let counted = counted.1.trim().parse().expect("a number");
    assert_ne!(counted, 0, "valgrind knows {COUNTED} by another name");
    counted
}

fn times(arguments: &Arguments, work: Work, workers: &mut [Worker]) {
    let (turns, times) = (
        arguments.scaled(TURNS),
        arguments.scaled(work.turn()).max(TASKS),
    );
    for worker in &mut *workers {
        worker.run(work, times);
    }
    let each = (turns * times) as f64;
    let rounds = rounds(arguments, ROUNDS, work.name(), |_| {
        let mut spent = vec![0; workers.len()];
        for _ in 0..turns {
            for (spent, worker) in spent.iter_mut().zip(&mut *workers) {
                *spent += worker.run(work, times);
            }
        }
        spent
    });
    if arguments.effort == Effort::Test {
        println!("{NAME}  {}  ran", work.name());
        return;
    }
    println!("{}, processor time of the client:", work.name());
    let of = |at: usize| rounds.iter().map(move |spent| spent[at] as f64 / each);
    for (at, worker) in workers.iter().enumerate() {
        let more: Vec<f64> = of(at).zip(of(0)).map(|(this, off)| this - off).collect();
        let part: Vec<f64> = of(at).zip(of(0)).map(|(this, off)| this / off).collect();
        let (least, most) = part.iter().fold((f64::MAX, 0_f64), |(least, most), part| {
            (part.min(least), part.max(most))
        });
        println!(
            "  {:<22} {:>8.0} ns  {:>+6.0} ns  {:.3}x  ({least:.3}-{most:.3} over {} rounds)",
            worker.way.name(),
            median(&of(at).collect::<Vec<_>>()),
            median(&more),
            median(&part),
            part.len(),
        );
    }
}
