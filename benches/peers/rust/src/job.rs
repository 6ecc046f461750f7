//! One job: tasks that take a lock, work, and give it back, until the time is over.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inside::Inside;
use super::{Kind, PERMITS, Peer, PeerLock};

/// `kind name tasks ms work_us reads`: see `benches/peers/README.md`.
#[derive(Debug)]
pub(crate) struct Job {
    kind: String,
    name: String,
    tasks: usize,
    time: Duration,
    work: Duration,
    /// Of a hundred turns.
    reads: u8,
}

/// The log of one task.
#[derive(Debug, Default)]
struct Log {
    /// `asked,granted,worked,released` of each turn, in microseconds since the job's start.
    turns: String,
    failures: u64,
}

impl Job {
    pub(crate) fn parse(words: &[&str]) -> Self {
        let [kind, name, tasks, time, work, reads] = words else {
            panic!("not a request: {words:?}");
        };
        let number = |word: &str| -> u64 { word.parse().expect("a number") };
        Self {
            kind: (*kind).to_owned(),
            name: (*name).to_owned(),
            tasks: number(tasks) as usize,
            time: Duration::from_millis(number(time)),
            work: Duration::from_micros(number(work)),
            reads: number(reads) as u8,
        }
    }

    /// Runs it, and says what came of it.
    pub(crate) async fn run<P: Peer>(&self, peer: &P) -> String {
        let kind = self.kind();
        peer.prepare(kind, &self.name).await;
        let mut seats = Vec::new();
        for task in 0..self.tasks {
            match self.locks(peer, task) {
                Ok(locks) => seats.push(locks),
                Err(lack) => return format!("lacks {lack}"),
            }
        }
        let is_permit = kind == Kind::Permit;
        let inside = Arc::new(Inside::of(is_permit.then_some(PERMITS)));
        let start = Instant::now();
        let shift = Shift {
            start,
            end: start + self.time,
            work: self.work,
            reads: self.reads,
            shares: is_permit,
            // On locks of their own all may be inside.
            inside: (self.kind != "spread" && kind != Kind::CountDown).then(|| Arc::clone(&inside)),
        };
        let tasks = seats
            .into_iter()
            .map(|locks| tokio::spawn(shift.clone().run(locks)));
        let tasks: Vec<_> = tasks.collect();
        let mut answer = String::new();
        let mut failures = 0;
        for task in tasks {
            let log = task.await.expect("the task of a harness does not panic");
            failures += log.failures;
            let _ = writeln!(answer, "turns{}", log.turns);
        }
        let _ = write!(answer, "done {failures} {}", inside.violations());
        answer
    }

    /// Of a turn that is no read.
    fn kind(&self) -> Kind {
        match &*self.kind {
            "fair" => Kind::Fair,
            "rw" => Kind::Write,
            "permits" => Kind::Permit,
            "latch" => Kind::CountDown,
            _ => Kind::Exclusive,
        }
    }

    /// The lock of a task that writes, and of one that reads.
    fn locks<P: Peer>(&self, peer: &P, task: usize) -> Result<Locks<P::Lock>, &'static str> {
        let name = match &*self.kind {
            "spread" => format!("{}:{task}", self.name),
            _ => self.name.clone(),
        };
        let kind = self.kind();
        let exclusive = peer.lock(kind, &name, None)?;
        let shared = match kind {
            Kind::Write => Some(peer.lock(Kind::Read, &name, None)?),
            _ => None,
        };
        Ok(Locks { exclusive, shared })
    }
}

struct Locks<L> {
    exclusive: L,
    shared: Option<L>,
}

/// State shared by all tasks of a job.
#[derive(Clone)]
struct Shift {
    start: Instant,
    end: Instant,
    work: Duration,
    reads: u8,
    /// Whether others may be inside in each turn.
    shares: bool,
    inside: Option<Arc<Inside>>,
}

impl Shift {
    async fn run<L: PeerLock>(self, mut locks: Locks<L>) -> Log {
        let mut log = Log::default();
        while Instant::now() < self.end {
            let reads = fastrand::u8(..100) < self.reads;
            let lock = match &mut locks.shared {
                Some(shared) if reads => shared,
                _ => &mut locks.exclusive,
            };
            self.turn(lock, reads || self.shares, &mut log).await;
        }
        log
    }

    async fn turn<L: PeerLock>(&self, lock: &mut L, shares: bool, log: &mut Log) {
        let asked = self.now();
        let guard = persist(lock, &mut log.failures).await;
        let granted = self.now();
        self.inside.iter().for_each(|inside| inside.enter(shares));
        if !self.work.is_zero() {
            let work = self.work;
            // tokio's own timer is too coarse for a millisecond.
            let slept = tokio::task::spawn_blocking(move || std::thread::sleep(work));
            slept.await.expect("sleeping does not panic");
        }
        self.inside.iter().for_each(|inside| inside.leave(shares));
        let worked = self.now();
        lock.release(guard).await;
        let _ = write!(log.turns, " {asked},{granted},{worked},{}", self.now());
    }

    fn now(&self) -> u128 {
        self.start.elapsed().as_micros()
    }
}

/// Asks again each time the library stops waiting.
pub(crate) async fn persist<L: PeerLock>(lock: &mut L, failures: &mut u64) -> L::Guard {
    loop {
        match lock.acquire().await {
            Ok(guard) => return guard,
            Err(_) => *failures += 1,
        }
    }
}
