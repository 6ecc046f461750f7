//! The jobs, the same for all.

use std::time::Duration;

/// What every harness is told to do, and whoever reads the table is told that it did.
#[derive(Debug)]
pub(crate) struct Job {
    /// What it is called in results.json, and the beginning of its locks' names.
    pub(crate) name: &'static str,
    /// How table and plots call it.
    pub(crate) title: &'static str,
    /// What harnesses call the sort of lock.
    pub(crate) kind: &'static str,
    pub(crate) tasks: usize,
    /// While the lock is held, in microseconds.
    pub(crate) work: u64,
    /// Of a hundred turns, where the lock knows reads.
    pub(crate) reads: u8,
}

pub(crate) const JOBS: [Job; 7] = [
    Job {
        name: "uncontended",
        title: "one task, a lock of its own",
        kind: "mutex",
        tasks: 1,
        work: 0,
        reads: 0,
    },
    Job {
        name: "spread",
        title: "64 tasks, 64 locks",
        kind: "spread",
        tasks: 64,
        work: 0,
        reads: 0,
    },
    Job {
        name: "hot0",
        title: "64 tasks, one lock, no work",
        kind: "mutex",
        tasks: 64,
        work: 0,
        reads: 0,
    },
    Job {
        name: "hot1",
        title: "64 tasks, one lock, 1 ms of work",
        kind: "mutex",
        tasks: 64,
        work: 1000,
        reads: 0,
    },
    Job {
        name: "fair",
        title: "32 tasks, one fair lock",
        kind: "fair",
        tasks: 32,
        work: 0,
        reads: 0,
    },
    Job {
        name: "rw99",
        title: "32 tasks, 99 % reads, 1 ms of work",
        kind: "rw",
        tasks: 32,
        work: 1000,
        reads: 99,
    },
    Job {
        name: "rw90",
        title: "32 tasks, 90 % reads, 1 ms of work",
        kind: "rw",
        tasks: 32,
        work: 1000,
        reads: 90,
    },
];

/// How much later than its job's end a wait may end that nobody competes with any more.
pub(crate) const LATE: Duration = Duration::from_secs(2);

impl Job {
    /// The line that asks a harness for it.
    pub(crate) fn request(&self, peer: &str, seconds: f64) -> String {
        let Self {
            name,
            kind,
            tasks,
            work,
            reads,
            ..
        } = self;
        let milliseconds = (seconds * 1e3) as u64;
        format!("{kind} {name}:{peer} {tasks} {milliseconds} {work} {reads}")
    }
}
