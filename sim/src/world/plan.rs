//! The plan of a world, drawn from its seed before it begins: a plan can be repeated, and made smaller.

mod deployed;
mod one_server;
mod terms;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;

pub(super) use self::terms::{OWNERS, Terms};
use crate::deployment::Layout;
use crate::net::Direction;
use crate::rights::Right;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Reentrant,
    Fair,
    Read,
    Write,
    /// A reentrant lock, a fair one and a write side at once.
    Multi,
    /// On all servers of the world.
    Redlock,
    /// A key that is claimed for a window.
    Once,
    /// Permits of a semaphore.
    Permits,
    /// The leadership of an election.
    Lead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Lock,
    Try,
    TryFor(Duration),
    /// Ends every hold of it.
    Force,
    /// Takes it away from one who has it.
    Evict,
}

/// How a hold ends, if it is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    Drop,
    /// One share more, then both are released.
    Reenter,
    Downgrade,
}

/// One call, and what is done with its guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// Before the call.
    pub(super) pause: Duration,
    pub(super) kind: Kind,
    /// Which lock of its kind.
    pub(super) lock: usize,
    pub(super) verb: Verb,
    pub(super) is_fenced: bool,
    /// A lease that is not renewed.
    pub(super) fixed: Option<Duration>,
    /// The call is dropped after this long, if it has not ended.
    pub(super) cancel: Option<Duration>,
    pub(super) hold: Duration,
    pub(super) end: End,
    /// The number of replicas that have to confirm it.
    pub(super) replicas: u32,
    pub(super) terms: Terms,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The connections of a process are reset.
    Reset(usize),
    /// One connection of a process loses what is sent from now on.
    Stall(usize, Direction),
    /// Nothing passes between a process and a server, this way.
    CutOff(usize, usize, Direction),
    /// Of everything that was cut off.
    Heal,
    Pause(usize),
    Resume(usize),
    Crash(usize),
    /// The clients of a process are shut down, with all their holds and waiters.
    Shutdown(usize),
    /// A server ends.
    Kill(usize),
    /// It is there again, with its keys.
    Restart(usize),
    /// It is there again, and has forgotten everything.
    RestartEmpty(usize),
    /// Everything takes up to this long on its way.
    Delay(Duration),
    FlushScripts,
    /// Traffic between servers takes up to this long.
    Lag(Duration),
    /// The primary of a shard ends.
    KillPrimary(usize),
    /// Nothing passes between the primary of a shard and its replicas.
    Sever(usize),
    /// A replica of a shard takes over.
    Promote(usize),
    /// A sentinel or a node learns which servers are primaries.
    Learn(usize),
    /// One of the sentinels names a replica.
    Mislead(usize),
    /// Deposed primaries follow the current ones.
    Settle,
    RestartAll,
    /// The slot of a lock of this kind begins to move.
    BeginMove(usize, usize),
    /// This many of its keys move.
    MoveKeys(usize),
    EndMove,
    /// Everybody who believes to hold a lock has to have it at the true primary.
    Look,
    /// An operator takes a right of the user of a process away.
    Deny(usize, Right),
    /// And gives it back.
    Allow(usize, Right),
    /// The primary demands this many well-connected replicas.
    MinReplicas(usize),
    /// Nothing passes between the primary and a replica.
    CutReplica(usize),
    HealReplicas,
}

/// How the clock of a server differs from the true one. The clocks of several differ by less than a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    /// How much faster it goes, in millionths.
    pub(super) drift_ppm: i64,
    pub(super) ahead_us: i64,
}

impl ServerClock {
    fn draw(draw: &mut Rng) -> Self {
        Self {
            drift_ppm: draw.i64(-5_000..=5_000),
            ahead_us: draw.i64(0..2_000_000),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) layout: Layout,
    /// By process and by task.
    pub(super) tasks: Vec<Vec<Vec<Op>>>,
    /// In the order of their times.
    pub(super) faults: Vec<(Duration, Fault)>,
    /// The clocks of a `Redlock`'s servers, if there are several.
    pub(super) clocks: Vec<ServerClock>,
    pub(super) delay: Duration,
    /// Whether locks are taken and released by plain commands where that is possible.
    pub(super) is_native: bool,
    /// Rights that the user of a process lacks from the beginning.
    pub(super) lacking: Vec<(usize, Right)>,
}

/// How many permits each semaphore has.
pub(super) const PERMITS: u32 = 3;

/// The lease of all clients.
pub(super) const LEASE: Duration = Duration::from_secs(3);

fn ms(draw: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(draw.u64(0..=most))
}

impl Op {
    /// Whether a read hold may remain of it, if it has a least time: an owner that writes and reads may leave its read
    /// hold.
    pub(super) fn may_be_left_to_read(&self) -> bool {
        let may_read = matches!(self.kind, Kind::Write | Kind::Multi) && self.terms.owner.is_some();
        self.kind == Kind::Read || self.end == End::Downgrade || may_read
    }

    fn draw(draw: &mut Rng, servers: usize) -> Self {
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
}

impl Plan {
    /// A fault now and then, in three worlds of four; none in the others.
    pub(super) fn draw(seed: u64) -> Self {
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
            lacking: Vec::new(),
        }
    }

    /// Whether there is a `Redlock` on servers that know nothing of each other.
    pub(super) fn is_redlock(&self) -> bool {
        matches!(self.layout, Layout::Apart(2..))
    }

    /// Whether nothing happens that may end a hold.
    pub(super) fn is_safe(&self) -> bool {
        self.faults.iter().all(|(_, fault)| match fault {
            Fault::Allow(..) => true,
            Fault::Deny(_, right) => !right.is_required(),
            fault => fault.is_harmless(),
        })
    }

    /// Whether nothing happens that may keep a notification from a waiter.
    pub(super) fn is_quiet(&self) -> bool {
        self.faults.iter().all(|(_, fault)| fault.is_harmless())
    }
}

impl Fault {
    /// Whether it neither ends a hold nor keeps a notification from a waiter.
    fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Lag(_) | Self::BeginMove(..) | Self::MoveKeys(_) | Self::EndMove
        )
    }
}

impl Plan {
    /// Smaller plans: without one task, without half of its calls, without one fault or without one call, the largest
    /// removal first.
    pub(super) fn smaller(&self) -> impl Iterator<Item = Self> {
        let (mut many, mut single) = (Vec::new(), Vec::new());
        for (process, tasks) in self.tasks.iter().enumerate() {
            for (task, ops) in tasks.iter().enumerate() {
                let (half, all) = (ops.len() / 2, ops.len());
                many.extend([0..all, 0..half, half..all].map(|range| (process, task, range)));
                single.extend((0..all).map(|at| (process, task, at..at + 1)));
            }
        }
        many.retain(|(.., range)| range.len() > 1);
        many.sort_by_key(|(.., range)| std::cmp::Reverse(range.len()));
        let without = |(process, task, range): (usize, usize, Range<usize>)| {
            let mut less = self.clone();
            less.tasks[process][task].drain(range);
            less
        };
        let faults = (0..self.faults.len()).map(|at| {
            let mut less = self.clone();
            less.faults.remove(at);
            less
        });
        let lacking = (0..self.lacking.len()).map(|at| {
            let mut more = self.clone();
            more.lacking.remove(at);
            more
        });
        let many = many.into_iter().map(without);
        let single = single.into_iter().map(without);
        many.chain(faults).chain(lacking).chain(single)
    }
}

/// In a third of the worlds: tasks of each process that mostly read one lock and soon read it again, so that
/// they have one hold together.
fn add_readers(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
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
fn add_terms(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
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
fn add_synchronizers(seed: u64, tasks: &mut [Vec<Vec<Op>>]) {
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

/// In one of five worlds: the clients of a process are shut down.
fn add_shutdown(seed: u64, processes: usize, faults: &mut Vec<(Duration, Fault)>) {
    // A separate generator keeps all other draws from the seed unchanged.
    let mut draw = Rng::with_seed(seed ^ 0x5d07);
    if draw.u8(..5) > 0 {
        return;
    }
    let at = ms(&mut draw, 1_500);
    faults.push((at, Fault::Shutdown(draw.usize(..processes))));
    faults.sort_by_key(|(at, _)| *at);
}

fn faults(draw: &mut Rng, processes: usize, servers: usize) -> Vec<(Duration, Fault)> {
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

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, {:?}, delay up to {:?}, {:?}, plain commands: {}",
            self.seed, self.layout, self.delay, self.clocks, self.is_native
        )?;
        for (process, right) in &self.lacking {
            writeln!(f, "process {process} may not: {right:?}")?;
        }
        for (process, tasks) in self.tasks.iter().enumerate() {
            for (task, ops) in tasks.iter().enumerate() {
                for op in ops {
                    writeln!(f, "process {process} task {task}: {op:?}")?;
                }
            }
        }
        self.faults
            .iter()
            .try_for_each(|(at, fault)| writeln!(f, "{at:?}: {fault:?}"))
    }
}
