//! Listeners of each channel of a server, and their messages.
//!
//! Invariant: what is sent unasked is left in the outbox, in order.

use std::collections::BTreeMap;

use crate::reply::Reply;

/// The number of a connection at its server.
pub(crate) type ConnectionId = u64;

/// A message on its way to a connection, or the end of a subscription.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) to: ConnectionId,
    pub(crate) what: &'static str,
    pub(crate) channel: Vec<u8>,
    pub(crate) message: Reply,
}

impl Push {
    pub(crate) fn reply(&self) -> Reply {
        Reply::push(self.what, &self.channel, self.message.clone())
    }
}

/// Plain and sharded channels differ, even under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Plain,
    Sharded,
}

#[derive(Debug, Default)]
pub(crate) struct Channels {
    listeners: BTreeMap<(Kind, Vec<u8>), Vec<ConnectionId>>,
    outbox: Vec<Push>,
}

impl Channels {
    pub(crate) fn clear(&mut self) {
        self.listeners.clear();
        self.outbox.clear();
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.listeners.values().map(Vec::len).sum()
    }

    pub(crate) fn take_outbox(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.outbox)
    }

    /// The listeners to channels whose names begin with `prefix`.
    pub(crate) fn listening_below(&self, prefix: &[u8]) -> Vec<ConnectionId> {
        let meant = self.listeners.iter();
        let meant = meant.filter(|((_, channel), _)| channel.starts_with(prefix));
        meant.flat_map(|(_, all)| all.iter().copied()).collect()
    }

    /// How many have heard it.
    pub(crate) fn publish(&mut self, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
        let listeners = self.listeners.get(&(kind, channel.to_vec()));
        let listeners = listeners.map_or(&[][..], Vec::as_slice);
        let what = match kind {
            Kind::Plain => "message",
            Kind::Sharded => "smessage",
        };
        self.outbox.extend(listeners.iter().map(|to| Push {
            to: *to,
            what,
            channel: channel.to_vec(),
            message: Reply::bulk(message),
        }));
        listeners.len()
    }

    pub(crate) fn subscribe(&mut self, kind: Kind, channel: &[u8], from: ConnectionId) -> Reply {
        let listeners = self.listeners.entry((kind, channel.to_vec())).or_default();
        if !listeners.contains(&from) {
            listeners.push(from);
        }
        let what = match kind {
            Kind::Plain => "subscribe",
            Kind::Sharded => "ssubscribe",
        };
        Reply::push(what, channel, self.count(kind, from))
    }

    pub(crate) fn unsubscribe(&mut self, kind: Kind, channel: &[u8], from: ConnectionId) -> Reply {
        if let Some(listeners) = self.listeners.get_mut(&(kind, channel.to_vec())) {
            listeners.retain(|listener| *listener != from);
        }
        self.listeners.retain(|_, listeners| !listeners.is_empty());
        Reply::push(unsubscribed(kind), channel, self.count(kind, from))
    }

    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.listeners.retain(|_, listeners| {
            listeners.retain(|listener| *listener != id);
            !listeners.is_empty()
        });
    }

    /// Ends the subscriptions to sharded channels that are no longer `served` here, and notifies their listeners.
    pub(crate) fn end_unserved(&mut self, served: impl Fn(&[u8]) -> bool) {
        let is_gone =
            |(kind, channel): &(Kind, Vec<u8>)| *kind == Kind::Sharded && !served(channel);
        let gone: Vec<_> = self
            .listeners
            .keys()
            .filter(|key| is_gone(key))
            .cloned()
            .collect();
        for (kind, channel) in gone {
            let listeners = self.listeners.remove(&(kind, channel.clone()));
            for to in listeners.into_iter().flatten() {
                let message = self.count(kind, to);
                self.outbox.push(Push {
                    to,
                    what: unsubscribed(kind),
                    channel: channel.clone(),
                    message,
                });
            }
        }
    }

    /// How many channels of this kind it listens to.
    fn count(&self, kind: Kind, id: ConnectionId) -> Reply {
        let listeners = self.listeners.iter().filter(|((of, _), _)| *of == kind);
        Reply::count(listeners.filter(|(_, all)| all.contains(&id)).count())
    }
}

fn unsubscribed(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "unsubscribe",
        Kind::Sharded => "sunsubscribe",
    }
}
