//! Traffic between servers, and changes of the primary.

use std::time::Duration;

use super::event::{Event, What};
use super::state::{Net, State};
use crate::cluster::SlotView;
use crate::replication::{Between, ServerId};
use crate::rights::{Right, User};

impl Net {
    /// Takes a right from a user at all servers.
    pub(crate) fn deny(&self, user: User, right: Right) {
        self.with(|state| {
            for server in 0..state.slots.len() {
                state.node(server).deny(user, right);
                state.deliver_unasked(server);
            }
        });
    }

    pub(crate) fn allow(&self, user: User, right: Right) {
        self.with(|state| {
            (0..state.slots.len()).for_each(|server| state.node(server).allow(user, right));
        });
    }

    /// Everything passes between servers again; what was held back does so now.
    pub(crate) fn heal_servers(&self) {
        self.with(|state| {
            state.splits.clear();
            let held = std::mem::take(&mut state.held);
            let (between, rest) = held
                .into_iter()
                .partition(|event| event.what.wire().is_none());
            state.held = rest;
            let between: Vec<Event> = between;
            state.queue.extend(between);
        });
    }

    /// Stops all traffic between two servers, until all is healed; then all of it arrives.
    pub(crate) fn split(&self, one: ServerId, other: ServerId) {
        self.with(|state| {
            let now = state.now();
            state.splits.entry(pair(one, other)).or_insert(now);
        });
    }

    /// This server follows that one from now on, or is a primary.
    pub(crate) fn follow(&self, server: ServerId, primary: Option<ServerId>) {
        self.with(|state| {
            state.node(server).follow(primary);
            state.deliver_unasked(server);
        });
    }

    /// A node of a cluster believes this from now on.
    pub(crate) fn adopt(&self, server: ServerId, view: SlotView) {
        self.with(|state| {
            state.node(server).adopt(view);
            state.deliver_unasked(server);
        });
    }

    /// A sentinel learns where the primary is, and publishes it.
    pub(crate) fn learn(&self, sentinel: ServerId, primary: ServerId, epoch: u64) {
        self.with(|state| {
            let address = state.slots[primary].address.clone();
            let node = state.node(sentinel);
            let Some(watch) = &mut node.watch else { return };
            let (channel, what) = watch.learn(&address, epoch);
            node.announce(channel, &what);
            state.deliver_unasked(sentinel);
        });
    }
}

fn pair(one: ServerId, other: ServerId) -> [ServerId; 2] {
    [one.min(other), one.max(other)]
}

/// A replica that has said nothing for longer is not well connected: the smallest `min-replicas-max-lag`.
const LAG_MAX: Duration = Duration::from_secs(1);

impl State {
    /// Whether fewer replicas are well connected to a server than it is to have.
    pub(super) fn lacks_replicas(&mut self, server: ServerId) -> bool {
        let wanted = self.node(server).min_replicas;
        if wanted == 0 {
            return false;
        }
        let now = self.now();
        let replicas = self.node(server).replication.replicas();
        let is_well = |replica: &ServerId| {
            let split = self.splits.get(&pair(server, *replica));
            self.slots[*replica].is_up && split.is_none_or(|since| now <= *since + LAG_MAX)
        };
        replicas.iter().filter(|replica| is_well(replica)).count() < wanted
    }

    /// Sends what a server has for its listeners and for other servers, and ends the connections that it was told to
    /// end.
    pub(super) fn deliver_unasked(&mut self, server: ServerId) {
        let node = self.node(server);
        let pushes = node.channels.take_outbox();
        let for_servers = std::mem::take(&mut node.for_servers);
        let killed = std::mem::take(&mut node.killed);
        for push in pushes {
            self.push(server, &push);
        }
        for (to, what) in for_servers {
            self.post_between(server, to, what);
        }
        for id in killed {
            if let Some(wire) = self.slots[server].wires.get(&id).copied() {
                self.end_at_server(wire);
            }
        }
    }

    fn post_between(&mut self, from: ServerId, to: ServerId, what: Between) {
        let (least, most) = (*self.lag.start(), *self.lag.end());
        let spread = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX);
        let lag = least + Duration::from_nanos(self.draw.u64(0..=spread));
        let now = self.now();
        let free_at = self.between_free_at.entry([from, to]).or_default();
        *free_at = (*free_at).max(now + lag);
        let at = *free_at;
        self.post_at(at, What::Between(from, to, what));
    }

    /// Something arrives at a server that another one has sent; held back if they are apart.
    pub(super) fn arrive_between(&mut self, event: Event) {
        let What::Between(from, to, what) = event.what else {
            return;
        };
        if self.splits.contains_key(&pair(from, to)) {
            self.held.push(Event {
                what: What::Between(from, to, what),
                ..event
            });
            return;
        }
        if !self.slots[to].is_up {
            return;
        }
        let is_confirmation = matches!(what, Between::Confirm(..));
        self.node(to).receive(from, what);
        self.deliver_unasked(to);
        if is_confirmation {
            self.confirmed(to);
        }
    }

    /// A server is back: it and its replicas connect to each other again.
    pub(super) fn reconnect(&mut self, server: ServerId) {
        for one in 0..self.slots.len() {
            let primary = self.node(one).replication.primary();
            if primary == Some(server) || one == server && primary.is_some() {
                self.node(one).follow(primary);
                self.deliver_unasked(one);
            }
        }
    }
}

impl Net {
    /// Moves this many keys of a slot from one server to another, as by `MIGRATE`.
    pub(crate) fn migrate(&self, slot: u16, [from, to]: [ServerId; 2], most: usize) {
        self.with(|state| {
            let moved = state.node(from).give_up(slot, most);
            state.node(to).take_over(moved);
            state.deliver_unasked(from);
            state.deliver_unasked(to);
        });
    }
}
