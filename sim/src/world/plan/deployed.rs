//! Plans for servers that belong together: failovers, slots that move, replicas that lag or are cut off, sentinels and
//! nodes that learn of it late.
//!
//! A fault says what it is about, never which server that is: that depends on which others have happened, so a plan
//! with fewer of them is one too.

use std::time::Duration;

use fastrand::Rng;

use super::drawn::{add_readers, add_shutdown, add_terms, faults};
use super::{Fault, LEASE, Op, Plan, ServerClock, ms};
use crate::deployment::Layout;

/// After a client has learnt of a failover, every valid guard has its lock at the true primary within this: it
/// switches over and checks all it holds, where nothing else goes wrong.
const CHECKED_MAX: Duration = Duration::from_millis(400);

/// Within this a client learns of it, once the last server has: sentinels say so; in a cluster it has to ask for
/// something, and renews at the latest.
fn learnt_max(layout: Layout) -> Duration {
    match layout {
        Layout::Cluster { .. } => LEASE / 3,
        _ => Duration::ZERO,
    }
}

pub(super) type Faults = Vec<(Duration, Fault)>;

impl Plan {
    /// One in four has nothing go wrong but slots that move, one in four nothing but failovers; faults of the
    /// network and of processes come on top of these in the others.
    pub(crate) fn draw_deployed(seed: u64, layout: Layout) -> Self {
        let mut draw = Rng::with_seed(seed ^ 0x5e17);
        let tasks = tasks(seed, &mut draw, layout);
        let processes = tasks.len();
        let delay = ms(&mut draw, 8);
        // A negligible lag, or one that makes a failover forget the latest grants.
        let longest_lag = if draw.bool() { 4 } else { 400 };
        let lag = ms(&mut draw, longest_lag);
        let mut all = match seed % 4 {
            2 | 3 => of_network(&mut draw, processes, layout),
            _ => Vec::new(),
        };
        let has_others = !all.is_empty();
        all.push((Duration::ZERO, Fault::Lag(lag)));
        if layout.shards() > 1 {
            (0..draw.usize(0..3)).for_each(|_| a_move(&mut draw, &mut all));
        }
        if !seed.is_multiple_of(4) {
            let mut at = ms(&mut draw, 1_500);
            for _ in 0..draw.usize(1..3) {
                at = a_failover(&mut draw, &mut all, at, layout, !has_others);
            }
        }
        if has_others {
            add_shutdown(seed, processes, &mut all);
        }
        all.sort_by_key(|(at, _)| *at);
        let clock = ServerClock::draw(&mut draw);
        Self {
            seed,
            layout,
            tasks,
            faults: all,
            // Servers that take over from each other have clocks that agree.
            clocks: vec![clock; layout.servers()],
            delay,
            is_native: draw.bool(),
            before: Vec::new(),
            lacking: Vec::new(),
        }
    }
}

/// The calls of each task of each process.
pub(super) fn tasks(seed: u64, draw: &mut Rng, layout: Layout) -> Vec<Vec<Vec<Op>>> {
    let processes = draw.usize(2..5);
    let mut tasks: Vec<Vec<Vec<Op>>> = (0..processes)
        .map(|_| {
            let tasks = draw.usize(1..5);
            let ops = 60 / (processes * tasks) + 1;
            let ops = |draw: &mut Rng| {
                let all = (0..ops).map(|_| Op::draw_deployed(draw, layout));
                all.collect()
            };
            (0..tasks).map(|_| ops(draw)).collect()
        })
        .collect();
    add_readers(seed, &mut tasks);
    add_terms(seed, &mut tasks);
    tasks
}

impl Op {
    fn draw_deployed(draw: &mut Rng, layout: Layout) -> Self {
        let replicas = match layout {
            Layout::Sentinel { replicas, .. } | Layout::Primary { replicas } => replicas,
            _ => 1,
        };
        let op = Self::draw(draw, 1);
        // So that more is held when a replica takes over.
        let is_long = draw.u8(..3) == 0;
        Self {
            hold: if is_long { ms(draw, 600) } else { op.hold },
            replicas: if draw.u8(..4) == 0 {
                u32::try_from(replicas).unwrap_or(1)
            } else {
                0
            },
            ..op
        }
    }
}

/// The faults that one server can meet too, at any of these.
pub(super) fn of_network(draw: &mut Rng, processes: usize, layout: Layout) -> Faults {
    let mut all = faults(draw, processes, layout.servers());
    for (_, fault) in &mut all {
        // Which servers end is drawn with the failovers.
        if let Fault::Kill(_) | Fault::Restart(_) | Fault::RestartEmpty(_) = fault {
            *fault = Fault::Heal;
        }
    }
    all
}

fn a_move(draw: &mut Rng, all: &mut Faults) {
    let (kind, lock) = (draw.usize(..3), draw.usize(..2));
    let began = ms(draw, 2_000);
    all.push((began, Fault::BeginMove(kind, lock)));
    let mut at = began;
    for _ in 0..draw.usize(0..3) {
        at += ms(draw, 60);
        all.push((at, Fault::MoveKeys(draw.usize(1..3))));
    }
    all.push((at + ms(draw, 100), Fault::EndMove));
}

/// Returns when the next may begin.
fn a_failover(
    draw: &mut Rng,
    all: &mut Faults,
    at: Duration,
    layout: Layout,
    is_alone: bool,
) -> Duration {
    let shard = draw.usize(..layout.shards());
    let promoted = match draw.u8(..4) {
        // Asked for: the primary is well, and goes on until it learns of it.
        0 => at,
        1 => {
            all.push((at, Fault::Sever(shard)));
            at + ms(draw, 300)
        }
        // It is missed first.
        _ => {
            all.push((at, Fault::KillPrimary(shard)));
            at + ms(draw, 800)
        }
    };
    all.push((promoted, Fault::Promote(shard)));
    let longest = if draw.u8(..4) == 0 { 1_500 } else { 60 };
    let mut last = promoted;
    for server in 0..layout.servers() {
        let learns = promoted + ms(draw, longest);
        last = last.max(learns);
        all.push((learns, Fault::Learn(server)));
    }
    if draw.u8(..4) == 0 {
        all.push((promoted + ms(draw, 400), Fault::Mislead(draw.usize(..9))));
    }
    let settled = last + ms(draw, longest);
    all.push((settled, Fault::RestartAll));
    all.push((settled, Fault::Heal));
    all.push((settled, Fault::Settle));
    let checked = settled + learnt_max(layout) + CHECKED_MAX;
    if is_alone {
        all.push((checked, Fault::Look));
    }
    checked + ms(draw, 300)
}
