//! Plans of small worlds: each pair of mechanisms on one lock, and the faults that each moment of them can have.

use std::time::Duration;

use super::{End, Fault, Kind, LEASE, Op, Plan, ServerClock, Terms, Verb};
use crate::deployment::Layout;
use crate::net::Moment;

const MS: Duration = Duration::from_millis(1);

/// Longer than a lease, by more than all that a client adds to one.
const LONG: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 3 / 2);

/// Longer than a client waits for a reply, and shorter than a lease.
const SHORT: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 2);

/// Longer than all other calls of a small world together.
const FOR_GOOD: Duration = Duration::from_secs(60);

/// Others that want the lock are refused in this time, connect once more, and listen.
const HOLD: Duration = Duration::from_millis(20);

/// A call that waits until it has its lock, holds it for a while, and releases it.
fn plain(kind: Kind) -> Op {
    Op {
        pause: MS,
        kind,
        lock: 0,
        verb: Verb::Lock,
        is_fenced: false,
        fixed: None,
        cancel: None,
        hold: HOLD,
        end: End::Release,
        replicas: 0,
        terms: Terms {
            permits: 1,
            ..Terms::default()
        },
    }
}

/// A call of this kind for each mechanism of the engine.
fn calls(kind: Kind) -> Vec<Op> {
    let op = plain(kind);
    let on = |terms: Terms| Op { terms, ..op };
    let terms = op.terms;
    let mut calls = vec![
        op,
        Op {
            end: End::Drop,
            ..op
        },
        Op {
            verb: Verb::Try,
            ..op
        },
        Op {
            verb: Verb::TryFor(300 * MS),
            ..op
        },
        Op {
            fixed: Some(400 * MS),
            ..op
        },
        Op {
            hold: 200 * MS,
            ..on(Terms {
                lease: Some(150 * MS),
                ..terms
            })
        },
    ];
    match kind {
        Kind::Permits => calls.push(on(Terms {
            permits: 3,
            ..terms
        })),
        Kind::Once | Kind::Lead | Kind::Latch | Kind::Barrier => {}
        _ => calls.extend(calls_of_a_lock(op)),
    }
    calls
}

/// Calls on terms that only locks have.
fn calls_of_a_lock(op: Op) -> Vec<Op> {
    let (kind, terms) = (op.kind, op.terms);
    let on = |terms: Terms| Op { terms, ..op };
    let mut calls = vec![
        Op {
            is_fenced: true,
            ..op
        },
        Op {
            end: End::Reenter,
            ..on(Terms {
                owner: Some(0),
                ..terms
            })
        },
        on(Terms {
            at_least: Some(400 * MS),
            ..terms
        }),
        Op {
            hold: 200 * MS,
            ..on(Terms {
                max_hold: Some(100 * MS),
                ..terms
            })
        },
        Op {
            hold: 300 * MS,
            ..on(Terms {
                ends_when_recalled: true,
                ..terms
            })
        },
    ];
    if matches!(kind, Kind::Reentrant | Kind::Write) {
        calls.push(on(Terms {
            sticky: Some(500 * MS),
            ..terms
        }));
    }
    if kind == Kind::Write {
        calls.push(Op {
            end: End::Downgrade,
            ..op
        });
    }
    calls
}

const ONE: Layout = Layout::Apart(1);
const SENTINEL: Layout = Layout::Sentinel {
    replicas: 1,
    sentinels: 3,
};

/// The kinds whose calls meet at one lock, and their servers. The members of several locks are on several nodes of a
/// cluster, and are taken one after the other there.
const KINDS: [(Layout, &[Kind]); 11] = [
    (ONE, &[Kind::Reentrant]),
    (ONE, &[Kind::Fair]),
    (ONE, &[Kind::Write, Kind::Read]),
    (ONE, &[Kind::Multi, Kind::Reentrant]),
    (ONE, &[Kind::Permits]),
    (ONE, &[Kind::Lead]),
    (ONE, &[Kind::Once]),
    (ONE, &[Kind::Latch, Kind::Barrier]),
    (Layout::Apart(3), &[Kind::Redlock]),
    (Layout::Cluster { shards: 2 }, &[Kind::Multi]),
    (SENTINEL, &[Kind::Reentrant]),
];

/// Two processes, which do these calls one after the other, task by task.
fn plan(layout: Layout, is_native: bool, tasks: [Vec<Vec<Op>>; 2]) -> Plan {
    let clock = ServerClock {
        drift_ppm: 0,
        ahead_us: 0,
    };
    Plan {
        seed: 1,
        layout,
        tasks: tasks.into(),
        faults: Vec::new(),
        before: Vec::new(),
        clocks: vec![clock; layout.servers()],
        delay: MS,
        is_native,
        lacking: Vec::new(),
    }
}

/// Two calls at a time, from two processes and from one.
fn meeting(layout: Layout, one: Op, other: Op, last: Op) -> [Plan; 2] {
    let apart = [vec![vec![one, last]], vec![vec![other, last]]];
    let beside = [vec![vec![one, last], vec![other]], vec![vec![last]]];
    [plan(layout, true, apart), plan(layout, false, beside)]
}

impl Plan {
    pub(in crate::world) fn pairs() -> impl Iterator<Item = Self> {
        KINDS.into_iter().flat_map(|(layout, kinds)| {
            let all: Vec<Op> = kinds.iter().copied().flat_map(calls).collect();
            let last = plain(kinds[0]);
            (0..all.len()).flat_map(move |at| {
                let (one, others) = (all[at], all[at..].to_vec());
                others
                    .into_iter()
                    .flat_map(move |other| meeting(layout, one, other, last))
            })
        })
    }

    /// With one fault more, after the last: one plan for each moment and each fault that it can have.
    pub(in crate::world) fn with_one_fault_more(
        &self,
        moments: &[Moment],
    ) -> impl Iterator<Item = Self> {
        let after = self.before.last().map_or(0, |(number, _)| number + 1);
        let later = moments.iter().filter(move |moment| moment.number >= after);
        later.flat_map(move |moment| {
            let faults = moment.client.map(|client| self.faults_of(client));
            faults.into_iter().flatten().map(move |fault| {
                let mut more = self.clone();
                more.before.push((moment.number, fault));
                more
            })
        })
    }

    /// What can go wrong when something is about to arrive at a client, or from it.
    fn faults_of(&self, client: usize) -> Vec<Fault> {
        let each = self.layout.clients();
        let (process, server) = (client / each, client % each);
        let mut faults = vec![
            Fault::BreakNext,
            Fault::DelayNext(SHORT),
            Fault::DelayNext(LONG),
            Fault::PauseFor(process, LONG),
            Fault::Crash(process),
            Fault::Shutdown(process),
            Fault::KillFor(server, SHORT),
        ];
        for task in 0..self.tasks[process].len() {
            faults.push(Fault::DropCall(process, task));
            // One call is left at a time, so that it is known which of them stops others.
            let is_left = |(_, fault): &(u64, Fault)| matches!(fault, Fault::LeaveCall(..));
            if !self.before.iter().any(is_left) {
                faults.push(Fault::LeaveCall(process, task, FOR_GOOD));
            }
        }
        faults
    }
}
