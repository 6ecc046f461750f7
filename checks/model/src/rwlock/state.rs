//! A state of one read-write lock: the server, the clients, and what is on its way between them.
//!
//! Invariant: as in the model of a plain lock, it has no moment in it, only what is left of a span or how long ago
//! something was, each up to the longest lease.

use crate::lock::Holder;

/// A holder's use of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Beside other readers.
    Read,
    /// Alone.
    Write,
}

/// A call on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Acquire the lock.
    Acquire(Holder, Mode),
    /// Lengthen its lease.
    Renew(Holder),
    /// The writer becomes a reader.
    Downgrade(Holder),
    /// Release it, undo an attempt, or end a wait: one script.
    Release(Holder),
}

/// An answer on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It has the lock.
    Granted(Holder),
    /// Others have it, or come first.
    Refused(Holder),
    /// Whether it was renewed.
    Renewed(Holder, bool),
    /// Whether it wrote, and reads now.
    Downgraded(Holder, bool),
    /// It no longer holds the lock.
    Released(Holder),
}

/// The terms of a client's requests, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Its lease.
    pub lease: u8,
    /// For how long it is known to wait after it was refused; 0: it is not noted that it was.
    pub heartbeat: u8,
}

/// A hold of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// Whose it is.
    pub holder: Holder,
    /// The rest of its own lease. A reader with nothing left is dead, and may still be there.
    pub left: u8,
}

/// A refused caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiter {
    /// Who waits.
    pub holder: Holder,
    /// For what.
    pub mode: Mode,
    /// The rest of its heartbeat.
    pub left: u8,
    /// A writer was done since it was refused.
    pub saw_writer_end: bool,
}

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// Who writes.
    pub writer: Option<Holder>,
    /// The readers, sorted, because their order does not matter.
    pub readers: Vec<Reader>,
    /// The rest of the lock's lease.
    pub left: u8,
    /// The waiters, sorted too.
    pub waiting: Vec<Waiter>,
    /// A free lock is kept for readers that waited, for less than a tick.
    pub is_readers_turn: bool,
}

/// Which connection of a client. Both directions are first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Attempts, downgrades and releases.
    Command,
    /// Renewals.
    Renewal,
}

/// All of them.
pub const LANES: [Lane; 2] = [Lane::Command, Lane::Renewal];

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// On their way to the server.
    pub requests: Vec<Request>,
    /// On their way back.
    pub replies: Vec<Reply>,
}

/// A guard, by the clock of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The mode of its guard.
    pub mode: Mode,
    /// The time left until the local deadline.
    pub left: u8,
    /// For how long its task has worked.
    pub worked: u8,
    /// It was downgraded once.
    pub is_downgraded: bool,
}

/// The phase of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It wants nothing.
    Idle,
    /// An attempt has no answer yet.
    Asking {
        /// To do what.
        mode: Mode,
        /// How long ago it was sent.
        age: u8,
        /// A notification came since: where runs have no end.
        is_notified: bool,
    },
    /// It was refused, and waits.
    Waiting {
        /// To do what.
        mode: Mode,
        /// It has asked since time has passed, or since it was notified: where runs have no end.
        has_polled: bool,
    },
    /// It has a guard.
    Held(Guard),
    /// Its process is gone.
    Dead {
        /// For how long, up to a tick more than the longest lease.
        ticks: u8,
    },
}

/// One client and its connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its phase.
    pub phase: Phase,
    /// How many attempts it has begun; the last one has this number.
    pub attempts: u8,
    /// How long ago the renewal was sent that has no answer yet.
    pub renewal: Option<u8>,
    /// Lost holds: each may be at the server until its lease ends, as no client renews it.
    pub lost: Vec<u8>,
    /// By lane.
    pub connections: [Connection; 2],
}

/// The whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The one server.
    pub server: Server,
    /// By their position.
    pub clients: Vec<Client>,
    /// How many more attempts may begin.
    pub attempts: u8,
    /// How many more processes may end.
    pub faults: u8,
    /// A writer was refused although no live holder kept it out.
    pub is_kept_out_by_dead: bool,
    /// Two have read at once.
    pub is_shared: bool,
}

impl Client {
    /// As it starts.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Idle,
            attempts: 0,
            renewal: None,
            lost: Vec::new(),
            connections: Default::default(),
        }
    }

    /// The connection of this lane.
    pub fn lane(&mut self, lane: Lane) -> &mut Connection {
        &mut self.connections[lane as usize]
    }

    /// Its guard, if that is valid by its own clock.
    #[must_use]
    pub fn valid(&self) -> Option<Guard> {
        match self.phase {
            Phase::Held(guard) if guard.left > 0 => Some(guard),
            _ => None,
        }
    }

    /// Whether nothing of it is on its way.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let is_silent = |each: &Connection| each.requests.is_empty() && each.replies.is_empty();
        self.connections.iter().all(is_silent)
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}
