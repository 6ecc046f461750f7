//! The network between clients and servers: connections, what is on its way on them, and what goes wrong.
//!
//! Everything that is on its way is an event with a time, in one queue. One task takes the events out, each at
//! its time. Invariants: a connection delivers in order, in each direction; what was sent on it before a new
//! one of the same lane was made is executed or dead by then; nothing is called back under the lock.

mod event;
mod faults;
mod lane;
mod pump;
mod wire;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use lockset::simulated::Events;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::event::{Event, What};
use self::lane::LaneState;
use self::wire::Wire;
use crate::node::{ConnectionId, Node};
use crate::reply::Reply;
use crate::words::Words;

pub(crate) use self::event::Direction;
pub(crate) use self::lane::{LaneId, Submission};

/// The number of a connection in its network.
pub(crate) type WireId = u64;

/// What the clock of a new server says: a day in 2026, in µs.
const EPOCH_US: u64 = 1_790_000_000_000_000;

/// One server and its clock.
pub(crate) struct Slot {
    /// Away only while it does a command.
    node: Option<Box<Node>>,
    pub(crate) is_up: bool,
    wires: BTreeMap<ConnectionId, WireId>,
    /// How much faster than the true time its clock goes, in millionths.
    pub(crate) drift_ppm: i64,
    pub(crate) offset_us: i64,
}

pub(crate) struct Peer {
    events: Events,
    /// Told when a connection was made, or could not be.
    dialed: Arc<Notify>,
    is_paused: bool,
    is_gone: bool,
    /// What it is told once it runs again.
    inbox: Vec<Event>,
}

/// What was done at a server, for a history: when, for which client, on which lane.
type Trace = Box<dyn FnMut(Duration, usize, LaneId, &Words, &Reply) + Send>;

pub(crate) struct State {
    began: Instant,
    pub(crate) slots: Vec<Slot>,
    peers: Vec<Peer>,
    lanes: BTreeMap<(usize, LaneId), LaneState>,
    wires: BTreeMap<WireId, Wire>,
    last_wire: WireId,
    last_request: u64,
    queue: BinaryHeap<Event>,
    last_event: u64,
    /// What waits for a partition to end.
    held: Vec<Event>,
    partitions: BTreeSet<(usize, usize, Direction)>,
    pub(crate) delay: std::ops::RangeInclusive<Duration>,
    pub(crate) draw: fastrand::Rng,
    pub(crate) trace: Option<Trace>,
    pub(crate) deliveries: u64,
}

pub(crate) struct Net {
    state: Mutex<State>,
    changed: Arc<Notify>,
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
    /// Servers and nobody who uses them, on the current runtime.
    pub(crate) fn new(servers: usize, seed: u64) -> Arc<Self> {
        let mut draw = fastrand::Rng::with_seed(seed);
        let slots = (0..servers).map(|_| Slot {
            node: Some(Box::new(Node::new(draw.u64(..), EPOCH_US))),
            is_up: true,
            wires: BTreeMap::new(),
            drift_ppm: 0,
            offset_us: 0,
        });
        let slots = slots.collect();
        let state = State {
            began: Instant::now(),
            slots,
            peers: Vec::new(),
            lanes: BTreeMap::new(),
            wires: BTreeMap::new(),
            last_wire: 0,
            last_request: 0,
            queue: BinaryHeap::new(),
            last_event: 0,
            held: Vec::new(),
            partitions: BTreeSet::new(),
            delay: Duration::ZERO..=Duration::ZERO,
            draw,
            trace: None,
            deliveries: 0,
        };
        let net = Arc::new(Self {
            state: Mutex::new(state),
            changed: Arc::default(),
        });
        tokio::spawn(pump::run(Arc::downgrade(&net), Arc::clone(&net.changed)));
        net
    }

    /// Another client: its number, and what is told when an attempt of it to connect has ended.
    pub(crate) fn add_peer(&self, events: Events) -> (usize, Arc<Notify>) {
        let mut state = self.state.lock();
        let dialed = Arc::<Notify>::default();
        state.peers.push(Peer {
            events,
            dialed: Arc::clone(&dialed),
            is_paused: false,
            is_gone: false,
            inbox: Vec::new(),
        });
        (state.peers.len() - 1, dialed)
    }

    /// Has all clients check what they hold.
    pub(crate) fn doubt(&self) {
        let told: Vec<Events> = {
            let state = self.state.lock();
            let alive = state.peers.iter().filter(|peer| !peer.is_gone);
            alive.map(|peer| peer.events.clone()).collect()
        };
        told.iter().for_each(Events::moved);
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

    /// The id of a client.
    pub(crate) fn new_uuid(&mut self) -> String {
        let mut digits =
            |count: usize| -> String { (0..count).map(|_| self.draw.digit(16)).collect() };
        let (a, b, c, d, e) = (digits(8), digits(4), digits(3), digits(3), digits(12));
        format!("{a}-{b}-4{c}-a{d}-{e}")
    }

    /// What the clock of a server says, in µs since 1970.
    pub(crate) fn server_us(&self, server: usize) -> u64 {
        let slot = &self.slots[server];
        let passed = i64::try_from(self.now().as_micros()).unwrap_or(i64::MAX);
        let drifted = passed
            + passed / 1_000_000 * slot.drift_ppm
            + passed % 1_000_000 * slot.drift_ppm / 1_000_000;
        EPOCH_US.saturating_add_signed(drifted + slot.offset_us)
    }

    /// Puts an event on its way, behind what went the same way before.
    fn post(&mut self, wire: WireId, direction: Direction, what: What) {
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

    fn post_at(&mut self, at: Duration, what: What) {
        self.last_event += 1;
        self.queue.push(Event {
            at,
            order: self.last_event,
            what,
        });
    }
}
