//! Plans of worlds whose servers know nothing of each other.
//!
//! What some worlds have besides is drawn from a generator of its own, so that all other draws from the seed stay as
//! they are.

use std::time::Duration;

use fastrand::Rng;

use super::{End, Fault, Kind, Op, PERMITS, Plan, ServerClock, Terms, Verb, ms};
use crate::deployment::Layout;
use crate::net::Direction;

impl Plan {
    /// A fault now and then, in three worlds of four; none in the others.
    pub(in crate::world) fn draw(seed: u64) -> Self {
        let mut draw = Rng::with_seed(seed);
        let processes = draw.usize(2..5);
        let servers = match draw.u8(..10) {
            0..2 => 3,
            2 => 5,
            _ => 1,
        };
        let mut tasks: Vec<Vec<Vec<Op>>> = (0..processes)
            .map(|_| {
                let tasks = draw.usize(1..5);
                let ops = 60 / (processes * tasks) + 1;
                (0..tasks)
                    .map(|_| (0..ops).map(|_| Op::draw(&mut draw, servers)).collect())
                    .collect()
            })
            .collect();
        let mut faults = if seed.is_multiple_of(4) {
            Vec::new()
        } else {
            faults(&mut draw, processes, servers)
        };
        if servers == 1 {
            add_readers(seed, &mut tasks);
        }
        add_terms(seed, &mut tasks);
        if servers == 1 {
            add_synchronizers(seed, &mut tasks);
            add_rounds(seed, &mut tasks);
            add_crowd(seed, &mut tasks);
        }
        if !seed.is_multiple_of(4) {
            add_shutdown(seed, processes, &mut faults);
        }
        Self {
            seed,
            layout: Layout::Apart(servers),
            tasks,
            faults,
            clocks: (0..servers).map(|_| ServerClock::draw(&mut draw)).collect(),
            delay: ms(&mut draw, 8),
            is_native: draw.bool(),
            before: Vec::new(),
            lacking: Vec::new(),
        }
    }
}

impl Op {
    pub(super) fn draw(draw: &mut Rng, servers: usize) -> Self {
        let kind = match draw.u8(..12) {
            _ if servers > 1 => Kind::Redlock,
            0..4 => Kind::Reentrant,
            4..7 => Kind::Fair,
            7..9 => Kind::Read,
            9..11 => Kind::Write,
            _ => Kind::Multi,
        };
        let verb = match draw.u8(..20) {
            0..11 => Verb::Lock,
            11..14 => Verb::Try,
            14..19 => Verb::TryFor(ms(draw, 2_000)),
            _ if matches!(kind, Kind::Multi | Kind::Redlock) || draw.u8(..4) > 0 => Verb::Lock,
            _ => Verb::Force,
        };
        let end = match draw.u8(..10) {
            0..5 => End::Release,
            5..8 => End::Drop,
            8 => End::Reenter,
            _ if kind == Kind::Write => End::Downgrade,
            _ => End::Release,
        };
        let fixed = (draw.u8(..5) == 0).then(|| Duration::from_millis(draw.u64(300..2_000)));
        let cancel = (draw.u8(..5) == 0).then(|| ms(draw, 60));
        let long = draw.u8(..12) == 0;
        Self {
            pause: ms(draw, 40),
            kind,
            lock: draw.usize(..2),
            verb,
            is_fenced: draw.bool(),
            fixed,
            cancel,
            hold: ms(draw, if long { 4_000 } else { 25 }),
            end,
            replicas: 0,
            terms: Terms::default(),
        }
    }

    /// One of a task that mostly reads.
    fn draw_reader(draw: &mut Rng) -> Self {
        let is_writer = draw.u8(..12) == 0;
        let longest = if draw.u8(..20) == 0 { 3_500 } else { 8 };
        Self {
            pause: ms(draw, 4),
            kind: if is_writer { Kind::Write } else { Kind::Read },
            lock: 0,
            verb: match draw.u8(..8) {
                0 => Verb::Try,
                1 => Verb::TryFor(ms(draw, 500)),
                _ => Verb::Lock,
            },
            is_fenced: false,
            fixed: None,
            cancel: (draw.u8(..6) == 0).then(|| ms(draw, 20)),
            hold: ms(draw, longest),
            end: match draw.u8(..8) {
                0..4 => End::Release,
                4..7 => End::Drop,
                _ => End::Reenter,
            },
            replicas: 0,
            terms: Terms::default(),
        }
    }

    /// One about a latch or a barrier.
    fn draw_round(draw: &mut Rng) -> Self {
        let verb = match draw.u8(..5) {
            0 => Verb::Try,
            1..3 => Verb::TryFor(ms(draw, 2_000)),
            _ => Verb::Lock,
        };
        Self {
            pause: ms(draw, 40),
            kind: if draw.u8(..3) == 0 {
                Kind::Barrier
            } else {
                Kind::Latch
            },
            lock: draw.usize(..2),
            verb,
            is_fenced: draw.u8(..4) == 0,
            fixed: None,
            cancel: (draw.u8(..6) == 0).then(|| ms(draw, 60)),
            hold: Duration::ZERO,
            end: End::Release,
            replicas: 0,
            terms: Terms::default(),
        }
    }
}

/// In a third of the worlds: tasks of each process that mostly read one lock and soon read it again, so that
/// they have one hold together.
pub(super) fn add_readers(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(!seed);
    if draw.u8(..3) > 0 {
        return;
    }
    for process in tasks {
        for _ in 0..draw.usize(2..5) {
            process.push((0..10).map(|_| Op::draw_reader(&mut draw)).collect());
        }
    }
}

/// In half of the worlds: calls have terms, and some claim a key, or take a hold away, instead.
pub(super) fn add_terms(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0x7e12);
    if draw.bool() {
        return;
    }
    for op in tasks.iter_mut().flatten().flatten() {
        op.terms = Terms::draw(&mut draw, op.fixed, op.replicas > 0);
        let (claims, evicts) = (draw.u8(..15) == 0, draw.u8(..40) == 0);
        match op.kind {
            // It has a server of its own for each vote.
            Kind::Redlock => {}
            _ if claims => op.kind = Kind::Once,
            Kind::Multi => {}
            _ if evicts => op.verb = Verb::Evict,
            _ => {}
        }
    }
}

/// In half of the worlds: calls for permits and campaigns, instead.
pub(super) fn add_synchronizers(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0x5e3a);
    if draw.bool() {
        return;
    }
    for op in tasks.iter_mut().flatten().flatten() {
        op.kind = match draw.u8(..10) {
            0..4 => Kind::Permits,
            4 => Kind::Lead,
            _ => continue,
        };
        op.terms.permits = draw.u32(1..=PERMITS);
        if matches!(op.verb, Verb::Force | Verb::Evict) {
            op.verb = Verb::Lock;
        }
    }
}

/// In a quarter of the worlds: tasks of each process that meet at latches and barriers.
pub(super) fn add_rounds(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0x1a7c);
    if draw.u8(..4) > 0 {
        return;
    }
    for process in tasks {
        for _ in 0..draw.usize(1..3) {
            process.push((0..8).map(|_| Op::draw_round(&mut draw)).collect());
        }
    }
}

/// In one of eight worlds: more tasks of one process want a fair lock than ask by themselves.
pub(super) fn add_crowd(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0xc40d);
    if draw.u8(..8) > 0 {
        return;
    }
    let process = draw.usize(..tasks.len());
    for _ in 0..draw.usize(8..14) {
        let fair = |draw: &mut Rng| Op {
            kind: Kind::Fair,
            lock: 0,
            ..Op::draw_reader(draw)
        };
        tasks[process].push((0..3).map(|_| fair(&mut draw)).collect());
    }
}

/// In one of five worlds: the clients of a process are shut down.
pub(super) fn add_shutdown(seed: u64, processes: usize, faults: &mut Vec<(Duration, Fault)>) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0x5d07);
    if draw.u8(..5) > 0 {
        return;
    }
    let at = ms(&mut draw, 1_500);
    faults.push((at, Fault::Shutdown(draw.usize(..processes))));
    faults.sort_by_key(|(at, _)| *at);
}

pub(super) fn faults(draw: &mut Rng, processes: usize, servers: usize) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    for _ in 0..draw.usize(1..8) {
        let at = ms(draw, 3_000);
        let (process, server) = (draw.usize(..processes), draw.usize(..servers));
        let way = if draw.bool() {
            Direction::ToServer
        } else {
            Direction::ToClient
        };
        let longest = if draw.bool() { 400 } else { 5_000 };
        let until = at + ms(draw, longest);
        let (fault, end) = match draw.u8(..12) {
            0..2 => (Fault::Reset(process), None),
            2..4 => (Fault::Stall(process, way), None),
            4..6 => (Fault::CutOff(process, server, way), Some(Fault::Heal)),
            6..8 => (Fault::Pause(process), Some(Fault::Resume(process))),
            8 => (Fault::Crash(process), None),
            // A `Redlock` bears servers that forget everything; one server is all that there is.
            9 if servers > 1 && draw.bool() => {
                (Fault::Kill(server), Some(Fault::RestartEmpty(server)))
            }
            9 => (Fault::Kill(server), Some(Fault::Restart(server))),
            10 => (Fault::Delay(ms(draw, 300)), None),
            _ => (Fault::FlushScripts, None),
        };
        faults.push((at, fault));
        faults.extend(end.map(|end| (until, end)));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
