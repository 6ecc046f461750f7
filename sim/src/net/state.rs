//! The parts of a network: servers, clients, their connections, and events under way.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::event::{Direction, Event, Moments, What};
use super::wire::{Wire, WireId};
use crate::node::{ConnectionId, Node};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

/// The clock of a new server: a day in 2026, in µs.
pub(super) const EPOCH_US: u64 = 1_790_000_000_000_000;

/// One server and its clock.
pub(crate) struct Slot {
    /// Away only while it does a command.
    pub(super) node: Option<Box<Node>>,
    pub(crate) is_up: bool,
    pub(crate) address: String,
    pub(super) wires: BTreeMap<ConnectionId, WireId>,
    /// How much faster than the true time its clock goes, in millionths.
    pub(crate) drift_ppm: i64,
    pub(crate) offset_us: i64,
}

#[derive(Default)]
pub(crate) struct Peer {
    pub(super) is_paused: bool,
    /// Events for when it runs again.
    pub(super) inbox: Vec<Event>,
}

/// A command at a server: its client, the name of its connection, the reply, and the keys after it.
type Trace = Box<dyn FnMut(usize, usize, &[u8], &Words, &Reply, &Store) + Send>;

pub(crate) struct State {
    pub(super) began: Instant,
    pub(crate) slots: Vec<Slot>,
    pub(super) peers: Vec<Peer>,
    pub(super) wires: BTreeMap<WireId, Wire>,
    pub(super) last_wire: WireId,
    pub(super) queue: BinaryHeap<Event>,
    pub(super) last_event: u64,
    /// Events that wait for a partition or a delay to end.
    pub(super) held: Vec<Event>,
    pub(super) partitions: BTreeSet<(usize, usize, Direction)>,
    /// Connections on which everything is late, this way.
    pub(super) late: BTreeSet<(WireId, Direction)>,
    /// Pairs of servers between which nothing passes, and since when.
    pub(super) splits: BTreeMap<[usize; 2], Duration>,
    /// By pair of servers: until when what was sent before is on its way.
    pub(super) between_free_at: BTreeMap<[usize; 2], Duration>,
    /// The delay between servers.
    pub(crate) lag: RangeInclusive<Duration>,
    pub(super) last_wait: u64,
    pub(crate) delay: RangeInclusive<Duration>,
    pub(crate) draw: fastrand::Rng,
    pub(crate) trace: Option<Trace>,
    pub(crate) deliveries: u64,
    pub(crate) moments: Moments,
}

pub(crate) struct Net {
    pub(super) state: Mutex<State>,
    pub(super) changed: Arc<Notify>,
    /// Told when the network has stopped before a delivery.
    pub(super) stopped: Notify,
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Net {
    /// Adds a client: returns its number.
    pub(crate) fn add_peer(&self) -> usize {
        let mut state = self.state.lock();
        state.peers.push(Peer::default());
        state.peers.len() - 1
    }

    /// Looks at it, or changes it, and has the task see what has changed.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let first = state.queue.peek().map(|event| event.at);
        let result = change(&mut state);
        let is_sooner = state.queue.peek().map(|event| event.at) != first;
        drop(state);
        if is_sooner {
            self.changed.notify_one();
        }
        result
    }
}

impl State {
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The server with its clock set.
    pub(crate) fn node(&mut self, server: usize) -> &mut Node {
        let now_us = self.server_us(server);
        let node = self.slots[server]
            .node
            .as_mut()
            .expect("no command is being done");
        node.store.set_clock(now_us);
        node
    }

    /// The URL of one server.
    pub(crate) fn url(&self, server: usize) -> String {
        format!("redis://{}", self.slots[server].address)
    }

    /// The id of a client.
    pub(crate) fn new_uuid(&mut self) -> String {
        let mut digits =
            |count: usize| -> String { (0..count).map(|_| self.draw.digit(16)).collect() };
        let (a, b, c, d, e) = (digits(8), digits(4), digits(3), digits(3), digits(12));
        format!("{a}-{b}-4{c}-a{d}-{e}")
    }

    /// The clock of a server, in µs since 1970.
    pub(crate) fn server_us(&self, server: usize) -> u64 {
        let slot = &self.slots[server];
        let passed = i64::try_from(self.now().as_micros()).unwrap_or(i64::MAX);
        let drifted = passed
            + passed / 1_000_000 * slot.drift_ppm
            + passed % 1_000_000 * slot.drift_ppm / 1_000_000;
        EPOCH_US.saturating_add_signed(drifted + slot.offset_us)
    }

    /// Puts an event on its way, behind what went the same way before.
    pub(super) fn post(&mut self, wire: WireId, direction: Direction, what: What) {
        let (least, most) = (*self.delay.start(), *self.delay.end());
        let spread = u64::try_from((most - least).as_nanos()).unwrap_or(0);
        let delay = least + Duration::from_nanos(self.draw.u64(0..=spread));
        let now = self.now();
        let Some(known) = self.wires.get_mut(&wire) else {
            return;
        };
        let lane = &mut known.free_at[direction.index()];
        if known.is_stalled[direction.index()] {
            return;
        }
        let at = (*lane).max(now + delay);
        *lane = at;
        self.post_at(at, what);
    }

    pub(super) fn post_at(&mut self, at: Duration, what: What) {
        self.last_event += 1;
        self.queue.push(Event {
            at,
            order: self.last_event,
            what,
        });
    }
}
