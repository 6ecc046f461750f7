//! The slots of a cluster as one node sees them, and its replies to commands for them.
//!
//! Each node has a view of its own, which is changed from outside: how nodes come to agree is not simulated, so any
//! of them may be behind for as long as a test wants.

use std::collections::BTreeMap;

use crate::replication::ServerId;
use crate::reply::Reply;
use crate::slots::{SLOTS, keys_of, slot_of};
use crate::store::Store;
use crate::words::Words;

/// The node of each slot, ordered in time by its epoch.
#[derive(Clone, Debug)]
pub(crate) struct SlotView {
    /// By slot.
    pub(crate) owners: Vec<ServerId>,
    /// By replica, whom it follows.
    pub(crate) replicas: BTreeMap<ServerId, ServerId>,
    pub(crate) epoch: u64,
}

/// One node's part.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) me: ServerId,
    pub(crate) view: SlotView,
    /// By slot: where its keys go, while they are on their way.
    pub(crate) migrating: BTreeMap<u16, ServerId>,
    /// By slot: where its keys come from.
    pub(crate) importing: BTreeMap<u16, ServerId>,
    addresses: Vec<String>,
}

impl Membership {
    pub(crate) fn new(me: ServerId, view: SlotView, addresses: Vec<String>) -> Self {
        Self {
            me,
            view,
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            addresses,
        }
    }

    pub(crate) fn serves(&self, key: &[u8]) -> bool {
        self.view.owners[usize::from(slot_of(key))] == self.me
    }

    /// The other nodes of the cluster.
    pub(crate) fn others(&self) -> impl Iterator<Item = ServerId> {
        let me = self.me;
        (0..self.addresses.len()).filter(move |other| *other != me)
    }

    /// Returns `None` if a command is executed here, otherwise the refusal. The questions come in Redis' order.
    pub(crate) fn admit(
        &self,
        verb: &[u8],
        words: &Words,
        is_asking: bool,
        keys: &Store,
    ) -> Result<(), Reply> {
        // Channels of a slot are served with the slot, even while its keys move.
        let is_channel = matches!(verb, b"SPUBLISH" | b"SSUBSCRIBE" | b"SUNSUBSCRIBE");
        self.admit_keys(&keys_of(verb, words), !is_channel, is_asking, keys)
    }

    /// Like `admit`, for one command, or several that are one step, with these keys. `looks`: it goes where the keys
    /// are while they move.
    pub(crate) fn admit_keys(
        &self,
        named: &[&[u8]],
        looks: bool,
        is_asking: bool,
        keys: &Store,
    ) -> Result<(), Reply> {
        let Some(first) = named.first() else {
            return Ok(());
        };
        let slot = slot_of(first);
        if named.iter().any(|key| slot_of(key) != slot) {
            let what = "CROSSSLOT Keys in request don't hash to the same slot";
            return Err(Reply::error(what));
        }
        let owner = self.view.owners[usize::from(slot)];
        let (to, from) = (self.migrating.get(&slot), self.importing.get(&slot));
        let is_moving = to.is_some() || from.is_some();
        let looks = is_moving && looks;
        let missing = named.iter().filter(|key| looks && keys.get(key).is_none());
        let missing = missing.count();
        let several = named.iter().any(|key| key != first);
        let again = || Reply::error("TRYAGAIN Multiple keys request during rehashing of slot");
        match (to, from) {
            (Some(_), _) if owner == self.me && missing > 0 && missing < named.len() => {
                return Err(again());
            }
            (Some(to), _) if owner == self.me && missing > 0 => {
                return Err(self.elsewhere("ASK", slot, *to));
            }
            (_, Some(_)) if is_asking && several && missing > 0 => return Err(again()),
            (_, Some(_)) if is_asking => return Ok(()),
            _ => {}
        }
        if owner == self.me {
            Ok(())
        } else {
            Err(self.elsewhere("MOVED", slot, owner))
        }
    }

    fn elsewhere(&self, how: &str, slot: u16, server: ServerId) -> Reply {
        Reply::error(format!("{how} {slot} {}", self.addresses[server]))
    }

    pub(crate) fn answer(&self, words: &Words) -> Reply {
        match &*words.get(1).unwrap_or_default().to_ascii_uppercase() {
            b"SLOTS" => self.slots(),
            b"INFO" => {
                let epoch = self.view.epoch;
                let text = format!(
                    "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\n\
                     cluster_current_epoch:{epoch}\r\n"
                );
                Reply::Bulk(text.into_bytes())
            }
            b"KEYSLOT" if words.len() == 3 => Reply::Int(slot_of(words.at(2)).into()),
            _ => Reply::error("ERR unknown subcommand of CLUSTER on this server"),
        }
    }

    /// Each range of slots with the one that serves it and its replicas.
    fn slots(&self) -> Reply {
        let owners = &self.view.owners;
        let mut ranges = Vec::new();
        let mut first = 0;
        while first < owners.len() {
            let owner = owners[first];
            let same = owners[first..].iter().take_while(|other| **other == owner);
            let next = first + same.count();
            let replicas = self.view.replicas.iter();
            let replicas = replicas.filter(|(_, primary)| **primary == owner);
            let mut range = vec![
                Reply::count(first),
                Reply::count(next - 1),
                self.node(owner),
            ];
            range.extend(replicas.map(|(replica, _)| self.node(*replica)));
            ranges.push(Reply::Array(range));
            first = next;
        }
        Reply::Array(ranges)
    }

    fn node(&self, server: ServerId) -> Reply {
        let (host, port) = self.addresses[server].rsplit_once(':').expect("an address");
        Reply::Array(vec![
            Reply::bulk(host.as_bytes()),
            Reply::Int(port.parse().expect("a port")),
            Reply::Bulk(format!("{server:040x}").into_bytes()),
            Reply::Array(Vec::new()),
        ])
    }
}
