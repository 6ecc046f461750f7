//! The fair lock: the way from a release in one process to the grant in another, and what a grant
//! costs the server when many wait.
//!
//! The floor of a hand-off is the least work that notifies the next holder: one script that sends one message, until
//! the message is received. It and Redisson's way are made with the same two processes, over the same kind of
//! connection, in the same rounds. A grant is what leads from one holder to the next: ours is one release, Redisson's a
//! release and the attempt of the new head, sent in pipelines as in `server_cpu`. A subscriber is needed, because a
//! release hands over only to a subscribed waiter.

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockset::{FairGuard, FairLock};
use lockset_testkit::Server;
use redis::{Cmd, Connection, ConnectionLike as _, Pipeline, Value};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, Nagle};
use support::ours::{Hold, catalog};
use support::rounds::{median, report, report_least, rounds};
use support::{Flavour, in_a_task, lockset_client, place, redisson};

const HAND_OFF: &str = "fair/hand-off between processes";
const GRANT: &str = "fair/server CPU of a grant";

const ROUNDS: usize = 7;

/// How often each process has the lock in a round, and for how long; the other process asks during that time.
const TURNS: usize = 150;
const HELD: Duration = Duration::from_millis(4);

/// Before it asks: the processes share a CPU, and this is no part of the way to the other one.
const REST: Duration = Duration::from_millis(1);

/// A place in the queue that outlasts a round.
const HEARTBEAT_MS: u64 = 600_000;

/// Commands in one write.
const BATCH: usize = 100;

/// The floor: one script, one message.
const TELL: &str = "return redis.call('PUBLISH', ARGV[1], '0')";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind, url, name, turns] = &words[..]
        && first == "partner"
    {
        return partner(Kind::named(kind), url, name, turns.parse().expect("turns"));
    }
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[HAND_OFF, GRANT]) {
        return;
    }
    let server = place::server();
    if arguments.wants(HAND_OFF) {
        hand_offs(&arguments, &server);
    }
    if arguments.wants(GRANT) {
        grants(&arguments, &server);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lockset,
    Redisson,
    Floor,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Lockset, Self::Redisson, Self::Floor];

    fn named(name: &str) -> Self {
        let named = Self::ALL
            .into_iter()
            .find(|kind| format!("{kind:?}") == name);
        named.expect("the name of a kind")
    }
}

/// One side of a hand-off: a client in a process of its own, and what it holds.
enum Side {
    Lockset(FairLock, Option<FairGuard>),
    Peer(Peer),
}

/// Redisson or the floor: commands on one connection, messages for this side alone on another.
struct Peer {
    kind: Kind,
    command: Floor,
    /// Kept open: messages come on it.
    _subscriber: redis::aio::MultiplexedConnection,
    told: Arc<Semaphore>,
    key: String,
    holder: String,
    /// The scripts of an attempt and of what ends a turn.
    acquire: Arc<str>,
    release: Arc<str>,
    /// Where the other side listens.
    other: String,
}

impl Side {
    /// `me` is 0 for the side that begins, 1 for the other.
    async fn connect(kind: Kind, url: &str, name: &str, me: usize) -> Self {
        if kind == Kind::Lockset {
            let client = lockset_client(url).await;
            return Self::Lockset(client.fair_lock(name), None);
        }
        // Holder ids as long as real ones, known to both sides.
        let holder = |who: usize| format!("01234567-89ab-cdef-0123-456789abcdef:{who}");
        let channel = |who: usize| format!("{}:{}", redisson::channel(name), holder(who));
        let told = Arc::new(Semaphore::new(0));
        let subscriber =
            redisson::subscriber(url, &channel(me), redisson::wakes(&told, |_| 1)).await;
        let mut command = Floor::connect(url, Nagle::Off).await;
        let (acquire, release) = match kind {
            Kind::Redisson => (redisson::FAIR_ACQUIRE, redisson::FAIR_RELEASE),
            _ => (TELL, TELL),
        };
        Self::Peer(Peer {
            kind,
            acquire: command.load(acquire).await,
            release: command.load(release).await,
            command,
            _subscriber: subscriber,
            told,
            key: name.to_owned(),
            holder: holder(me),
            other: channel(1 - me),
        })
    }

    async fn take(&mut self) {
        match self {
            Self::Lockset(lock, guard) => *guard = Some(lock.lock().await.expect("the lock")),
            Self::Peer(peer) if peer.kind == Kind::Floor => peer.hear().await,
            Self::Peer(peer) => {
                let call = redisson::fair_acquire(&peer.acquire, &peer.key, &peer.holder);
                while peer.command.ask(&call).await != Value::Nil {
                    peer.hear().await;
                }
            }
        }
    }

    async fn give(&mut self) {
        match self {
            Self::Lockset(_, guard) => {
                let guard = guard.take().expect("it is held");
                guard.release().await.expect("a hold that was kept");
            }
            Self::Peer(peer) if peer.kind == Kind::Floor => {
                let mut tell = redisson::script::<&str>(&peer.release, &[]);
                tell.arg(&peer.other);
                peer.command.ask(&tell).await;
            }
            Self::Peer(peer) => {
                let latch = redisson::latch(&peer.key, &redisson::latch_id());
                let call = redisson::fair_release(&peer.release, &peer.key, &peer.holder, &latch);
                assert_eq!(peer.command.ask(&call).await, Value::Int(1));
                // Sent and not waited for, as the original does.
                let mut command = peer.command.clone();
                tokio::spawn(async move { command.ask(&redisson::delete(&latch)).await });
            }
        }
    }

    /// Has the lock in turn with the other side; says when it got it and when it gave it back.
    async fn turns(mut self, turns: usize, begins: bool) -> Vec<[u64; 2]> {
        let mut times = Vec::new();
        for turn in 0..turns {
            // The one that begins has it already.
            if turn > 0 || !begins {
                self.take().await;
            }
            let granted = now();
            sleep(HELD).await;
            let given = now();
            self.give().await;
            times.push([granted, given]);
            sleep(REST).await;
        }
        times
    }
}

impl Peer {
    async fn hear(&self) {
        self.told.acquire().await.expect("it is open").forget();
    }
}

/// The clock that all processes of a machine share, in nanoseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The other process. It inherits the place of the first.
fn partner(kind: Kind, url: &str, name: &str, turns: usize) {
    let runtime = Flavour::CurrentThread.runtime();
    let side = runtime.block_on(Side::connect(kind, url, name, 1));
    println!("READY");
    let mut word = String::new();
    std::io::stdin().read_line(&mut word).expect("a word");
    for [granted, given] in in_a_task(&runtime, side.turns(turns, false)) {
        println!("{granted} {given}");
    }
}

/// The times from a release to the grant in the other process, in nanoseconds.
fn hand_off(server: &Server, kind: Kind, name: &str, turns: usize) -> Vec<f64> {
    let runtime = Flavour::CurrentThread.runtime();
    let mut side = runtime.block_on(Side::connect(kind, &server.url(), name, 0));
    let mut partner = Command::new(std::env::current_exe().expect("this program"))
        .args(["partner", &format!("{kind:?}"), &server.url(), name])
        .arg(turns.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the other process");
    let mut lines = BufReader::new(partner.stdout.take().expect("it is piped")).lines();
    let mut line = move || lines.next().map(|line| line.expect("a line"));
    assert_eq!(line().as_deref(), Some("READY"));
    if kind != Kind::Floor {
        side = in_a_task(&runtime, async move {
            side.take().await;
            side
        });
    }
    let mut words = partner.stdin.take().expect("it is piped");
    writeln!(words, "go").expect("it listens");
    let ours = in_a_task(&runtime, side.turns(turns, true));
    let mut theirs = Vec::new();
    while let Some(line) = line() {
        let (granted, given) = line.split_once(' ').expect("two times");
        let time = |text: &str| text.parse::<u64>().expect("a time");
        theirs.push([time(granted), time(given)]);
    }
    assert!(partner.wait().expect("its end").success());
    assert_eq!(theirs.len(), turns);
    let all: Vec<[u64; 2]> = ours
        .into_iter()
        .zip(theirs)
        .flat_map(|(a, b)| [a, b])
        .collect();
    all.windows(2)
        .map(|turns| {
            let ([_, given], [granted, _]) = (turns[0], turns[1]);
            let took = granted.checked_sub(given);
            took.expect("they take turns") as f64
        })
        .collect()
}

fn hand_offs(arguments: &Arguments, server: &Server) {
    let turns = match arguments.effort {
        Effort::Test => 3,
        _ => arguments.scaled(TURNS),
    };
    let results = rounds(arguments, ROUNDS, HAND_OFF, |round| {
        Kind::ALL.map(|kind| {
            let name = format!("fair:{kind:?}:{round}");
            median(&hand_off(server, kind, &name, turns))
        })
    });
    for (what, of, to) in [
        ("p50, lockset/floor", 0, 2),
        ("p50, Redisson/floor", 1, 2),
        ("p50, lockset/Redisson", 0, 1),
    ] {
        let ratios: Vec<f64> = results.iter().map(|times| times[of] / times[to]).collect();
        report(arguments, HAND_OFF, what, &ratios);
    }
}

/// How many wait for each lock; of how many locks; how many grants each sees in a round. Redisson's
/// grants of a long queue take milliseconds, so there are fewer.
const QUEUES: [(usize, usize, [usize; 2]); 3] = [
    (1, 1000, [1, 1]),
    (100, 100, [10, 10]),
    (10_000, 1, [1000, 20]),
];

fn grants(arguments: &Arguments, server: &Server) {
    let mut bench = Grants::connect(server);
    let results = rounds(arguments, ROUNDS, GRANT, |_| {
        QUEUES.map(|(waiters, locks, grants)| {
            [Kind::Lockset, Kind::Redisson].map(|kind| {
                let grants = grants[kind as usize];
                match arguments.effort {
                    Effort::Test => bench.round(kind, waiters.min(10), locks.min(2), 2.min(grants)),
                    _ => bench.round(kind, waiters, locks, grants),
                }
            })
        })
    });
    let Some(results) = results
        .into_iter()
        .map(all_known)
        .collect::<Option<Vec<_>>>()
    else {
        println!("{GRANT}: this system has no /proc/PID/task/PID/schedstat");
        return;
    };
    let least = |queue: usize, kind: usize| {
        let costs = results.iter().map(|queues| queues[queue][kind]);
        costs.fold(f64::INFINITY, f64::min)
    };
    let say = |what: &str, of: (usize, usize), to: (usize, usize)| {
        let ratio = |queues: &Costs| queues[of.0][of.1] / queues[to.0][to.1];
        let ratios: Vec<f64> = results.iter().map(ratio).collect();
        let ratio = least(of.0, of.1) / least(to.0, to.1);
        report_least(arguments, GRANT, what, ratio, &ratios);
    };
    for (kind, name) in [(0, "lockset"), (1, "Redisson")] {
        for (queue, (waiters, ..)) in QUEUES.iter().enumerate().skip(1) {
            say(
                &format!("{name}: {waiters} waiters/1"),
                (queue, kind),
                (0, kind),
            );
        }
    }
    for (queue, (waiters, ..)) in QUEUES.iter().enumerate() {
        say(
            &format!("Redisson/lockset, {waiters} waiting"),
            (queue, 1),
            (queue, 0),
        );
    }
}

/// For each queue, the costs of lockset and of Redisson.
type Costs = [[f64; 2]; QUEUES.len()];

fn all_known(costs: [[Option<f64>; 2]; QUEUES.len()]) -> Option<Costs> {
    let mut known = Costs::default();
    for (queue, pair) in costs.into_iter().enumerate() {
        known[queue] = [pair[0]?, pair[1]?];
    }
    Some(known)
}

struct Grants<'a> {
    server: &'a Server,
    connection: Connection,
    redisson: [String; 2],
}

impl<'a> Grants<'a> {
    fn connect(server: &'a Server) -> Self {
        let mut connection = redis::Client::open(server.url())
            .and_then(|client| client.get_connection())
            .expect("the server takes connections");
        let mut load = |text: &str| -> String {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(text);
            load.query(&mut connection).expect("a script that loads")
        };
        for script in [&catalog::FAIR_ACQUIRE, &catalog::FAIR_RELEASE] {
            assert_eq!(load(script.text()), script.sha());
        }
        let mut listener = redis::Client::open(server.url())
            .and_then(|client| client.get_connection())
            .expect("the server takes connections");
        let (listening, listens) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut messages = listener.as_pubsub();
            messages.psubscribe("*").expect("a subscription");
            listening.send(()).expect("somebody waits for it");
            // Until the server is gone.
            while messages.get_message().is_ok() {}
        });
        listens.recv().expect("a listener");
        Self {
            server,
            redisson: [redisson::FAIR_ACQUIRE, redisson::FAIR_RELEASE].map(load),
            connection,
        }
    }

    /// The server's cost of one grant, in nanoseconds, with about this many waiters.
    fn round(&mut self, kind: Kind, waiters: usize, locks: usize, grants: usize) -> Option<f64> {
        let flush = redis::cmd("FLUSHALL")
            .arg("SYNC")
            .exec(&mut self.connection);
        flush.expect("an empty server");
        let keys: Vec<String> = (0..locks).map(|lock| format!("fair:{lock:011}")).collect();
        // As many more as make it that many in the middle of the round.
        let waiting = waiters + grants / 2;
        let holder = |number: usize| format!("01234567-89ab-cdef-0123-456789abcdef:{number}");
        let holders: Vec<String> = (0..=waiting.max(grants)).map(holder).collect();
        let mut fill = Vec::new();
        for key in &keys {
            fill.extend(
                holders
                    .iter()
                    .map(|holder| self.acquire(kind, Hold { key, holder })),
            );
        }
        self.send(&fill);
        let mut calls = Vec::new();
        for key in &keys {
            for turn in 0..grants {
                let (holder, next) = (&holders[turn], &holders[turn + 1]);
                calls.extend(self.release(kind, Hold { key, holder }));
                if kind == Kind::Redisson {
                    calls.push(self.acquire(kind, Hold { key, holder: next }));
                }
            }
        }
        let before = self.settled_cpu();
        let replies = self.send(&calls);
        let after = self.settled_cpu();
        // One who heard that it holds the lock, or one who asked and got it.
        let grant = match kind {
            Kind::Lockset => Value::Int(1),
            _ => Value::Nil,
        };
        let granted = replies.iter().filter(|reply| **reply == grant).count();
        assert_eq!(granted, locks * grants, "each new head is granted the lock");
        Some((after? - before?) as f64 / (locks * grants) as f64)
    }

    fn acquire(&self, kind: Kind, hold: Hold<'_>) -> Cmd {
        match kind {
            Kind::Lockset => hold.fair_acquire(HEARTBEAT_MS),
            _ => redisson::fair_acquire(&self.redisson[0], hold.key, hold.holder),
        }
    }

    fn release(&self, kind: Kind, hold: Hold<'_>) -> Vec<Cmd> {
        if kind == Kind::Lockset {
            return vec![hold.fair_release()];
        }
        let latch = redisson::latch(hold.key, &redisson::latch_id());
        let release = redisson::fair_release(&self.redisson[1], hold.key, hold.holder, &latch);
        vec![release, redisson::delete(&latch)]
    }

    fn send(&mut self, calls: &[Cmd]) -> Vec<Value> {
        let mut replies = Vec::new();
        for batch in calls.chunks(BATCH) {
            let mut pipeline = Pipeline::with_capacity(BATCH);
            for call in batch {
                pipeline.add_command(call.clone());
            }
            let bytes = pipeline.get_packed_pipeline();
            let answers = self.connection.req_packed_commands(&bytes, 0, batch.len());
            replies.extend(answers.expect("replies"));
        }
        assert!(
            !replies
                .iter()
                .any(|reply| matches!(reply, Value::ServerError(_))),
            "no script fails"
        );
        replies
    }

    /// The server's time so far, read when it is idle.
    fn settled_cpu(&self) -> Option<u64> {
        std::thread::sleep(Duration::from_millis(3));
        place::cpu::of_server(self.server)
    }
}
