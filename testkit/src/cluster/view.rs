//! Reads and compares the views that nodes have of their cluster.
//!
//! Invariant: a view is one node's opinion. Callers compare views to decide about the cluster: of
//! two views of a slot, the one with the higher epoch is newer.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::InfoDict;
use tokio::time::timeout;

use crate::server::Server;

/// A node that does not answer within this time is frozen, dead or cut off.
pub(super) const LOOK_BOUND: Duration = Duration::from_secs(1);

/// One node's view of its cluster.
#[derive(Debug)]
pub(super) struct View {
    /// Whether the node reports `cluster_state:ok`.
    pub(super) ok: bool,
    /// Whether the node is a replica whose link to its primary is up.
    pub(super) linked: bool,
    /// The nodes it knows, including itself, by id.
    pub(super) nodes: BTreeMap<String, Node>,
    /// Its own id.
    pub(super) myself: String,
}

/// One line of `CLUSTER NODES`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// `IP:PORT@BUS`, followed by `,HOSTNAME` if there is one.
    pub(super) addr: String,
    pub(super) flags: Vec<String>,
    /// The id of its primary, for a replica.
    pub(super) primary: Option<String>,
    pub(super) epoch: u64,
    pub(super) connected: bool,
    /// The first and last slot of each range.
    pub(super) slots: Vec<(u16, u16)>,
}

impl Node {
    pub(super) fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    pub(super) fn owns(&self, slot: u16) -> bool {
        self.slots
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&slot))
    }

    fn parse(line: &str) -> Option<(String, Self)> {
        let mut words = line.split_ascii_whitespace();
        let id = words.next()?.to_owned();
        let addr = words.next()?.to_owned();
        let flags = words.next()?.split(',').map(str::to_owned).collect();
        let primary = words.next().filter(|id| *id != "-").map(str::to_owned);
        // The times of the last ping and the last answer.
        let mut words = words.skip(2);
        let epoch = words.next()?.parse().ok()?;
        let connected = words.next()? == "connected";
        let slots = words.filter_map(parse_slots).collect();
        let node = Self {
            addr,
            flags,
            primary,
            epoch,
            connected,
            slots,
        };
        Some((id, node))
    }
}

/// `7` or `7-9`, but not `[7->-ID]`, which is a migrating slot.
fn parse_slots(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}

impl View {
    /// Asks a node. Returns `None` if it does not answer within a second.
    pub(super) async fn of(server: &Server) -> Option<Self> {
        let questions: &[&[&str]] = &[
            &["CLUSTER", "INFO"],
            &["CLUSTER", "NODES"],
            &["INFO", "replication"],
        ];
        let answers = server.try_ask::<(String, String, InfoDict)>(questions);
        let (state, nodes, replication) = timeout(LOOK_BOUND, answers).await.ok()?.ok()?;
        let nodes: BTreeMap<String, Node> = nodes.lines().filter_map(Node::parse).collect();
        let myself = nodes
            .iter()
            .find(|(_, node)| node.has_flag("myself"))
            .map(|(id, _)| id.clone())?;
        let link: Option<String> = replication.get("master_link_status");
        Some(Self {
            ok: state.contains("cluster_state:ok"),
            linked: link.as_deref() == Some("up"),
            nodes,
            myself,
        })
    }

    /// Asks all nodes at once. A node that does not answer gives `None`.
    pub(super) async fn of_all(servers: &[Server]) -> Vec<Option<Self>> {
        join_all(servers.iter().map(Self::of)).await
    }

    /// The owner of the slot and its epoch.
    pub(super) fn owner(&self, slot: u16) -> Option<(&str, u64)> {
        self.nodes
            .iter()
            .find(|(_, node)| node.owns(slot))
            .map(|(id, node)| (id.as_str(), node.epoch))
    }
}

/// The owner of the slot, by the newest view.
pub(super) fn owner(views: &[Option<View>], slot: u16) -> Option<&str> {
    views
        .iter()
        .flatten()
        .filter_map(|view| view.owner(slot))
        .max_by_key(|(_, epoch)| *epoch)
        .map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_primary_with_a_slot_under_way() {
        let line = "0a 127.0.0.1:7000@17000,127.0.0.2 myself,master - 0 1700 3 connected \
                    0-5 7 [9->-0b]";
        let (id, node) = Node::parse(line).unwrap();
        assert_eq!(id, "0a");
        assert_eq!(node.addr, "127.0.0.1:7000@17000,127.0.0.2");
        assert_eq!((node.epoch, node.connected), (3, true));
        assert!(node.has_flag("master") && node.primary.is_none());
        assert_eq!(node.slots, [(0, 5), (7, 7)]);
        assert!(node.owns(5) && !node.owns(6) && !node.owns(9));
    }

    #[test]
    fn reads_a_replica_that_failed() {
        let line = "0b 127.0.0.1:7001@17001 slave,fail 0a 1700 1700 3 disconnected";
        let (_, node) = Node::parse(line).unwrap();
        assert_eq!(node.primary.as_deref(), Some("0a"));
        assert!(!node.connected && node.has_flag("fail") && node.slots.is_empty());
    }
}
