//! The task that has everything arrive at its time, and the beginning of a network, which starts it.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::event::{Direction, Event, Moments, What};
use super::state::{EPOCH_US, Net, Slot, State};
use crate::node::Node;

async fn run(net: Weak<Net>, changed: Arc<Notify>) {
    loop {
        let Some(alive) = net.upgrade() else { return };
        let next = alive.deliver();
        drop(alive);
        let wait = changed.notified();
        match next {
            None => wait.await,
            Some(at) => {
                tokio::select! {
                    biased;
                    () = wait => {}
                    () = tokio::time::sleep_until(at) => {}
                }
            }
        }
    }
}

impl Net {
    /// Servers without clients, on the current runtime.
    pub(crate) fn new(servers: usize, seed: u64) -> Arc<Self> {
        let mut draw = fastrand::Rng::with_seed(seed);
        let slots = (0..servers).map(|server| Slot {
            node: Some(Box::new(Node::new(draw.u64(..), EPOCH_US))),
            is_up: true,
            address: format!("simulated-{server}:6379"),
            wires: BTreeMap::new(),
            drift_ppm: 0,
            offset_us: 0,
        });
        let slots = slots.collect();
        let state = State {
            began: Instant::now(),
            slots,
            peers: Vec::new(),
            wires: BTreeMap::new(),
            last_wire: 0,
            queue: BinaryHeap::new(),
            last_event: 0,
            held: Vec::new(),
            partitions: BTreeSet::new(),
            late: BTreeSet::new(),
            splits: BTreeMap::new(),
            between_free_at: BTreeMap::new(),
            lag: Duration::ZERO..=Duration::ZERO,
            last_wait: 0,
            delay: Duration::ZERO..=Duration::ZERO,
            draw,
            trace: None,
            deliveries: 0,
            moments: Moments::default(),
        };
        let net = Arc::new(Self {
            state: Mutex::new(state),
            changed: Arc::default(),
            stopped: Notify::new(),
        });
        tokio::spawn(run(Arc::downgrade(&net), Arc::clone(&net.changed)));
        net
    }

    /// Like `new`, for a test: the servers of each such network have addresses of their own, so several networks can
    /// make a `Redlock`.
    pub(crate) fn of_a_test(servers: usize) -> Arc<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let net = Self::new(servers, fastrand::u64(..));
        net.with(|state| {
            for (server, slot) in state.slots.iter_mut().enumerate() {
                slot.address = format!("simulated-{number}-{server}:6379");
            }
        });
        net
    }

    /// Has everything arrive that is due; when the next is.
    pub(super) fn deliver(&self) -> Option<Instant> {
        loop {
            let mut state = self.state.lock();
            let now = state.now();
            let event = match state.queue.peek() {
                None => return None,
                Some(event) if event.at > now => {
                    // Timers have a grain of a ms, and what is due within it has the order of its times.
                    return Some(state.began + event.at);
                }
                Some(_) => {
                    if let Some(is_new) = state.stops_before_next() {
                        drop(state);
                        if is_new {
                            self.stopped.notify_one();
                        }
                        return None;
                    }
                    state.queue.pop().expect("seen")
                }
            };
            state.arrive(event);
        }
    }
}

impl State {
    fn arrive(&mut self, event: Event) {
        let Some(wire) = event.what.wire() else {
            self.count(None);
            self.arrive_between(event);
            return;
        };
        let Some(known) = self.wires.get(&wire) else {
            return;
        };
        let (client, server) = (known.client, known.server);
        if let Some(direction) = event.what.direction() {
            let is_late = self.late.contains(&(wire, direction));
            if is_late || self.partitions.contains(&(client, server, direction)) {
                self.held.push(event);
                return;
            }
            let peer = &mut self.peers[client];
            if direction == Direction::ToClient && peer.is_paused {
                peer.inbox.push(event);
                return;
            }
        }
        self.count(event.what.direction().map(|_| client));
        match event.what {
            What::Hello(wire) => self.hello(wire),
            What::Welcome(wire) => self.welcome(wire),
            What::NobodyThere(wire) => self.refused(wire),
            What::Commands(wire, commands) => self.serve(wire, commands),
            What::Bytes(wire, bytes) => {
                if let Some(known) = self.wires.get(&wire) {
                    known.inbox.receive(&bytes);
                }
            }
            What::WaitEnds(wire, number) => self.wait_ends(wire, number),
            What::InTime(wire, direction) => self.in_time((wire, direction)),
            What::Between(..) => {}
            What::Closed(wire) => self.closed(wire),
            What::Reset(wire) => self.reset(wire),
        }
    }

    /// When everything on its way to a client that was paused arrives.
    pub(super) fn resume(&mut self, client: usize) {
        self.peers[client].is_paused = false;
        // In their old places: before what was sent behind them, though that may be due by now too.
        let inbox = std::mem::take(&mut self.peers[client].inbox);
        self.queue.extend(inbox);
    }
}
