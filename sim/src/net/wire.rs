//! One connection, as both of its ends see it.

use std::collections::BTreeMap;
use std::time::Duration;

use lockset::simulated::{Failure, Lane};
use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lane::LaneId;
use super::served::ServedStream;
use crate::node::ConnectionId;

pub(super) type Answer = oneshot::Sender<Result<Vec<Value>, Failure>>;

/// Its client's view of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being made.
    Dialing,
    Open,
    /// It is not used for anything new, and ends with what is in flight on it.
    Leaving,
    Dead,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) client: usize,
    pub(super) server: usize,
    /// Its client's use of it; `None` for a stream, whose use only client and server know.
    pub(super) lane: Option<Lane>,
    pub(super) stream: Option<ServedStream>,
    pub(super) phase: Phase,
    /// Its number at the server, once that has accepted it.
    pub(super) accepted: Option<ConnectionId>,
    /// Requests in flight.
    pub(super) pending: BTreeMap<u64, Answer>,
    /// By direction: until when what was sent before is on its way.
    pub(super) free_at: [Duration; 2],
    /// By direction: nothing that is sent from now on arrives.
    pub(super) is_stalled: [bool; 2],
    /// When the server replied last.
    pub(super) last_reply: Option<Instant>,
}

impl Wire {
    fn new(client: usize, server: usize) -> Self {
        Self {
            client,
            server,
            lane: None,
            stream: None,
            phase: Phase::Dialing,
            accepted: None,
            pending: BTreeMap::new(),
            free_at: [Duration::ZERO; 2],
            is_stalled: [false; 2],
            last_reply: None,
        }
    }

    /// One of a lane, which sends requests and gets replies.
    pub(super) fn of_lane(client: usize, LaneId { server, lane }: LaneId) -> Self {
        Self {
            lane: Some(lane),
            ..Self::new(client, server)
        }
    }

    /// One that carries bytes.
    pub(super) fn of_stream(client: usize, server: usize, stream: ServedStream) -> Self {
        Self {
            stream: Some(stream),
            ..Self::new(client, server)
        }
    }

    pub(super) fn lane_id(&self) -> Option<LaneId> {
        let (server, lane) = (self.server, self.lane?);
        Some(LaneId { server, lane })
    }

    /// Ends it: pending requests get no reply.
    pub(super) fn end(&mut self, why: &str) {
        self.phase = Phase::Dead;
        if let Some(stream) = self.stream.take() {
            stream.inbox.end();
        }
        for (_, answer) in std::mem::take(&mut self.pending) {
            // The caller may have stopped waiting.
            let _ = answer.send(Err(Failure::Unknown(why.to_owned())));
        }
    }
}
