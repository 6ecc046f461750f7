//! A state of one lock: the server, the clients, and what is on its way between them.
//!
//! Invariant: it has no moment in it, only what is left of a span or how long ago something was, each up to
//! the lease. So the same situation at another time is the same state.

/// Of a client, as its position; and how many attempts it had made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Whose it is.
    pub client: u8,
    /// The number of the attempt.
    pub number: u8,
}

/// A call on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// Acquire the lock.
    Acquire(Holder),
    /// Lengthen its lease.
    Renew(Holder),
    /// Release it, undo an attempt, or leave the queue: one script.
    Release(Holder),
}

/// An answer on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    /// With its token.
    Granted(Holder, u8),
    /// Another holder has it, or another waiter is first.
    Refused(Holder),
    /// Whether it was renewed.
    Renewed(Holder, bool),
    /// It no longer holds the lock.
    Released(Holder),
    /// It holds the lock since the release of another, with this token.
    HandedOver(Holder, u8),
    /// Like `HandedOver`, for a place that it no longer has, because it has asked since.
    HandedOverBefore(Holder, u8),
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Who waits.
    pub holder: Holder,
    /// The rest of its heartbeat.
    pub left: u8,
}

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// The holder of the lock.
    pub holder: Option<Holder>,
    /// The rest of its lease.
    pub left: u8,
    /// The last token of the counter.
    pub token: u8,
    /// The clock that tokens are above: it never goes back.
    pub clock: u8,
    /// The waiters for a fair lock.
    pub queue: Vec<Place>,
}

/// One connection to the server: both directions are first in, first out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// On their way to the server.
    pub requests: Vec<Request>,
    /// On their way back.
    pub replies: Vec<Reply>,
}

/// Which connection of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Attempts, releases, and what undoes an attempt.
    Command,
    /// Renewals.
    Renewal,
    /// Notifications; one way only.
    Push,
}

/// All of them.
pub const LANES: [Lane; 3] = [Lane::Command, Lane::Renewal, Lane::Push];

/// The phase of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It wants nothing.
    Idle,
    /// An attempt has no answer yet.
    Asking {
        /// How long ago it was sent.
        age: u8,
    },
    /// It was refused, and waits.
    Waiting {
        /// How long ago the attempt was sent that was answered last.
        age: u8,
    },
    /// It has a guard.
    Held(Guard),
    /// Its process is gone.
    Dead,
}

/// A guard, by the clock of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The time left until the local deadline.
    pub left: u8,
    /// Its fencing token.
    pub token: u8,
    /// How many hand-offs led to it without the server.
    pub handoffs: u8,
    /// How long its task has worked.
    pub worked: u8,
    /// Its release is under way and it still counts as held: no engine of ours does that.
    pub is_releasing: bool,
}

/// One client and its connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its phase.
    pub phase: Phase,
    /// How many attempts it has begun; the last one has this number.
    pub attempts: u8,
    /// Releases without an answer, by the number of their attempt, and the lane of each.
    pub releasing: Vec<(u8, Lane)>,
    /// How long ago the unanswered renewal was sent, and for which attempt.
    pub renewal: Option<(u8, u8)>,
    /// Lost holds: each may be at the server until its lease ends, as no client renews it.
    pub lost: Vec<u8>,
    /// By lane.
    pub connections: [Connection; 3],
}

/// The whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The one server.
    pub server: Server,
    /// By their position.
    pub clients: Vec<Client>,
    /// Sent on connections that were replaced, and not executed yet. None, if those are killed.
    pub late: Vec<Request>,
    /// How many more attempts may begin.
    pub attempts: u8,
    /// How many more faults may happen.
    pub faults: u8,
    /// The largest token that a valid guard has had.
    pub top_token: u8,
    /// A valid guard was made whose token is not above those before it.
    pub is_token_reused: bool,
    /// A renewal was answered with yes, although the server had forgotten the hold.
    pub is_renewed_in_vain: bool,
    /// A guard was valid again after its deadline.
    pub is_revived: bool,
    /// A waiter was passed over by one that came later.
    pub is_overtaken: bool,
}

impl Client {
    /// As it starts.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Idle,
            attempts: 0,
            releasing: Vec::new(),
            renewal: None,
            lost: Vec::new(),
            connections: Default::default(),
        }
    }

    /// The connection of this lane.
    pub fn lane(&mut self, lane: Lane) -> &mut Connection {
        &mut self.connections[lane as usize]
    }

    /// Whether it has a guard that is valid by its own clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        matches!(self.phase, Phase::Held(guard) if guard.left > 0)
    }

    /// Whether it has nothing, waits for nothing, and has nothing to release.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_silent = |each: &Connection| each.requests.is_empty() && each.replies.is_empty();
        self.phase == Phase::Idle
            && self.releasing.is_empty()
            && self.connections[..2].iter().all(is_silent)
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}
