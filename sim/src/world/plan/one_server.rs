//! Plans for one server with replicas: users without some rights, rights that are taken away and restored,
//! restarts without data, and replicas that lag or are cut off and that the server demands.

use std::time::Duration;

use fastrand::Rng;

use super::deployed::{Faults, of_network, tasks};
use super::drawn::add_shutdown;
use super::{Fault, LEASE, Plan, ServerClock, ms};
use crate::deployment::Layout;
use crate::rights::Right;

/// What docs/rights.md says can be left out, on one server; `INFO` is on no list of it.
const OPTIONAL: &[Right] = &[
    Right::Command("publish"),
    Right::Command("subscribe"),
    Right::Command("unsubscribe"),
    Right::Channels("redisson_lock__channel:"),
    Right::Channels("redisson_rwlock:"),
    Right::Channels("lockset_recall:"),
    Right::Command("client|info"),
    Right::Command("client|kill"),
    Right::Command("client|setname"),
    Right::Command("script|exists"),
    Right::Command("script|load"),
    Right::Command("restore"),
    Right::Command("incrby"),
    Right::Command("multi"),
    Right::Command("exec"),
    Right::Command("lpos"),
    Right::Command("info"),
];

/// Without one of these, calls of some kinds of locks fail.
const REQUIRED: &[Right] = &[
    Right::Command("eval"),
    Right::Command("evalsha"),
    Right::Command("pexpire"),
    Right::Command("hset"),
    Right::Command("hdel"),
    Right::Command("hgetall"),
    Right::Command("del"),
    Right::Command("time"),
    Right::Command("exists"),
    Right::Command("zadd"),
    Right::Command("zrem"),
    Right::Command("lrem"),
    Right::Command("rpush"),
    Right::Command("wait"),
];

/// The time after a restart without data in which every client with a renewed lease learns of it: by the next renewal,
/// which may have been sent to the server that ended.
const KNOWN_MAX: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 3 + 400);

impl Right {
    /// Whether calls fail without it: what a script has done until then ends with its lease.
    pub(in crate::world) fn is_required(self) -> bool {
        REQUIRED.contains(&self)
    }

    /// Whether what arrives late is undone without it, some time later, or not at all once its client is closed.
    pub(in crate::world) fn is_against_late_commands(self) -> bool {
        matches!(self, Self::Command("client|info" | "client|kill"))
    }

    /// Whether notifications of a release need this right.
    fn is_for_waking(self) -> bool {
        match self {
            Self::Command(name) => matches!(name, "publish" | "subscribe" | "lpos"),
            Self::Channels(_) => true,
        }
    }
}

impl Plan {
    /// If the seed is a multiple of four, there are no faults, but some users lack rights; if it is one more, there is
    /// one of the faults of this file; otherwise these faults, and faults of the network and of processes.
    pub(crate) fn draw_on_one_server(seed: u64) -> Self {
        let mut draw = Rng::with_seed(seed ^ 0x0a11);
        let replicas = draw.usize(0..3);
        let layout = Layout::Primary { replicas };
        let tasks = tasks(seed, &mut draw, layout);
        let processes = tasks.len();
        let delay = ms(&mut draw, 8);
        let longest_lag = if draw.bool() { 4 } else { 120 };
        let lag = ms(&mut draw, longest_lag);
        let mut lacking = Vec::new();
        if draw.u8(..3) > 0 {
            for process in 0..processes {
                let few = draw.usize(0..4);
                lacking.extend((0..few).map(|_| (process, OPTIONAL[draw.usize(..OPTIONAL.len())])));
            }
        }
        let mut all = match seed % 4 {
            2 | 3 => of_network(&mut draw, processes, layout),
            _ => Vec::new(),
        };
        let is_alone = seed % 4 == 1;
        if !seed.is_multiple_of(4) {
            let things = if is_alone { 1 } else { draw.usize(1..4) };
            for _ in 0..things {
                match draw.u8(..if replicas > 0 { 4 } else { 3 }) {
                    0 => {
                        for _ in 0..draw.usize(1..3) {
                            a_right(&mut draw, &mut all, processes, OPTIONAL);
                        }
                    }
                    // One: what a script has begun is undone with the others.
                    1 if !all.iter().any(|(_, fault)| denies_required(fault)) => {
                        a_right(&mut draw, &mut all, processes, REQUIRED);
                    }
                    1 => {}
                    2 => a_restart(&mut draw, &mut all, is_alone),
                    _ => of_replicas(&mut draw, &mut all, replicas),
                }
            }
        }
        if seed % 4 > 1 {
            add_shutdown(seed, processes, &mut all);
        }
        all.push((Duration::ZERO, Fault::Lag(lag)));
        all.sort_by_key(|(at, _)| *at);
        let clock = ServerClock::draw(&mut draw);
        Self {
            seed,
            layout,
            tasks,
            faults: all,
            before: Vec::new(),
            lacking,
            clocks: vec![clock; layout.servers()],
            delay,
            is_native: draw.bool(),
        }
    }

    /// Whether some clients may not publish a release, or not receive it.
    pub(in crate::world) fn polls(&self) -> bool {
        self.lacking.iter().any(|(_, right)| right.is_for_waking())
    }
}

fn denies_required(fault: &Fault) -> bool {
    matches!(fault, Fault::Deny(_, right) if right.is_required())
}

/// An operator takes a right of a process away, and gives it back.
fn a_right(draw: &mut Rng, all: &mut Faults, processes: usize, some: &[Right]) {
    let (process, right) = (draw.usize(..processes), some[draw.usize(..some.len())]);
    let at = ms(draw, 1_500);
    let longest = if draw.bool() { 300 } else { 2_500 };
    let until = at + ms(draw, longest);
    all.push((at, Fault::Deny(process, right)));
    all.push((until, Fault::Allow(process, right)));
}

/// The server ends, and is there again without its data.
fn a_restart(draw: &mut Rng, all: &mut Faults, is_alone: bool) {
    let at = ms(draw, 1_500);
    let longest = if draw.bool() { 5 } else { 600 };
    let back = at + ms(draw, longest);
    all.push((at, Fault::Kill(0)));
    all.push((back, Fault::RestartEmpty(0)));
    if is_alone {
        all.push((back + KNOWN_MAX, Fault::Look));
    }
}

/// Replicas are cut off or end; the server may refuse what it cannot give them.
fn of_replicas(draw: &mut Rng, all: &mut Faults, replicas: usize) {
    let at = ms(draw, 1_500);
    let until = at + ms(draw, 2_500);
    if draw.bool() {
        let least = draw.usize(1..=replicas);
        all.push((ms(draw, 300), Fault::MinReplicas(least)));
    }
    for replica in 1..=replicas {
        match draw.u8(..3) {
            0 => all.push((at, Fault::CutReplica(replica))),
            1 => {
                all.push((at, Fault::Kill(replica)));
                all.push((until, Fault::Restart(replica)));
            }
            _ => {}
        }
    }
    all.push((until, Fault::HealReplicas));
}
