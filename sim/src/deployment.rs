//! Servers that belong together: a primary with replicas behind sentinels, or the nodes of a cluster, and how one takes
//! over from another.
//!
//! Who is the primary is decided here, at once and for all; who has learnt of it, each server by itself. Invariant:
//! there is one true primary for each shard at any moment, however many servers believe to be one.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cluster::{Membership, SlotView};
use crate::net::Net;
use crate::replication::ServerId;
use crate::sentinel::{NAME, Watch};
use crate::slots::{SLOTS, slot_of};
use crate::store::Data;

/// How servers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Not at all.
    Apart(usize),
    /// A primary that stays it, with replicas.
    Primary {
        replicas: usize,
    },
    Sentinel {
        replicas: usize,
        sentinels: usize,
    },
    /// Each shard is a primary with one replica.
    Cluster {
        shards: usize,
    },
}

impl Layout {
    pub(crate) fn servers(self) -> usize {
        match self {
            Self::Apart(servers) => servers,
            Self::Primary { replicas } => 1 + replicas,
            Self::Sentinel {
                replicas,
                sentinels,
            } => 1 + replicas + sentinels,
            Self::Cluster { shards } => 2 * shards,
        }
    }

    /// How many clients a process has: one for each server, or one for all.
    pub(crate) fn clients(self) -> usize {
        match self {
            Self::Apart(servers) => servers,
            _ => 1,
        }
    }

    /// The servers with keys: the first ones.
    pub(crate) fn data_servers(self) -> usize {
        match self {
            Self::Sentinel { replicas, .. } => 1 + replicas,
            _ => self.servers(),
        }
    }

    pub(crate) fn shards(self) -> usize {
        match self {
            Self::Cluster { shards } => shards,
            _ => 1,
        }
    }
}

/// The true state, known or not.
#[derive(Debug)]
struct Truth {
    /// By shard.
    primaries: Vec<ServerId>,
    epoch: u64,
    /// By slot, the shard; of a cluster.
    shards: Vec<usize>,
    /// A slot that moves, from one shard to another.
    moving: Option<(u16, usize, usize)>,
    /// A move could not end, because one of its nodes was down.
    was_stuck: bool,
    /// Servers that grant, though another one has taken over.
    deposed: BTreeSet<ServerId>,
}

#[derive(Debug)]
pub(crate) struct Deployment {
    pub(crate) net: Arc<Net>,
    pub(crate) layout: Layout,
    truth: Mutex<Truth>,
}

impl Deployment {
    /// On a network with as many servers as the layout has.
    pub(crate) fn new(net: &Arc<Net>, layout: Layout) -> Self {
        let shards = layout.shards();
        let of_slot = |slot| usize::from(slot) * shards / usize::from(SLOTS);
        let deployment = Self {
            net: Arc::clone(net),
            layout,
            truth: Mutex::new(Truth {
                primaries: (0..shards).collect(),
                epoch: 1,
                shards: (0..SLOTS).map(of_slot).collect(),
                moving: None,
                was_stuck: false,
                deposed: BTreeSet::new(),
            }),
        };
        deployment.begin();
        deployment
    }

    fn begin(&self) {
        let all = 0..self.layout.servers();
        let addresses: Vec<String> = self.net.with(|state| {
            let addresses = state.slots.iter().map(|slot| slot.address.clone());
            addresses.collect()
        });
        for server in 0..self.layout.data_servers() {
            self.net.with(|state| state.node(server).store.track());
        }
        match self.layout {
            Layout::Apart(_) | Layout::Primary { .. } => {}
            Layout::Sentinel { .. } => {
                let sentinels = self.layout.data_servers()..all.end;
                for sentinel in sentinels.clone() {
                    let others = sentinels.clone().filter(|other| *other != sentinel);
                    let id = |server: ServerId| format!("{server:040x}");
                    let watch = Watch {
                        primary: addresses[0].clone(),
                        epoch: 0,
                        id: id(sentinel),
                        others: others
                            .map(|other| (addresses[other].clone(), id(other)))
                            .collect(),
                    };
                    self.net
                        .with(|state| state.node(sentinel).watch = Some(watch));
                }
            }
            Layout::Cluster { .. } => {
                let view = self.view();
                for server in all {
                    let member = Membership::new(server, view.clone(), addresses.clone());
                    self.net
                        .with(|state| state.node(server).membership = Some(member));
                }
            }
        }
        self.settle();
    }

    /// Where the clients of a process find the servers: one client for each server, or one for all.
    pub(crate) fn urls(&self) -> Vec<String> {
        let address = |server: ServerId| self.net.with(|state| state.slots[server].address.clone());
        let addresses =
            |servers: std::ops::Range<usize>| servers.map(address).collect::<Vec<_>>().join(",");
        let all = self.layout.servers();
        match self.layout {
            Layout::Sentinel { .. } => {
                let sentinels = addresses(self.layout.data_servers()..all);
                vec![format!("redis+sentinel://{sentinels}/{NAME}")]
            }
            Layout::Cluster { .. } => vec![format!("redis+cluster://{}", addresses(0..all))],
            Layout::Apart(_) | Layout::Primary { .. } => {
                let servers = 0..self.layout.clients();
                let urls = servers.map(|server| self.net.with(|state| state.url(server)));
                urls.collect()
            }
        }
    }

    /// The shard that has the lock of this name.
    pub(crate) fn shard_of(&self, name: &str) -> usize {
        self.truth.lock().shards[usize::from(slot_of(name.as_bytes()))]
    }

    pub(crate) fn primary(&self, shard: usize) -> ServerId {
        self.truth.lock().primaries[shard]
    }

    /// The shard of a server that has keys.
    fn shard_of_server(&self, server: ServerId) -> usize {
        server % self.layout.shards()
    }

    fn is_up(&self, server: ServerId) -> bool {
        self.net.with(|state| state.slots[server].is_up)
    }

    fn followed_by(&self, server: ServerId) -> Option<ServerId> {
        let node = |state: &mut crate::net::State| state.node(server).replication.primary();
        self.net.with(node)
    }

    /// Whether this server still grants, though another one has taken over.
    pub(crate) fn is_deposed(&self, server: ServerId) -> bool {
        self.truth.lock().deposed.contains(&server)
    }

    /// Whether this server has the lock of this name.
    pub(crate) fn is_at(&self, name: &str, server: ServerId) -> bool {
        self.primary(self.shard_of(name)) == server
    }

    /// Whether a holder is known at the true primary, or where its slot goes.
    pub(crate) fn has_holder(&self, name: &str, holder: &str) -> bool {
        let mut servers = vec![self.primary(self.shard_of(name))];
        if let Some((_, _, to)) = self.truth.lock().moving {
            servers.push(to);
        }
        if let Some(to) = servers.get_mut(1) {
            *to = self.primary(*to);
        }
        let is_known = |server: &ServerId| self.is_at_server(name, holder, *server);
        servers.iter().any(is_known)
    }

    /// Whether a holder is known at this server.
    pub(crate) fn is_at_server(&self, name: &str, holder: &str, server: ServerId) -> bool {
        let is_its = |field: &[u8]| field.starts_with(holder.as_bytes());
        self.net.with(
            |state| match state.node(server).store.get(name.as_bytes()) {
                Some(Data::Hash(fields)) => fields.iter().any(|(field, _)| is_its(field)),
                _ => false,
            },
        )
    }

    /// Whether two servers have the same of a lock, and for as long.
    pub(crate) fn agree(&self, name: &str, servers: [ServerId; 2]) -> bool {
        let of = |server: ServerId| {
            self.net.with(|state| {
                let keys = &state.node(server).store;
                let data = keys.get(name.as_bytes()).cloned();
                let end = data.as_ref().and(keys.ends_at(name.as_bytes()));
                (data, end)
            })
        };
        of(servers[0]) == of(servers[1])
    }

    /// The next replica of a shard takes over, if one is there. The old primary and who takes over.
    pub(crate) fn promote(&self, shard: usize) -> Option<(ServerId, ServerId)> {
        let old = self.primary(shard);
        let servers = self.layout.data_servers();
        let is_replica = |server: &ServerId| {
            self.shard_of_server(*server) == shard
                && self.is_up(*server)
                && self.followed_by(*server) == Some(old)
        };
        let next = (1..servers)
            .map(|step| (old + step) % servers)
            .find(is_replica)?;
        {
            let mut truth = self.truth.lock();
            if truth
                .moving
                .is_some_and(|(_, from, to)| [from, to].contains(&shard))
            {
                return None;
            }
            truth.primaries[shard] = next;
            truth.epoch += 1;
            truth.deposed.remove(&next);
            truth.deposed.insert(old);
        }
        self.net.follow(next, None);
        self.learn(next);
        Some((old, next))
    }

    /// A sentinel, or a node, learns what is true.
    pub(crate) fn learn(&self, server: ServerId) {
        if !self.is_up(server) {
            return;
        }
        match self.layout {
            Layout::Apart(_) | Layout::Primary { .. } => {}
            Layout::Sentinel { .. } if server < self.layout.data_servers() => {}
            Layout::Sentinel { .. } => {
                let epoch = self.truth.lock().epoch;
                let known = |state: &mut crate::net::State| {
                    let watch = state.node(server).watch.as_ref();
                    watch.is_some_and(|watch| watch.epoch == epoch)
                };
                if !self.net.with(known) {
                    self.net.learn(server, self.primary(0), epoch);
                }
            }
            Layout::Cluster { .. } => {
                self.net.adopt(server, self.view());
                self.settle_one(server);
            }
        }
    }

    /// A sentinel names a replica, as after a new set-up or an absence.
    pub(crate) fn mislead(&self, sentinel: ServerId) {
        let wrong = (self.primary(0) + 1) % self.layout.data_servers();
        self.net.learn(sentinel, wrong, 0);
    }

    /// Every deposed primary follows the current one.
    pub(crate) fn settle(&self) {
        if matches!(self.layout, Layout::Apart(_)) {
            return;
        }
        (0..self.layout.data_servers()).for_each(|server| self.settle_one(server));
    }

    fn settle_one(&self, server: ServerId) {
        let primary = self.primary(self.shard_of_server(server));
        let wanted = (server != primary).then_some(primary);
        if self.is_up(server) && self.followed_by(server) != wanted {
            self.net.follow(server, wanted);
            self.truth.lock().deposed.remove(&server);
        }
    }

    fn view(&self) -> SlotView {
        let truth = self.truth.lock();
        let shards = truth.primaries.len();
        let replicas = (0..self.layout.data_servers()).filter_map(|server| {
            let primary = truth.primaries[server % shards];
            (server != primary).then_some((server, primary))
        });
        SlotView {
            owners: truth
                .shards
                .iter()
                .map(|shard| truth.primaries[*shard])
                .collect(),
            replicas: replicas.collect(),
            epoch: truth.epoch,
        }
    }

    /// The slot of a lock begins to move to the next shard. False if another one moves, or one of the two primaries is
    /// down.
    pub(crate) fn begin_move(&self, name: &str) -> bool {
        let slot = slot_of(name.as_bytes());
        let from = self.shard_of(name);
        let to = (from + 1) % self.layout.shards();
        let ends = [from, to].map(|shard| self.primary(shard));
        if !ends.iter().all(|server| self.is_up(*server)) {
            return false;
        }
        {
            let mut truth = self.truth.lock();
            if truth.moving.is_some() || from == to {
                return false;
            }
            truth.moving = Some((slot, from, to));
        }
        self.membership(ends[1], |member| member.importing.insert(slot, ends[0]));
        self.membership(ends[0], |member| member.migrating.insert(slot, ends[1]));
        true
    }

    fn membership<T>(&self, server: ServerId, change: impl FnOnce(&mut Membership) -> T) {
        self.net.with(|state| {
            let member = state.node(server).membership.as_mut();
            member.map(change);
        });
    }

    /// Whether the slot of this lock moves.
    pub(crate) fn moves(&self, name: &str) -> bool {
        let moving = self.truth.lock().moving;
        moving.is_some_and(|(slot, ..)| slot == slot_of(name.as_bytes()))
    }

    /// Whether the keys of a slot were split between two nodes for long.
    pub(crate) fn had_stuck_move(&self) -> bool {
        self.truth.lock().was_stuck
    }

    /// The slot that moves, and between which servers; `None` while one of them is down, as nothing goes over then.
    fn move_under_way(&self) -> Option<(u16, [ServerId; 2])> {
        let (slot, from, to) = self.truth.lock().moving?;
        let ends = [from, to].map(|shard| self.primary(shard));
        let are_up = ends.iter().all(|server| self.is_up(*server));
        are_up.then_some((slot, ends))
    }

    /// Moves this many keys of the moving slot.
    pub(crate) fn move_keys(&self, most: usize) {
        if let Some((slot, ends)) = self.move_under_way() {
            self.net.migrate(slot, ends, most);
        }
    }

    /// The rest goes over, and the two shards learn that the slot has moved.
    pub(crate) fn end_move(&self) {
        let Some((slot, ends)) = self.move_under_way() else {
            let mut truth = self.truth.lock();
            truth.was_stuck |= truth.moving.is_some();
            return;
        };
        self.net.migrate(slot, ends, usize::MAX);
        {
            let mut truth = self.truth.lock();
            if let Some((slot, _, to)) = truth.moving.take() {
                truth.shards[usize::from(slot)] = to;
                truth.epoch += 1;
            }
        }
        for server in ends.into_iter().rev() {
            self.membership(server, |member| {
                member.importing.remove(&slot);
                member.migrating.remove(&slot);
            });
            self.learn(server);
        }
    }

    /// All is well: what moves has moved, and everybody knows.
    pub(crate) fn finish(&self) {
        self.end_move();
        self.settle();
        (0..self.layout.servers()).for_each(|server| self.learn(server));
    }
}

#[cfg(test)]
mod tests;
