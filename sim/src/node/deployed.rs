//! A server among others: its messages to replicas and to the nodes of its cluster, the commands it leaves to them, and
//! channels that span nodes.

use super::{ConnectionId, Node};
use crate::channels::Kind;
use crate::cluster::SlotView;
use crate::replication::{Between, ServerId};
use crate::reply::Reply;
use crate::slots::slot_of;
use crate::store::Changed;
use crate::words::Words;

impl Node {
    /// Whether this server does it, or says who does.
    pub(super) fn admit(
        &mut self,
        verb: &[u8],
        from: ConnectionId,
        words: &Words,
    ) -> Result<(), Reply> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        let connection = self.connections.get_mut(&from);
        self.is_asking = connection.is_some_and(|one| std::mem::take(&mut one.is_asking));
        membership.admit(verb, words, self.is_asking, &self.store)
    }

    /// Passes on to replicas what a command has changed.
    pub(super) fn pass_on(&mut self, from: Option<ConnectionId>) {
        let changed = self.store.take_changed();
        if changed.is_empty() {
            return;
        }
        self.for_servers.extend(self.replication.changed(changed));
        if let Some(connection) = from.and_then(|from| self.connections.get_mut(&from)) {
            connection.changes = self.replication.changes;
        }
    }

    /// Something came from another server.
    pub(crate) fn receive(&mut self, from: ServerId, what: Between) {
        if let Between::Message(channel, message) = &what {
            self.channels.publish(Kind::Plain, channel, message);
            return;
        }
        let reply = self.replication.receive(from, what, &mut self.store);
        // A replicated change is no change of its own.
        self.store.take_changed();
        self.for_servers.extend(reply.map(|reply| (from, reply)));
    }

    pub(super) fn publish(&mut self, verb: &[u8], channel: &[u8], message: &[u8]) -> Reply {
        let kind = if verb == b"SPUBLISH" {
            Kind::Sharded
        } else {
            Kind::Plain
        };
        if let (Some(membership), Kind::Plain) = (&self.membership, kind) {
            // All nodes hear it; how many listen there is not known here.
            let told = |other| (other, Between::Message(channel.into(), message.into()));
            self.for_servers.extend(membership.others().map(told));
        }
        Reply::count(self.channels.publish(kind, channel, message))
    }

    pub(super) fn subscription(&mut self, verb: &[u8], from: ConnectionId, words: &Words) -> Reply {
        let Some(channel) = words.get(1).filter(|_| words.len() == 2) else {
            return Reply::error("ERR this server takes one channel at a time");
        };
        let channels = &mut self.channels;
        match verb {
            b"SUBSCRIBE" => channels.subscribe(Kind::Plain, channel, from),
            b"SSUBSCRIBE" => channels.subscribe(Kind::Sharded, channel, from),
            b"UNSUBSCRIBE" => channels.unsubscribe(Kind::Plain, channel, from),
            _ => channels.unsubscribe(Kind::Sharded, channel, from),
        }
    }

    pub(super) fn hello(&mut self, from: ConnectionId, words: &Words) -> Reply {
        let is_newer = words.get(1) == Some(b"3");
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.is_newer = is_newer;
        }
        let proto = if is_newer { 3 } else { 2 };
        Reply::Pairs(vec![Reply::bulk(b"proto"), Reply::Int(proto)])
    }

    pub(super) fn role(&self) -> Reply {
        let changes = i64::try_from(self.replication.changes).unwrap_or(i64::MAX);
        if self.replication.is_replica() {
            // The client does not ask for the primary's address.
            let (host, state) = (Reply::bulk(b""), Reply::bulk(b"connected"));
            let role = [
                Reply::bulk(b"slave"),
                host,
                Reply::Int(0),
                state,
                Reply::Int(changes),
            ];
            return Reply::Array(role.into());
        }
        let role = [
            Reply::bulk(b"master"),
            Reply::Int(changes),
            Reply::Array(vec![]),
        ];
        Reply::Array(role.into())
    }

    /// Follows another server from now on, or none.
    pub(crate) fn follow(&mut self, primary: Option<ServerId>) {
        match primary {
            Some(primary) => {
                let hello = self.replication.follow(primary);
                self.for_servers.push((primary, hello));
            }
            None => self.replication.promote(),
        }
    }

    /// Takes over another view of its cluster, and notifies listeners to channels that are no longer served here.
    pub(crate) fn adopt(&mut self, view: SlotView) {
        let Some(membership) = &mut self.membership else {
            return;
        };
        membership.view = view;
        let (channels, membership) = (&mut self.channels, &*membership);
        channels.end_unserved(|channel| membership.serves(channel));
    }

    /// Takes this many keys of a slot out, for another node.
    pub(crate) fn give_up(&mut self, slot: u16, most: usize) -> Vec<Changed> {
        let mut moved = self.store.all();
        moved.retain(|(name, _)| slot_of(name) == slot && self.store.get(name).is_some());
        moved.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        moved.truncate(most);
        for (name, _) in &moved {
            self.store.remove(name);
        }
        self.pass_on(None);
        moved
    }

    /// Has them from now on.
    pub(crate) fn take_over(&mut self, moved: Vec<Changed>) {
        self.store.apply(moved);
        self.pass_on(None);
    }

    /// Publishes something of its own.
    pub(crate) fn announce(&mut self, channel: &str, message: &str) {
        let (channel, message) = (channel.as_bytes(), message.as_bytes());
        self.channels.publish(Kind::Plain, channel, message);
    }
}
