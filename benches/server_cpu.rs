//! The server's cost of the verbs: the scripts of lockset, the scripts of Redisson, and the floor.
//!
//! Sent in pipelines of 100, so that the scripts are measured and not the system calls around them,
//! which are some five times as dear as any script and the same for all. The least of the rounds is taken, because
//! other load on the machine only adds. The scripts of lockset come from the library's own list; if the library sends
//! plain commands instead, the bench does too. A multi-lock is compared with Redisson's, which takes its members one
//! after the other.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use lockset_testkit::Server;
use redis::{Cmd, Connection, ConnectionLike as _, Pipeline, Value};

use support::arguments::{Arguments, Effort};
use support::floor::TAKE_ONE;
use support::ours::Hold;
use support::redisson::PermitId;
use support::rounds::{figure, report_least, rounds};
use support::{LEASE, ours, place, redisson};

const NAME: &str = "server cpu";

const ROUNDS: usize = 11;

/// Locks in one round.
const LOCKS: usize = 5_000;

/// Commands in one write, and holds in one renewal.
const BATCH: usize = 100;

/// The permits of a semaphore, and the count of a latch.
const PERMITS: u32 = 8;

/// The floor of a count-down.
const COUNT_DOWN_ONLY: &str = "return redis.call('DECR', KEYS[1])";

const COMPARE_AND_DELETE: &str = include_str!("support/compare_and_delete.lua");

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let server = place::server();
    let mut bench = Bench::connect(server);
    let locks = match arguments.effort {
        Effort::Full => LOCKS,
        Effort::Quick => LOCKS / 2,
        Effort::Test => BATCH,
    };
    let results = rounds(&arguments, ROUNDS, NAME, |_| {
        Way::ALL.map(|way| bench.round(way, locks))
    });
    let cells = Way::ALL.map(|way| {
        let of_way: Vec<&Cells> = results.iter().map(|ways| &ways[way as usize]).collect();
        best(&of_way)
    });
    print_table(&cells);
    print_ratios(&arguments, &results, &cells);
}

/// Whose verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lockset,
    Redisson,
    Floor,
}

impl Way {
    const ALL: [Self; 3] = [Self::Lockset, Self::Redisson, Self::Floor];
}

/// The rows of the table, in the order of their runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Acquire,
    AcquireHeld,
    Renew,
    Release,
    AcquirePlain,
    ReleasePlain,
    AcquireFenced,
    ReleaseFenced,
    FairAcquire,
    FairRelease,
    ReadAcquire,
    ReadRelease,
    WriteAcquire,
    WriteRelease,
    Acquire3,
    Release3,
    Acquire10,
    Release10,
    PermitAcquire,
    PermitRelease,
    CountDown,
}

impl Verb {
    const ALL: [Self; 21] = [
        Self::Acquire,
        Self::AcquireHeld,
        Self::Renew,
        Self::Release,
        Self::AcquirePlain,
        Self::ReleasePlain,
        Self::AcquireFenced,
        Self::ReleaseFenced,
        Self::FairAcquire,
        Self::FairRelease,
        Self::ReadAcquire,
        Self::ReadRelease,
        Self::WriteAcquire,
        Self::WriteRelease,
        Self::Acquire3,
        Self::Release3,
        Self::Acquire10,
        Self::Release10,
        Self::PermitAcquire,
        Self::PermitRelease,
        Self::CountDown,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Acquire => "acquire, by script",
            Self::AcquireHeld => "acquire, held elsewhere",
            Self::Renew => "renew, one of a batch of 100",
            Self::Release => "release, by script",
            Self::AcquirePlain => "acquire",
            Self::ReleasePlain => "release",
            Self::AcquireFenced => "acquire, fenced",
            Self::ReleaseFenced => "release, fenced",
            Self::FairAcquire => "fair acquire, nobody waits",
            Self::FairRelease => "fair release, nobody waits",
            Self::ReadAcquire => "read acquire",
            Self::ReadRelease => "read release",
            Self::WriteAcquire => "write acquire",
            Self::WriteRelease => "write release",
            Self::Acquire3 => "multi acquire, all 3",
            Self::Release3 => "multi release, all 3",
            Self::Acquire10 => "multi acquire, all 10",
            Self::Release10 => "multi release, all 10",
            Self::PermitAcquire => "permit acquire",
            Self::PermitRelease => "permit release",
            Self::CountDown => "latch count-down",
        }
    }

    /// Whether lockset does it by plain commands, one of them with a reply that shows the hold existed.
    fn is_plain_release(self) -> bool {
        matches!(
            self,
            Self::ReleasePlain | Self::ReleaseFenced | Self::Release3 | Self::Release10
        )
    }

    /// Locks that it is about.
    fn members(self) -> usize {
        match self {
            Self::Acquire3 | Self::Release3 => 3,
            Self::Acquire10 | Self::Release10 => 10,
            _ => 1,
        }
    }
}

/// One measured cost of one verb.
#[derive(Clone, Debug)]
struct Cell {
    /// `None` where the kernel does not say.
    micros: Option<f64>,
    /// Commands the server ran, those inside scripts included and failed ones not.
    calls: BTreeMap<String, f64>,
}

type Cells = BTreeMap<Verb, Cell>;

struct Bench {
    server: Server,
    connection: Connection,
    /// For looking, so that it is in no measurement.
    observer: Connection,
    shas: BTreeMap<&'static str, String>,
    id: uuid::Uuid,
}

impl Bench {
    fn connect(server: Server) -> Self {
        let connect = || {
            redis::Client::open(server.url())
                .and_then(|client| client.get_connection())
                .expect("the server takes connections")
        };
        let (connection, observer) = (connect(), connect());
        let mut bench = Self {
            server,
            connection,
            observer,
            shas: BTreeMap::new(),
            id: uuid::Uuid::new_v4(),
        };
        let of_lockset = ours::catalog::ALL.iter().map(|(_, script)| script.text());
        let others = [
            COMPARE_AND_DELETE,
            redisson::ACQUIRE,
            redisson::ACQUIRE_FENCED,
            redisson::RELEASE,
            redisson::RENEW,
            redisson::FAIR_ACQUIRE,
            redisson::FAIR_RELEASE,
            redisson::READ_ACQUIRE,
            redisson::READ_RELEASE,
            redisson::WRITE_ACQUIRE,
            redisson::WRITE_RELEASE,
            redisson::PERMIT_ACQUIRE,
            redisson::PERMIT_RELEASE,
            redisson::COUNT_DOWN,
            TAKE_ONE,
            COUNT_DOWN_ONLY,
        ];
        for text in of_lockset.chain(others) {
            bench.look::<String>(&["SCRIPT", "LOAD", text]);
        }
        bench
    }

    /// All verbs of one way, on locks that are fresh at first.
    fn round(&mut self, way: Way, locks: usize) -> Cells {
        self.look::<()>(&["FLUSHALL", "SYNC"]);
        let mut cells = Cells::new();
        for verb in Verb::ALL {
            let Some(expected) = expected(way, verb) else {
                continue;
            };
            let times = locks / verb.members();
            if matches!(verb, Verb::PermitAcquire | Verb::CountDown) {
                self.count_up(times);
            }
            let batches: Vec<(Vec<u8>, usize)> = (0..times)
                .step_by(BATCH)
                .map(|first| self.batch(way, verb, first..(first + BATCH).min(times)))
                .collect();
            self.look::<()>(&["CONFIG", "RESETSTAT"]);
            let before = self.settled_cpu();
            let mut ones = 0;
            for (bytes, commands) in &batches {
                let replies = self
                    .connection
                    .req_packed_commands(bytes, 0, *commands)
                    .expect("replies");
                for reply in replies {
                    assert!(expected(&reply), "{way:?} {verb:?} answered {reply:?}");
                    ones += usize::from(reply == Value::Int(1));
                }
            }
            let after = self.settled_cpu();
            if way == Way::Lockset && verb.is_plain_release() {
                assert_eq!(
                    ones,
                    times * verb.members(),
                    "{verb:?}: a hold was not there"
                );
            }
            let micros = before
                .zip(after)
                .map(|(before, after)| (after - before) as f64 / 1e3 / times as f64);
            let calls = self.calls(times);
            cells.insert(verb, Cell { micros, calls });
        }
        cells
    }

    /// Makes semaphores or latches of the names of locks.
    fn count_up(&mut self, times: usize) {
        let mut pipeline = Pipeline::new();
        for lock in 0..times {
            pipeline.set(name(lock), PERMITS).ignore();
        }
        pipeline
            .query::<()>(&mut self.observer)
            .expect("an answer to the bench's own command");
    }

    /// One write: what `verb` sends this many times, and how many replies that makes.
    fn batch(&mut self, way: Way, verb: Verb, times: Range<usize>) -> (Vec<u8>, usize) {
        let mut pipeline = Pipeline::new();
        let members = verb.members();
        let locks = times.start * members..times.end * members;
        let names: Vec<(String, String)> = locks
            .map(|lock| {
                let holder = format!("{}:{}", self.id, 1_000_000 + lock);
                (name(lock), holder)
            })
            .collect();
        if verb == Verb::Renew {
            pipeline.add_command(match way {
                Way::Lockset => ours::renew(&names),
                _ => redisson::renew(self.sha(redisson::RENEW), &names),
            });
        } else {
            for names in names.chunks(members) {
                let holds = names.iter().map(|(key, holder)| Hold { key, holder });
                for command in self.commands(way, verb, &holds.collect::<Vec<_>>()) {
                    pipeline.add_command(command);
                }
            }
        }
        (pipeline.get_packed_pipeline(), pipeline.len())
    }

    fn commands(&mut self, way: Way, verb: Verb, holds: &[Hold<'_>]) -> Vec<Cmd> {
        match way {
            Way::Lockset => self.of_lockset(verb, holds),
            Way::Redisson => {
                let each = holds.iter().map(|hold| self.of_redisson(verb, *hold));
                each.flatten().collect()
            }
            Way::Floor => vec![self.of_floor(verb, holds[0])],
        }
    }

    fn of_lockset(&self, verb: Verb, holds: &[Hold<'_>]) -> Vec<Cmd> {
        let hold = holds[0];
        vec![match verb {
            Verb::AcquirePlain => hold.restore(),
            Verb::Acquire => hold.acquire(),
            Verb::AcquireHeld => {
                let holder = &self.stranger();
                Hold { holder, ..hold }.acquire()
            }
            Verb::AcquireFenced => hold.acquire_fenced(),
            Verb::Release => hold.release(),
            Verb::Renew => unreachable!("it is of many holds"),
            Verb::FairAcquire => hold.fair_acquire(0),
            Verb::FairRelease => hold.fair_release(),
            Verb::ReadAcquire => hold.read_acquire(),
            Verb::WriteAcquire => hold.write_acquire(),
            Verb::ReadRelease | Verb::WriteRelease => hold.rw_release(),
            Verb::Acquire3 | Verb::Acquire10 => ours::multi_acquire(holds),
            Verb::PermitAcquire => hold.permit_acquire(PERMITS),
            Verb::PermitRelease => hold.permit_release(),
            Verb::CountDown => hold.count_down(),
            Verb::ReleasePlain | Verb::ReleaseFenced | Verb::Release3 | Verb::Release10 => {
                return ours::multi_release(holds);
            }
        }]
    }

    fn of_redisson(&mut self, verb: Verb, Hold { key, holder }: Hold<'_>) -> Vec<Cmd> {
        let latch = redisson::latch(key, &redisson::latch_id());
        let command = match verb {
            Verb::Acquire | Verb::AcquirePlain | Verb::Acquire3 | Verb::Acquire10 => {
                return vec![redisson::acquire(self.sha(redisson::ACQUIRE), key, holder)];
            }
            Verb::AcquireHeld => {
                let stranger = self.stranger();
                let sha = self.sha(redisson::ACQUIRE);
                return vec![redisson::acquire(sha, key, &stranger)];
            }
            Verb::AcquireFenced => {
                let sha = self.sha(redisson::ACQUIRE_FENCED);
                return vec![redisson::acquire_fenced(sha, key, holder)];
            }
            Verb::FairAcquire => {
                let sha = self.sha(redisson::FAIR_ACQUIRE);
                return vec![redisson::fair_acquire(sha, key, holder)];
            }
            Verb::ReadAcquire => {
                let sha = self.sha(redisson::READ_ACQUIRE);
                return vec![redisson::read_acquire(sha, key, holder)];
            }
            Verb::WriteAcquire => {
                let sha = self.sha(redisson::WRITE_ACQUIRE);
                return vec![redisson::write_acquire(sha, key, holder)];
            }
            Verb::FairRelease => {
                let sha = self.sha(redisson::FAIR_RELEASE);
                redisson::fair_release(sha, key, holder, &latch)
            }
            Verb::ReadRelease => {
                let sha = self.sha(redisson::READ_RELEASE);
                redisson::read_release(sha, key, holder, &latch)
            }
            Verb::WriteRelease => {
                let sha = self.sha(redisson::WRITE_RELEASE);
                redisson::write_release(sha, key, holder, &latch)
            }
            Verb::PermitAcquire => {
                let sha = self.sha(redisson::PERMIT_ACQUIRE);
                return vec![redisson::permit_acquire(sha, key, &permit_id(holder))];
            }
            Verb::PermitRelease => {
                let sha = self.sha(redisson::PERMIT_RELEASE);
                return vec![redisson::permit_release(sha, key, &permit_id(holder))];
            }
            Verb::CountDown => {
                return vec![redisson::count_down(self.sha(redisson::COUNT_DOWN), key)];
            }
            Verb::Renew => unreachable!("it is of many holds"),
            Verb::Release
            | Verb::ReleasePlain
            | Verb::ReleaseFenced
            | Verb::Release3
            | Verb::Release10 => {
                let sha = self.sha(redisson::RELEASE);
                redisson::release(sha, key, holder, &latch)
            }
        };
        vec![command, redisson::delete(&latch)]
    }

    fn of_floor(&mut self, verb: Verb, Hold { key, holder }: Hold<'_>) -> Cmd {
        if matches!(verb, Verb::Acquire | Verb::AcquireHeld | Verb::AcquirePlain) {
            let mut set = redis::cmd("SET");
            set.arg(key).arg(holder);
            set.arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
            return set;
        }
        match verb {
            Verb::PermitAcquire => return redisson::script(self.sha(TAKE_ONE), &[key]),
            Verb::CountDown => return redisson::script(self.sha(COUNT_DOWN_ONLY), &[key]),
            Verb::PermitRelease => {
                let mut give = redis::cmd("INCR");
                give.arg(key);
                return give;
            }
            _ => {}
        }
        let mut release = redisson::script(self.sha(COMPARE_AND_DELETE), &[key]);
        release.arg(holder);
        release
    }

    fn stranger(&self) -> String {
        format!("{}:7", self.id)
    }

    fn sha(&mut self, text: &'static str) -> &str {
        self.shas.entry(text).or_insert_with(|| sha(text))
    }

    /// The server's time so far, read when it is idle: the kernel counts the time of a process that
    /// runs only now and then.
    fn settled_cpu(&self) -> Option<u64> {
        std::thread::sleep(Duration::from_millis(3));
        place::cpu::of_server(&self.server)
    }

    /// Calls each time, by command. `EVALSHA` is left out: all but the floor's `SET` are one.
    fn calls(&mut self, times: usize) -> BTreeMap<String, f64> {
        let info: String = self.look(&["INFO", "commandstats"]);
        let mut calls = BTreeMap::new();
        for line in info.lines() {
            let Some((command, counters)) = line
                .strip_prefix("cmdstat_")
                .and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            if matches!(command, "evalsha" | "info" | "config|resetstat") {
                continue;
            }
            let count = |counter: &str| -> f64 {
                counters
                    .split(',')
                    .find_map(|pair| pair.strip_prefix(counter)?.strip_prefix('='))
                    .and_then(|count| count.parse().ok())
                    .unwrap_or(0.0)
            };
            let done = count("calls") - count("failed_calls") - count("rejected_calls");
            if done > 0.0 {
                calls.insert(command.to_owned(), done / times as f64);
            }
        }
        calls
    }

    fn look<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        command
            .query(&mut self.observer)
            .expect("an answer to the bench's own question")
    }
}

/// A check for each reply; `None` if this way has no such verb.
fn expected(way: Way, verb: Verb) -> Option<fn(&Value) -> bool> {
    Some(match (way, verb) {
        (Way::Lockset | Way::Redisson, Verb::Renew) => |reply| match reply {
            Value::Array(items) => items.iter().all(|item| *item == Value::Int(1)),
            _ => false,
        },
        (
            Way::Lockset | Way::Redisson,
            Verb::Acquire | Verb::FairAcquire | Verb::ReadAcquire | Verb::WriteAcquire,
        ) => |reply| *reply == Value::Nil,
        (Way::Lockset, Verb::AcquirePlain) => |reply| *reply == Value::Okay,
        // A hold was there, without subscribers.
        (Way::Lockset, verb) if verb.is_plain_release() => {
            |reply| matches!(reply, Value::Int(0 | 1))
        }
        (Way::Redisson, Verb::AcquirePlain) => |reply| *reply == Value::Nil,
        (Way::Lockset, Verb::AcquireHeld) => |reply| matches!(reply, Value::Int(1..)),
        (Way::Lockset, Verb::AcquireFenced) => |reply| matches!(reply, Value::BulkString(_)),
        (Way::Lockset, Verb::PermitAcquire | Verb::CountDown) => |reply| *reply == Value::Int(1),
        (Way::Lockset, Verb::PermitRelease) => |reply| starts_with(reply, 1),
        (Way::Redisson, Verb::PermitAcquire) => {
            |reply| matches!(reply, Value::BulkString(word) if word == b"OK")
        }
        (Way::Redisson, Verb::CountDown) => |reply| *reply == Value::Nil,
        (Way::Floor, Verb::PermitAcquire | Verb::PermitRelease | Verb::CountDown) => {
            |reply| matches!(reply, Value::Int(0..))
        }
        (Way::Lockset, Verb::Acquire3 | Verb::Acquire10) => |reply| *reply == Value::Int(0),
        (Way::Lockset, _) => |reply| *reply == Value::Int(0),
        (Way::Redisson, Verb::Acquire3 | Verb::Acquire10) => |reply| *reply == Value::Nil,
        (Way::Redisson, Verb::AcquireHeld) => |reply| matches!(reply, Value::Int(1..)),
        (Way::Redisson, Verb::AcquireFenced) => |reply| starts_with(reply, -1),
        // An unlock that left the lock held or freed it, and a latch that was deleted.
        (Way::Redisson, _) => |reply| *reply == Value::Int(1),
        (Way::Floor, Verb::Acquire | Verb::AcquirePlain) => |reply| *reply == Value::Okay,
        (Way::Floor, Verb::AcquireHeld) => |reply| *reply == Value::Nil,
        (Way::Floor, Verb::Release | Verb::ReleasePlain) => |reply| *reply == Value::Int(1),
        (Way::Floor, _) => return None,
    })
}

fn starts_with(reply: &Value, status: i64) -> bool {
    matches!(reply, Value::Array(items) if items.first() == Some(&Value::Int(status)))
}

fn name(lock: usize) -> String {
    format!("lock:{lock:011}")
}

/// The last 16 bytes of a holder id, which differ between locks.
fn permit_id(holder: &str) -> PermitId {
    let last = holder.as_bytes().last_chunk();
    *last.expect("a holder id is longer")
}

fn sha(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// The least of all rounds.
fn best(rounds: &[&Cells]) -> Cells {
    let mut best = rounds[0].clone();
    for cells in rounds {
        for (verb, cell) in *cells {
            let least = best.get_mut(verb).expect("each round has the same verbs");
            least.micros = least
                .micros
                .zip(cell.micros)
                .map(|(least, micros)| least.min(micros));
        }
    }
    best
}

fn print_table(ways: &[Cells; 3]) {
    let [lockset, redisson, floor] = ways;
    println!();
    println!("Server CPU in µs, pipelined; calls inside scripts.");
    println!();
    println!(
        "| verb | lockset | Redisson | ratio | floor | calls of lockset | calls of Redisson |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | --- | --- |");
    let cost = |cell: Option<&Cell>| cell.and_then(|cell| cell.micros);
    for verb in Verb::ALL {
        let (ours, theirs) = (lockset.get(&verb), redisson.get(&verb));
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            verb.label(),
            text(cost(ours)),
            text(cost(theirs)),
            text(cost(ours).zip(cost(theirs)).map(|(a, b)| a / b)),
            text(cost(floor.get(&verb))),
            calls(ours),
            calls(theirs),
        );
    }
    for (label, acquire, release) in CYCLES {
        let [ours, theirs, floor] = ways.each_ref().map(|way| cycle(way, acquire, release));
        println!(
            "| **{label}** | {} | {} | **{}** | {} | | |",
            text(ours),
            text(theirs),
            text(ours.zip(theirs).map(|(a, b)| a / b)),
            text(floor),
        );
    }
    println!();
}

const CYCLES: [(&str, Verb, Verb); 9] = [
    ("acquire + release, by script", Verb::Acquire, Verb::Release),
    ("acquire + release", Verb::AcquirePlain, Verb::ReleasePlain),
    (
        "acquire + release, fenced",
        Verb::AcquireFenced,
        Verb::ReleaseFenced,
    ),
    ("fair cycle", Verb::FairAcquire, Verb::FairRelease),
    ("read cycle", Verb::ReadAcquire, Verb::ReadRelease),
    ("write cycle", Verb::WriteAcquire, Verb::WriteRelease),
    ("multi cycle of 3", Verb::Acquire3, Verb::Release3),
    ("multi cycle of 10", Verb::Acquire10, Verb::Release10),
    ("permit cycle", Verb::PermitAcquire, Verb::PermitRelease),
];

fn cycle(cells: &Cells, acquire: Verb, release: Verb) -> Option<f64> {
    Some(cells.get(&acquire)?.micros? + cells.get(&release)?.micros?)
}

fn text(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), figure)
}

fn calls(cell: Option<&Cell>) -> String {
    let Some(cell) = cell else {
        return "–".to_owned();
    };
    let words: Vec<String> = cell
        .calls
        .iter()
        .map(|(command, count)| {
            if *count == 1.0 {
                command.clone()
            } else {
                format!("{command} {}", figure(*count))
            }
        })
        .collect();
    words.join(", ")
}

fn print_ratios(arguments: &Arguments, results: &[[Cells; 3]], best: &[Cells; 3]) {
    for (label, acquire, release) in CYCLES {
        let ratio = |ways: &[Cells; 3], to: Way| {
            let ours = cycle(&ways[Way::Lockset as usize], acquire, release)?;
            Some(ours / cycle(&ways[to as usize], acquire, release)?)
        };
        for (to, name) in [(Way::Redisson, "Redisson"), (Way::Floor, "floor")] {
            let ratios: Vec<f64> = results.iter().filter_map(|ways| ratio(ways, to)).collect();
            if let Some(of_best) = ratio(best, to) {
                let what = format!("{label}, lockset/{name}");
                report_least(arguments, NAME, &what, of_best, &ratios);
            }
        }
    }
    if cycle(&best[0], Verb::Acquire, Verb::Release).is_none() {
        println!(
            "{NAME}: this system has no /proc/PID/task/PID/schedstat, so only calls are counted"
        );
    }
}
