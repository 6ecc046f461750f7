//! The task that has everything arrive at its time, and the beginning of a network, which starts it.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockset::simulated::{Events, Lane};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::event::{Direction, Event, Moments, What};
use super::lane::WireId;
use super::resp;
use super::state::{EPOCH_US, Net, Slot, State};
use super::wire::Phase;
use crate::channels::Push;
use crate::node::{ConnectionId, Node};
use crate::reply::Reply;
use crate::words::Words;

/// A call to a client, made once the lock is free.
enum Told {
    Message(Events, Vec<u8>, Vec<u8>),
    Gap(Events),
}

impl Told {
    fn tell(self) {
        match self {
            Self::Message(events, channel, message) => events.message(&channel, &message),
            Self::Gap(events) => events.gap(),
        }
    }
}

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
            lanes: BTreeMap::new(),
            wires: BTreeMap::new(),
            last_wire: 0,
            last_request: 0,
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
            let told = state.arrive(event);
            drop(state);
            if !told.is_empty() {
                // A task also handles each reply, so events at the same time keep their order.
                tokio::spawn(async move { told.into_iter().for_each(Told::tell) });
            }
        }
    }
}

impl State {
    fn arrive(&mut self, event: Event) -> Vec<Told> {
        let Some(wire) = event.what.wire() else {
            self.count(None);
            self.arrive_between(event);
            return Vec::new();
        };
        let Some(known) = self.wires.get(&wire) else {
            return Vec::new();
        };
        let (client, server) = (known.client, known.server);
        if let Some(direction) = event.what.direction() {
            let is_late = self.late.contains(&(wire, direction));
            if is_late || self.partitions.contains(&(client, server, direction)) {
                self.held.push(event);
                return Vec::new();
            }
            let peer = &mut self.peers[client];
            if direction == Direction::ToClient && peer.is_paused {
                peer.inbox.push(event);
                return Vec::new();
            }
        }
        self.count(event.what.direction().map(|_| client));
        match event.what {
            What::Hello(wire) => self.hello(wire),
            What::Welcome(wire) => self.dialed(wire),
            What::NobodyThere(wire) => self.dial_failed(wire, "connection refused"),
            What::DialEnds(wire) => self.dial_failed(wire, "no connection within 1s"),
            What::Request(wire, _, commands) if self.wires[&wire].stream.is_some() => {
                self.serve(wire, commands);
            }
            What::Request(wire, request, commands) => self.request(wire, request, &commands),
            What::Bytes(wire, bytes) => {
                let stream = self.wires.get(&wire).and_then(|wire| wire.stream.as_ref());
                stream
                    .into_iter()
                    .for_each(|stream| stream.inbox.receive(&bytes));
            }
            What::WaitEnds(wire, number) => self.wait_ends(wire, number),
            What::InTime(wire, direction) => self.in_time((wire, direction)),
            What::Between(..) => {}
            What::Replies(wire, request, values) => self.replies(wire, request, values),
            What::Closed(wire) => self.closed(wire),
            What::Reset(wire) => return self.reset(wire).into_iter().collect(),
            What::Message(wire, channel, message) => {
                let is_open = self
                    .wires
                    .get(&wire)
                    .is_some_and(|wire| wire.phase == Phase::Open);
                let events = self.peers[client].events.clone().filter(|_| is_open);
                let told = events.map(|events| Told::Message(events, channel, message));
                return told.into_iter().collect();
            }
        }
        Vec::new()
    }

    fn hello(&mut self, wire: WireId) {
        let Some(made) = self.wires.get(&wire) else {
            return;
        };
        let (client, server, lane) = (made.client, made.server, made.lane_id());
        if made.phase != Phase::Dialing {
            return;
        }
        if !self.slots[server].is_up {
            self.post(wire, Direction::ToClient, What::NobodyThere(wire));
            return;
        }
        if let Some(lane) = lane {
            for earlier in self.take_earlier(client, lane) {
                self.end_at_server(earlier);
            }
            let node = self.node(server);
            for (_, sha, text) in lockset::simulated::scripts() {
                node.load(sha, text);
            }
        }
        let id = self.node(server).connect(client);
        self.slots[server].wires.insert(id, wire);
        self.wires.get_mut(&wire).expect("seen").accepted = Some(id);
        self.post(wire, Direction::ToClient, What::Welcome(wire));
    }

    /// The server ends a connection, and its client may notice.
    pub(super) fn end_at_server(&mut self, wire: WireId) {
        let Some(ended) = self.wires.get_mut(&wire) else {
            return;
        };
        let server = ended.server;
        if let Some(id) = ended.accepted.take() {
            self.slots[server].wires.remove(&id);
            self.node(server).disconnect(id);
            self.post(wire, Direction::ToClient, What::Reset(wire));
        }
    }

    fn request(&mut self, wire: WireId, request: u64, commands: &[Words]) {
        let Some((id, client, server, lane)) = self
            .wires
            .get(&wire)
            .and_then(|wire| Some((wire.accepted?, wire.client, wire.server, wire.lane)))
        else {
            // The connection has ended at the server: nothing of it is executed.
            return;
        };
        let done = commands.iter();
        let replies = done.map(|command| self.execute(client, server, id, lane, command));
        let values = replies.map(Reply::into_value).collect();
        self.deliver_unasked(server);
        self.post(
            wire,
            Direction::ToClient,
            What::Replies(wire, request, values),
        );
    }

    /// Has a server do a command of a connection.
    pub(super) fn execute(
        &mut self,
        client: usize,
        server: usize,
        id: ConnectionId,
        lane: Option<Lane>,
        command: &Words,
    ) -> Reply {
        let now_us = self.server_us(server);
        let lacks_replicas = self.lacks_replicas(server);
        let slot = &mut self.slots[server];
        let mut node = slot.node.take().expect("one command at a time");
        node.lacks_replicas = lacks_replicas;
        node.store.set_clock(now_us);
        let (mut node, reply) = node.execute(id, command);
        let is_short = matches!(&reply, Reply::Error(why) if why.contains("NOREPLICAS"));
        node.shortages += u64::from(is_short);
        if let Some(trace) = &mut self.trace {
            trace(client, server, lane, command, &reply, &node.store);
        }
        self.slots[server].node = Some(node);
        reply
    }

    /// Sends a message of a server on its way.
    pub(super) fn push(&mut self, server: usize, push: Push) {
        let Some(&to) = self.slots[server].wires.get(&push.to) else {
            return;
        };
        let is_stream = self
            .wires
            .get(&to)
            .is_some_and(|wire| wire.stream.is_some());
        let what = if is_stream {
            let mut bytes = Vec::new();
            let is_newer = self.node(server).is_newer(push.to);
            resp::write(&push.reply(), is_newer, &mut bytes);
            What::Bytes(to, bytes)
        } else {
            let Reply::Bulk(message) = push.message else {
                return;
            };
            What::Message(to, push.channel, message)
        };
        self.post(to, Direction::ToClient, what);
    }

    fn replies(&mut self, wire: WireId, request: u64, values: Vec<redis::Value>) {
        let Some(known) = self.wires.get_mut(&wire) else {
            return;
        };
        if known.phase == Phase::Dead {
            return;
        }
        known.last_reply = Some(Instant::now());
        if let Some(answer) = known.pending.remove(&request) {
            // The caller may have stopped waiting.
            let _ = answer.send(Ok(values));
        }
        if known.phase == Phase::Leaving && known.pending.is_empty() {
            self.post(wire, Direction::ToServer, What::Closed(wire));
        }
    }

    /// The client has closed it: it is over.
    fn closed(&mut self, wire: WireId) {
        let Some(mut known) = self.wires.remove(&wire) else {
            return;
        };
        known.end("the connection was closed");
        if let Some(id) = known.accepted {
            let server = known.server;
            self.slots[server].wires.remove(&id);
            self.node(server).disconnect(id);
        }
    }

    /// The server has closed it.
    fn reset(&mut self, wire: WireId) -> Option<Told> {
        self.dial_failed(wire, "the connection was reset");
        let told = self.leave(wire);
        let mut known = self.wires.remove(&wire)?;
        known.end("the connection was reset");
        told.map(Told::Gap)
    }

    /// When everything on its way to a client that was paused arrives.
    pub(super) fn resume(&mut self, client: usize) {
        self.peers[client].is_paused = false;
        // In their old places: before what was sent behind them, though that may be due by now too.
        let inbox = std::mem::take(&mut self.peers[client].inbox);
        self.queue.extend(inbox);
    }
}
