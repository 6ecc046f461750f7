//! How a lane gets a connection, and another one after that.
//!
//! As the library's own links do it: one attempt at a time to make a connection, for whose result all wait; a
//! pause after one that failed; a connection that is silent for the limit of a request is replaced, and the
//! new one has the server end the old one before it is used.

use std::sync::Arc;
use std::time::Duration;

use lockset::simulated::{Failure, Lane};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::event::{Direction, What};
use super::lane::{LaneId, LaneState, Submission, WireId};
use super::served::ServedStream;
use super::state::{Net, State};
use super::wire::{Phase, Wire};
use crate::words::Words;

/// One step of making a connection may take this long.
const DIAL_MAX: Duration = Duration::from_secs(1);

/// After an attempt that failed.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(400);

impl Net {
    /// Sends commands, if there is a connection; makes one if not. `waited`: the attempt that the caller has waited
    /// for.
    pub(crate) fn submit(
        &self,
        client: usize,
        lane: LaneId,
        commands: &mut Vec<Words>,
        waited: Option<u64>,
    ) -> Submission {
        self.with(|state| state.submit(client, lane, commands, waited))
    }

    /// A request had no reply within `limit`: the connection is dropped, unless other requests had replies.
    pub(crate) fn silent(&self, wire: WireId, limit: Duration) {
        let told = self.with(|state| {
            let seen = state.wires.get(&wire)?.last_reply;
            let is_silent = seen.is_none_or(|seen| seen.elapsed() >= limit);
            is_silent.then(|| state.leave(wire)).flatten()
        });
        if let Some(events) = told {
            events.gap();
        }
    }

    pub(crate) fn last_reply(&self, client: usize, lane: LaneId) -> Option<Instant> {
        self.with(|state| {
            let current = state.lanes.get(&(client, lane))?.current?;
            state.wires.get(&current)?.last_reply
        })
    }

    pub(crate) fn run_of(&self, client: usize, lane: LaneId) -> Option<(Arc<str>, Instant)> {
        self.with(|state| state.lanes.get(&(client, lane))?.run.clone())
    }
}

impl State {
    fn submit(
        &mut self,
        client: usize,
        lane: LaneId,
        commands: &mut Vec<Words>,
        waited: Option<u64>,
    ) -> Submission {
        if self.peers[client].is_gone {
            let gone = "the process is gone".to_owned();
            return Submission::Failed(Failure::Unsent(gone));
        }
        let known = self.lanes.entry((client, lane)).or_default();
        if let Some(wire) = known.current {
            let (answer, receiver) = oneshot::channel();
            self.last_request += 1;
            let request = self.last_request;
            let known = self.wires.get_mut(&wire).expect("the current connection");
            known.pending.insert(request, answer);
            let commands = std::mem::take(commands);
            self.post(
                wire,
                Direction::ToServer,
                What::Request(wire, request, commands),
            );
            return Submission::Sent(wire, receiver);
        }
        if waited.is_some_and(|waited| known.attempts >= waited) {
            let failure = known.failure.clone();
            let gone = || Failure::Unsent("the new connection was closed at once".to_owned());
            return Submission::Failed(failure.unwrap_or_else(gone));
        }
        let attempt = waited.unwrap_or(known.attempts + 1);
        if known.dialing.is_none() {
            self.dial(client, lane);
        }
        Submission::Wait(attempt)
    }

    fn dial(&mut self, client: usize, lane: LaneId) {
        self.last_wire += 1;
        let wire = self.last_wire;
        let mut made = Wire::of_lane(client, lane);
        let now = self.now();
        let known = self.lanes.entry((client, lane)).or_default();
        known.dialing = Some(wire);
        let begins = known.next_dial.max(now);
        made.free_at[Direction::ToServer.index()] = begins;
        self.wires.insert(wire, made);
        self.post(wire, Direction::ToServer, What::Hello(wire));
        self.post_at(begins + DIAL_MAX, What::DialEnds(wire));
    }

    /// The client has an answer of the server: it now uses the connection.
    pub(super) fn dialed(&mut self, wire: WireId) {
        let Some(made) = self.wires.get_mut(&wire) else {
            return;
        };
        if made.phase != Phase::Dialing {
            return;
        }
        made.phase = Phase::Open;
        made.last_reply = Some(Instant::now());
        let client = made.client;
        let Some(lane) = made.lane_id() else {
            made.stream.iter().for_each(ServedStream::opened);
            return;
        };
        let server = lane.server;
        let node = self.node(server);
        let up = Duration::from_micros(node.up_us());
        let run_id = Arc::clone(&node.run_id);
        let since = Instant::now().checked_sub(up).unwrap_or_else(Instant::now);
        let known = self.lanes.entry((client, lane)).or_default();
        known.run = match known.run.take() {
            Some(before) if before.0 == run_id => Some(before),
            // It may have been up elsewhere all the time.
            Some(_) => Some((run_id, Instant::now())),
            None => Some((run_id, since)),
        };
        *known = LaneState {
            current: Some(wire),
            attempts: known.attempts + 1,
            run: known.run.take(),
            ..LaneState::default()
        };
        self.peers[client].dialed.notify_waiters();
    }

    pub(super) fn dial_failed(&mut self, wire: WireId, why: &str) {
        let Some(made) = self.wires.get_mut(&wire) else {
            return;
        };
        if made.phase != Phase::Dialing {
            return;
        }
        made.phase = Phase::Dead;
        let client = made.client;
        let Some(lane) = made.lane_id() else {
            made.end(why);
            return;
        };
        let now = self.now();
        let share = 0.75 + self.draw.f64() / 2.0;
        let known = self.lanes.entry((client, lane)).or_default();
        let pause = PAUSE_MAX.min(PAUSE_FIRST * (1 << known.failures.min(8)));
        known.failures += 1;
        known.attempts += 1;
        known.dialing = None;
        known.next_dial = now + pause.mul_f64(share);
        known.failure = Some(Failure::Unsent(why.to_owned()));
        if self.slots[lane.server].is_up {
            // The server may still have accepted it.
            known.earlier.push(wire);
        }
        self.peers[client].dialed.notify_waiters();
    }

    /// Takes the connections that the server must end for a new one of this lane.
    pub(super) fn take_earlier(&mut self, client: usize, lane: LaneId) -> Vec<WireId> {
        let known = self.lanes.get_mut(&(client, lane));
        known
            .map(|known| std::mem::take(&mut known.earlier))
            .unwrap_or_default()
    }

    /// Stops using a connection; the next request makes another. Returns the receiver of the news that messages may be
    /// missed.
    pub(super) fn leave(&mut self, wire: WireId) -> Option<lockset::simulated::Events> {
        let left = self.wires.get_mut(&wire)?;
        if left.phase == Phase::Open {
            left.phase = Phase::Leaving;
        }
        let (client, is_idle) = (left.client, left.pending.is_empty());
        let lane = left.lane_id()?;
        let known = self.lanes.get_mut(&(client, lane))?;
        let was_current = known.current.take_if(|current| *current == wire).is_some();
        if was_current {
            known.earlier.push(wire);
        }
        if is_idle {
            self.post(wire, Direction::ToServer, What::Closed(wire));
        }
        let is_told = was_current && lane.lane == Lane::Push;
        self.peers[client].events.clone().filter(|_| is_told)
    }
}
