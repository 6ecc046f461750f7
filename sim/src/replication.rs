//! How a replica gets its primary's keys, and when: messages between servers.
//!
//! A primary passes on what each command has changed, as keys with what they hold then, and counts. A replica
//! applies that in order and confirms how far it is. Invariant: messages over a dropped link are not applied, so a
//! replica that was promoted, or follows another server, gets nothing more from its old primary.

use std::collections::BTreeMap;

use crate::store::{Bytes, Changed, Store};

/// The number of a server in its network.
pub(crate) type ServerId = usize;

/// A message from one server to another.
#[derive(Clone, Debug)]
pub(crate) enum Between {
    /// A replica wants all keys and all later changes, over a link of this number.
    Follow(u64),
    /// All keys, as of this number of changes.
    All(u64, u64, Vec<Changed>),
    /// The changes by a command, and their number.
    Change(u64, u64, Vec<Changed>),
    /// A replica has this number of changes.
    Confirm(u64, u64),
    /// A message on a channel, for listeners at other nodes of a cluster.
    Message(Bytes, Bytes),
}

/// One server's part in it.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    /// The server it follows, and the link; `None`: it is a primary.
    following: Option<(ServerId, u64)>,
    last_link: u64,
    /// By replica: its link, and how much it has confirmed.
    replicas: BTreeMap<ServerId, (u64, u64)>,
    /// How many changes there were.
    pub(crate) changes: u64,
}

impl Replication {
    pub(crate) fn primary(&self) -> Option<ServerId> {
        self.following.map(|(primary, _)| primary)
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.following.is_some()
    }

    /// From now on it has what this one has. Returns what to tell that.
    pub(crate) fn follow(&mut self, primary: ServerId) -> Between {
        self.last_link += 1;
        self.following = Some((primary, self.last_link));
        self.replicas.clear();
        Between::Follow(self.last_link)
    }

    /// From now on it is a primary.
    pub(crate) fn promote(&mut self) {
        self.following = None;
        self.replicas.clear();
    }

    /// It was restarted: no replica is connected to it.
    pub(crate) fn restart(&mut self) {
        self.replicas.clear();
    }

    /// A command has changed this. Returns the messages for the replicas.
    pub(crate) fn changed(&mut self, what: Vec<Changed>) -> Vec<(ServerId, Between)> {
        self.changes += 1;
        let told = self.replicas.iter().map(|(replica, (link, _))| {
            (*replica, Between::Change(*link, self.changes, what.clone()))
        });
        told.collect()
    }

    /// The replicas that are connected to it, as far as it knows.
    pub(crate) fn replicas(&self) -> Vec<ServerId> {
        self.replicas.keys().copied().collect()
    }

    /// How many replicas have at least this number of changes.
    pub(crate) fn confirmed(&self, changes: u64) -> usize {
        let confirmed = self.replicas.values();
        confirmed.filter(|(_, has)| *has >= changes).count()
    }

    /// Something came from another server. Returns the reply to it.
    pub(crate) fn receive(
        &mut self,
        from: ServerId,
        what: Between,
        keys: &mut Store,
    ) -> Option<Between> {
        match what {
            Between::Follow(link) if !self.is_replica() => {
                self.replicas.insert(from, (link, 0));
                Some(Between::All(link, self.changes, keys.all()))
            }
            Between::All(link, changes, all) if self.following == Some((from, link)) => {
                keys.clear();
                keys.apply(all);
                self.changes = changes;
                Some(Between::Confirm(link, changes))
            }
            Between::Change(link, changes, what) if self.following == Some((from, link)) => {
                keys.apply(what);
                self.changes = changes;
                Some(Between::Confirm(link, changes))
            }
            Between::Confirm(link, changes) => {
                let known = self.replicas.get_mut(&from);
                if let Some((_, has)) = known.filter(|(known, _)| *known == link) {
                    *has = changes;
                }
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Data;

    #[test]
    fn a_replica_has_what_it_was_sent_over_its_link_and_nothing_later() {
        let (mut ours, mut theirs) = (Replication::default(), Replication::default());
        let (mut keys, mut copy) = (Store::default(), Store::default());
        keys.track();
        keys.set(b"a", Data::Text(b"1".as_slice().into()), None);
        ours.changed(keys.take_changed());
        let hello = theirs.follow(0);
        let all = ours.receive(1, hello, &mut keys).expect("everything");
        keys.set(b"b", Data::Text(b"2".as_slice().into()), Some(7));
        let change = ours.changed(keys.take_changed()).remove(0).1;
        let confirm = theirs.receive(0, all, &mut copy).expect("confirmed");
        ours.receive(1, confirm, &mut keys);
        assert_eq!((ours.confirmed(1), ours.confirmed(2)), (1, 0));
        assert_eq!(copy.keys().len(), 1);
        let confirm = theirs.receive(0, change.clone(), &mut copy);
        ours.receive(1, confirm.expect("confirmed"), &mut keys);
        assert_eq!(ours.confirmed(2), 1);
        assert_eq!(copy.ends_at(b"b"), Some(7));

        keys.remove(b"a");
        let late = ours.changed(keys.take_changed()).remove(0).1;
        theirs.promote();
        assert!(theirs.receive(0, late, &mut copy).is_none());
        assert_eq!(copy.keys().len(), 2);
    }
}
