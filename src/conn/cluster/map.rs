//! The map of a cluster: the slot of a key, the nodes that serve the slots as one node sees them, which of several
//! views counts, and the redirection to another node. Pure.
//!
//! Invariant: once there is a view, a node of another cluster changes nothing, for example at an address that was
//! reassigned. Its view has no node in common with the last one. Its epoch does not matter, because each cluster
//! counts its own.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crc::{CRC_16_XMODEM, Crc};
use redis::{RedisError, Value};

use crate::conn::address::{Address, AddressMap, count};
use crate::conn::value::{field, text};

/// The number of slots in every cluster.
const SLOTS: u16 = 16384;

static CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Returns the slot of a key. Only the text between its first `{` and the next `}` counts, unless that is empty or
/// missing.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    CHECKSUM.checksum(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// A map from slots to nodes.
#[derive(Clone, Debug)]
pub(super) struct SlotMap<N> {
    /// The index of each slot's node, or [`NOBODY`].
    owners: Box<[u16]>,
    nodes: Vec<N>,
}

const NOBODY: u16 = u16::MAX;

impl<N: Clone + PartialEq> SlotMap<N> {
    pub(super) fn empty() -> Self {
        Self {
            owners: vec![NOBODY; SLOTS.into()].into(),
            nodes: Vec::new(),
        }
    }

    /// Builds a map from ranges that include both ends. Slots that do not exist are ignored.
    pub(super) fn of(ranges: impl IntoIterator<Item = (u16, u16, N)>) -> Self {
        let mut map = Self::empty();
        for (first, last, node) in ranges {
            let index = map.index(&node);
            let last = last.min(SLOTS - 1);
            if first <= last {
                map.owners[first.into()..=last.into()].fill(index);
            }
        }
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&N> {
        let index = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(index))
    }

    /// Notes that this node now serves a slot.
    pub(super) fn learn(&mut self, slot: u16, node: &N) {
        let index = self.index(node);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = index;
        }
    }

    /// Returns the nodes that serve at least one slot.
    pub(super) fn nodes(&self) -> Vec<N> {
        let mut serves = vec![false; self.nodes.len()];
        for index in &self.owners {
            if let Some(serves) = serves.get_mut(usize::from(*index)) {
                *serves = true;
            }
        }
        let nodes = self.nodes.iter().zip(serves);
        nodes
            .filter(|(_, serves)| *serves)
            .map(|(node, _)| node.clone())
            .collect()
    }

    /// Returns a key for each of these nodes, in a slot that the node serves.
    pub(super) fn routes(&self) -> Vec<String> {
        let mut missing = self.nodes();
        let nodes = missing.len();
        let is_of_missing = |route: &String| {
            let owner = self.owner(slot_of(route.as_bytes()));
            let at = missing.iter().position(|node| Some(node) == owner);
            at.map(|at| missing.swap_remove(at)).is_some()
        };
        // The numbers below 200 000 reach all slots.
        let numbers = (0..200_000).map(|number: u32| number.to_string());
        numbers.filter(is_of_missing).take(nodes).collect()
    }

    fn index(&mut self, node: &N) -> u16 {
        let known = self.nodes.iter().position(|known| known == node);
        let index = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        // Each node serves a slot, or was learned from a redirection.
        u16::try_from(index).unwrap_or(NOBODY)
    }
}

/// Slots, with both ends included, and the primary that serves them.
pub(super) type Range = (u16, u16, Address);

/// One node's view of its cluster: the slots and the nodes that serve them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) ranges: Vec<Range>,
    /// The nodes by their ids, which stay when addresses change: primaries, and replicas, which are asked for the map if
    /// no primary replies. Empty if the nodes do not report them.
    pub(super) ids: BTreeMap<String, Address>,
    /// Whether the node considers the cluster to be working.
    pub(super) is_ok: bool,
    /// Grows with each failover. The node with the greater epoch knows more.
    pub(super) epoch: u64,
}

impl View {
    /// Parses the replies to `CLUSTER SLOTS` and, unless the node refused it, `CLUSTER INFO`. `map` translates the
    /// addresses in them.
    pub(super) fn of(
        slots: &Value,
        info: Option<&Value>,
        asked: &Address,
        map: &AddressMap,
    ) -> Option<Self> {
        let node = |value| Some(map.resolve(node(value, asked)?));
        let mut view = Self {
            is_ok: true,
            ..Self::default()
        };
        let Value::Array(ranges) = slots else {
            return None;
        };
        if ranges.len() > SLOTS.into() {
            return None;
        }
        for range in ranges {
            let [first, last, primary, replicas @ ..] = range.as_sequence()? else {
                return None;
            };
            let named = [primary].into_iter().chain(replicas);
            let named = named.filter_map(|named| Some((id(named)?, node(named)?)));
            view.ids.extend(named);
            view.ranges
                .push((slot(first)?, slot(last)?, node(primary)?));
        }
        // Nodes may list equal maps in different orders.
        view.ranges.sort_unstable();
        if let Some(info) = info {
            view.is_ok = field(info, "cluster_state").is_none_or(|state| state == "ok");
            let epoch = field(info, "cluster_current_epoch");
            view.epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        }
        view.is_ok &= !view.ranges.is_empty();
        Some(view)
    }

    /// Returns the ids of the nodes at this address: several if one proxy stands for several nodes.
    pub(super) fn ids_at(&self, address: &Address) -> Vec<String> {
        let here = self.ids.iter().filter(|(_, at)| *at == address);
        here.map(|(id, _)| id.clone()).collect()
    }

    fn serves(&self, id: &str) -> bool {
        let at = self.ids.get(id);
        self.ranges.iter().any(|(.., node)| Some(node) == at)
    }

    /// Returns the rank among views of one cluster; the greater is the better.
    fn rank(&self) -> (bool, u64) {
        (self.is_ok, self.epoch)
    }
}

fn slot(value: &Value) -> Option<u16> {
    match value {
        Value::Int(slot) => u16::try_from(*slot).ok(),
        _ => None,
    }
}

/// Returns the id of a node, if the reply has it.
fn id(node: &Value) -> Option<String> {
    let id = node.as_sequence()?.get(2).and_then(text)?;
    (!id.is_empty()).then(|| id.to_owned())
}

/// Parses `[host, port, id, more]`.
fn node(value: &Value, asked: &Address) -> Option<Address> {
    let [host, Value::Int(port), rest @ ..] = value.as_sequence()? else {
        return None;
    };
    let more = rest.get(1);
    let host = match text(host) {
        // The node should be announced by its name, but has none.
        Some("?") => more.and_then(ip).unwrap_or(&asked.host),
        Some(host) if !host.is_empty() => host,
        // The node does not know its own address, so it is at the address that was asked.
        _ => &asked.host,
    };
    Some(Address::new(host, u16::try_from(*port).ok()?))
}

/// Returns the IP address among the additional fields, which are a map or a flat list.
fn ip(more: &Value) -> Option<&str> {
    let mut fields = more.as_map_iter()?;
    let (_, ip) = fields.find(|(key, _)| text(key) == Some("ip"))?;
    text(ip).filter(|ip| !ip.is_empty())
}

/// A node that replied, and its view.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) address: Address,
    /// The node's own id, if it reports one.
    pub(super) id: Option<String>,
    pub(super) view: View,
}

impl Told {
    /// Whether this view and `other` have a node in common, and so are of one cluster. The id of the node that replied
    /// is not enough, because a node that joins another cluster may keep its id. It is enough if the node serves slots
    /// in both views, or if one view has no other id, as after the only other node of a shard has failed. A view
    /// without ids contradicts no other.
    fn is_of_the_cluster_of(&self, other: &View) -> bool {
        let view = &self.view;
        let is_short = view.ids.len().min(other.ids.len()) == 1;
        let counts = |id: &String| {
            self.id.as_ref() != Some(id) || is_short || view.serves(id) && other.serves(id)
        };
        let is_silent = view.ids.is_empty() || other.ids.is_empty();
        let mut common = view.ids.keys().filter(|id| other.ids.contains_key(*id));
        is_silent || common.any(counts)
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.is_of_the_cluster_of(&other.view) && other.is_of_the_cluster_of(&self.view)
    }
}

/// Whether this node belongs to the cluster of the last view. Without a last view, every node does.
pub(super) fn is_ours(told: &Told, last: Option<&View>) -> bool {
    last.is_none_or(|last| told.is_of_the_cluster_of(last))
}

/// Whether the nodes that `which` accepts are more than half of the nodes at all `addresses`.
pub(super) fn are_most(told: &[Told], addresses: usize, which: impl Fn(&Told) -> bool) -> bool {
    let doubles = told.len() - number_of(told, |_| true);
    number_of(told, which) * 2 > addresses - doubles
}

fn number_of(told: &[Told], which: impl Fn(&Told) -> bool) -> usize {
    let counted = told.iter().filter(|one| which(one));
    count(counted.map(|one| one.id.as_ref()))
}

/// Returns the best view that counts. Without a last view, the views of the largest group that agrees count. If no view
/// belongs to the cluster of the last one, all nodes may have been replaced, and the seeds decide.
pub(super) fn best(told: Vec<Told>, last: Option<&View>, seeds: &[Address]) -> Option<Told> {
    let (ours, mut others): (Vec<_>, Vec<_>) =
        told.into_iter().partition(|told| is_ours(told, last));
    let counted = match last {
        // While a cluster is being made, each node knows only itself.
        None if !ours.iter().any(|told| told.view.is_ok) => ours,
        None => unless_they_differ(of_the_largest_cluster(ours)),
        Some(_) if ours.is_empty() => {
            others.retain(|told| seeds.contains(&told.address));
            unless_they_differ(others)
        }
        Some(_) => ours,
    };
    // The first of several equal views wins.
    let counted = counted.into_iter().rev();
    counted.max_by_key(|told| told.view.rank())
}

fn of_the_largest_cluster(told: Vec<Told>) -> Vec<Told> {
    let company = |one: &Told| number_of(&told, |other| one.agrees_with(other));
    let most = told.iter().map(company).max();
    let largest = told.iter().filter(|one| Some(company(one)) == most);
    largest.cloned().collect()
}

/// Returns these views, or none if they belong to different clusters.
fn unless_they_differ(told: Vec<Told>) -> Vec<Told> {
    let agree = |one: &Told| told.iter().all(|other| one.agrees_with(other));
    if told.iter().all(agree) {
        told
    } else {
        Vec::new()
    }
}

/// The error reply of a node when another node serves the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Whether the slot is migrating: the other node has to be asked, for this command only. Otherwise it now serves
    /// the slot.
    pub(super) asks: bool,
    pub(super) slot: u16,
    pub(super) to: Address,
}

impl Redirect {
    /// Parses a redirection from the node `asked`. A redirection without a host means the same host.
    pub(super) fn of(error: &RedisError, asked: &Address) -> Option<Self> {
        let (to, slot) = error.redirect_node()?;
        // An IPv6 address contains colons.
        let (host, port) = to.rsplit_once(':')?;
        let host = match host {
            "" | "?" => &asked.host,
            host => host,
        };
        Some(Self {
            asks: error.code() == Some("ASK"),
            slot,
            to: Address::new(host, port.parse().ok()?),
        })
    }
}

/// Whether the first of two commands was executed and the second was redirected, because the slot moved in between. If
/// both were sent again, the first would not find the field that it has removed.
pub(super) fn is_half_done(replies: &[Value]) -> bool {
    matches!(replies, [Value::Int(1), Value::ServerError(_)])
}
