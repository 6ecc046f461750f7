//! Events under way, their times of arrival, and the deliveries as moments.

use std::cmp::Ordering;
use std::time::Duration;

use super::wire::WireId;
use crate::replication::Between;
use crate::words::Words;

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

impl Direction {
    pub(super) fn index(self) -> usize {
        match self {
            Self::ToServer => 0,
            Self::ToClient => 1,
        }
    }
}

#[derive(Debug)]
pub(super) enum What {
    /// A client introduces a new connection.
    Hello(WireId),
    /// The server accepts it.
    Welcome(WireId),
    /// The server's address does not answer.
    NobodyThere(WireId),
    /// Commands of a client, as far as they are complete.
    Commands(WireId, Vec<Words>),
    /// Replies and messages of a server.
    Bytes(WireId, Vec<u8>),
    /// A `WAIT` with this number has had its time.
    WaitEnds(WireId, u64),
    /// The late bytes of a connection, this way, are late no longer.
    InTime(WireId, Direction),
    /// From one server to another.
    Between(usize, usize, Between),
    /// The client has closed the connection.
    Closed(WireId),
    /// The server has.
    Reset(WireId),
}

impl What {
    /// The connection that it is about; `None`: it is between servers.
    pub(super) fn wire(&self) -> Option<WireId> {
        Some(match self {
            Self::Hello(wire)
            | Self::Welcome(wire)
            | Self::NobodyThere(wire)
            | Self::Commands(wire, _)
            | Self::Bytes(wire, _)
            | Self::WaitEnds(wire, _)
            | Self::InTime(wire, _)
            | Self::Closed(wire)
            | Self::Reset(wire) => *wire,
            Self::Between(..) => return None,
        })
    }

    /// `None` if it goes nowhere, or not between a client and a server.
    pub(super) fn direction(&self) -> Option<Direction> {
        match self {
            Self::Hello(_) | Self::Commands(..) | Self::Closed(_) => Some(Direction::ToServer),
            Self::Welcome(_) | Self::NobodyThere(_) | Self::Bytes(..) | Self::Reset(_) => {
                Some(Direction::ToClient)
            }
            Self::WaitEnds(..) | Self::InTime(..) | Self::Between(..) => None,
        }
    }
}

/// The queue gives the greatest first, so the earliest is the greatest.
#[derive(Debug)]
pub(super) struct Event {
    /// Since the network began.
    pub(super) at: Duration,
    /// Of those at one time, the one that was posted first comes first.
    pub(super) order: u64,
    pub(super) what: What,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// One delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) number: u64,
    /// The client at one end; `None` for what passes between servers, and for timers.
    pub(crate) client: Option<usize>,
}

/// What is noted of deliveries, and where they stop.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    /// `None` unless they are wanted: a program may use a simulated server for days.
    pub(crate) noted: Option<Vec<Moment>>,
    /// The delivery before which the network stops.
    pub(super) stop: Option<u64>,
    pub(super) has_stopped: bool,
}
