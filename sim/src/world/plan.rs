//! The plan of a world, drawn from its seed before it begins: a plan can be repeated, and made smaller.

mod deployed;
mod drawn;
mod one_server;
mod pairs;
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
    Latch,
    Barrier,
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
    /// The connection of the next delivery breaks.
    BreakNext,
    /// The next delivery comes this much later, with all behind it on its connection.
    DelayNext(Duration),
    /// A process stands still for this long.
    PauseFor(usize, Duration),
    /// A server is down for this long, and keeps its keys.
    KillFor(usize, Duration),
    /// The future of the present call of a task of a process is dropped.
    DropCall(usize, usize),
    /// It is kept, and not polled for this long.
    LeaveCall(usize, usize, Duration),
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
    /// Faults just before the delivery with this number, in order.
    pub(super) before: Vec<(u64, Fault)>,
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
}

impl Plan {
    /// Whether there is a `Redlock` on servers that know nothing of each other.
    pub(super) fn is_redlock(&self) -> bool {
        matches!(self.layout, Layout::Apart(2..))
    }

    /// Whether nothing happens that may end a hold.
    pub(super) fn is_safe(&self) -> bool {
        self.all_faults().all(|fault| match fault {
            Fault::Allow(..) | Fault::LeaveCall(..) => true,
            Fault::Deny(_, right) => !right.is_required(),
            fault => fault.is_harmless(),
        })
    }

    fn all_faults(&self) -> impl Iterator<Item = &Fault> {
        let before = self.before.iter().map(|(_, fault)| fault);
        self.faults.iter().map(|(_, fault)| fault).chain(before)
    }

    /// Whether nothing happens that may keep a notification from a waiter.
    pub(super) fn is_quiet(&self) -> bool {
        self.all_faults().all(Fault::is_harmless)
    }
}

impl Fault {
    /// Whether it neither ends a hold nor keeps a notification from a waiter.
    fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Lag(_)
                | Self::BeginMove(..)
                | Self::MoveKeys(_)
                | Self::EndMove
                | Self::DropCall(..)
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
            .try_for_each(|(at, fault)| writeln!(f, "{at:?}: {fault:?}"))?;
        self.before
            .iter()
            .try_for_each(|(number, fault)| writeln!(f, "before delivery {number}: {fault:?}"))
    }
}
