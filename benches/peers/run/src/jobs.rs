//! The jobs, the same for all.

use std::time::Duration;

use crate::peers::Peer;

/// One job, as every harness gets it and as the table describes it.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its name in results.json, and the beginning of its locks' names.
    pub(crate) name: &'static str,
    /// How table and plots call it.
    pub(crate) title: &'static str,
    /// The kind of lock, by the harnesses' name.
    pub(crate) kind: &'static str,
    /// The processes of a peer that take part, if its lock can be waited for between processes.
    pub(crate) processes: usize,
    /// Of each process.
    pub(crate) tasks: usize,
    /// While the lock is held, in microseconds.
    pub(crate) work: u64,
    /// Of a hundred turns, where the lock knows reads.
    pub(crate) reads: u8,
}

pub(crate) const JOBS: [Job; 15] = [
    Job {
        name: "uncontended",
        title: "one task, a lock of its own",
        kind: "mutex",
        processes: 1,
        tasks: 1,
        work: 0,
        reads: 0,
    },
    Job {
        name: "spread",
        title: "64 tasks, 64 locks",
        kind: "spread",
        processes: 1,
        tasks: 64,
        work: 0,
        reads: 0,
    },
    Job {
        name: "hot0",
        title: "64 tasks, one lock, no work",
        kind: "mutex",
        processes: 1,
        tasks: 64,
        work: 0,
        reads: 0,
    },
    Job {
        name: "hot1",
        title: "64 tasks, one lock, 1 ms of work",
        kind: "mutex",
        processes: 1,
        tasks: 64,
        work: 1000,
        reads: 0,
    },
    Job {
        name: "crowd4",
        title: "4 processes of 16 tasks, one lock",
        kind: "mutex",
        processes: 4,
        tasks: 16,
        work: 0,
        reads: 0,
    },
    Job {
        name: "crowd8",
        title: "8 processes of 8 tasks, one lock",
        kind: "mutex",
        processes: 8,
        tasks: 8,
        work: 0,
        reads: 0,
    },
    Job {
        name: "fair",
        title: "32 tasks, one fair lock",
        kind: "fair",
        processes: 1,
        tasks: 32,
        work: 0,
        reads: 0,
    },
    Job {
        name: "crowdfair",
        title: "4 processes of 8 tasks, one fair lock",
        kind: "fair",
        processes: 4,
        tasks: 8,
        work: 0,
        reads: 0,
    },
    Job {
        name: "rw99",
        title: "32 tasks, 99 % reads, 1 ms of work",
        kind: "rw",
        processes: 1,
        tasks: 32,
        work: 1000,
        reads: 99,
    },
    Job {
        name: "rw90",
        title: "32 tasks, 90 % reads, 1 ms of work",
        kind: "rw",
        processes: 1,
        tasks: 32,
        work: 1000,
        reads: 90,
    },
    Job {
        name: "crowdread0",
        title: "4 processes of 16 tasks, 95 % reads",
        kind: "rw",
        processes: 4,
        tasks: 16,
        work: 0,
        reads: 95,
    },
    Job {
        name: "crowdread1",
        title: "4 processes of 16 tasks, 95 % reads, 1 ms of work",
        kind: "rw",
        processes: 4,
        tasks: 16,
        work: 1000,
        reads: 95,
    },
    Job {
        name: "permits",
        title: "64 tasks, 8 permits",
        kind: "permits",
        processes: 1,
        tasks: 64,
        work: 0,
        reads: 0,
    },
    Job {
        name: "crowdpermits",
        title: "4 processes of 16 tasks, 8 permits",
        kind: "permits",
        processes: 4,
        tasks: 16,
        work: 0,
        reads: 0,
    },
    Job {
        name: "latch",
        title: "16 tasks count a latch down",
        kind: "latch",
        processes: 1,
        tasks: 16,
        work: 0,
        reads: 0,
    },
];

/// How long after its job a wait without competitors may end.
pub(crate) const LATE: Duration = Duration::from_secs(2);

impl Job {
    /// How many processes of a peer take part; all tasks in one, if its lock cannot be waited for between them.
    pub(crate) fn processes(&self, peer: &Peer) -> usize {
        if peer.waits_between {
            self.processes
        } else {
            1
        }
    }

    /// Of all processes.
    pub(crate) fn all_tasks(&self) -> usize {
        self.processes * self.tasks
    }

    /// The line that asks each of its harnesses for it.
    pub(crate) fn request(&self, peer: &Peer, seconds: f64) -> String {
        let Self {
            name,
            kind,
            work,
            reads,
            ..
        } = self;
        let tasks = self.all_tasks() / self.processes(peer);
        let milliseconds = (seconds * 1e3) as u64;
        let peer = peer.name;
        format!("{kind} {name}:{peer} {tasks} {milliseconds} {work} {reads}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;

    #[test]
    fn who_cannot_wait_between_processes_has_all_tasks_in_one() {
        let crowd = JOBS.iter().find(|job| job.name == "crowd8").unwrap();
        let request = |peer: &Peer| (crowd.processes(peer), crowd.request(peer, 0.5));
        let [floor, lockset, ..] = &PEERS;
        assert_eq!(
            request(floor),
            (1, "mutex crowd8:floor 64 500 0 0".to_owned())
        );
        assert_eq!(
            request(lockset),
            (8, "mutex crowd8:lockset 8 500 0 0".to_owned())
        );
    }
}
