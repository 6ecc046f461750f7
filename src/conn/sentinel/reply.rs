//! The replies of sentinels: which of them count, and which primary to believe. Pure.
//!
//! Invariant: of sentinels that do not know each other and name different primaries, only those of one deployment
//! count. Epochs do not matter, because each deployment counts its own.
//!
//! Invariant: an accepted view is not replaced by an older one unless most sentinels share the older one. A single
//! sentinel with an old view was cut off; if most have one, they were set up again.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use redis::{RedisError, Value, from_redis_value};

use crate::conn::address::{Address, AddressMap};

/// The reply of one sentinel.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) from: Address,
    pub(super) outcome: SentinelAnswer,
    /// The sentinel's own id, if it reports one.
    pub(super) id: Option<String>,
    /// The other sentinels that it knows; `None` if it does not report them.
    pub(super) peers: Option<Vec<Peer>>,
}

/// The outcome of asking one sentinel for the primary.
#[derive(Debug)]
pub(super) enum SentinelAnswer {
    Names(View),
    /// The sentinel watches no primary of that name.
    UnknownName,
    /// The sentinel replied with an error.
    Refused(RedisError),
    /// There is no usable reply, for this reason.
    NoReply(String),
}

/// A sentinel that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: Address,
    pub(super) id: Option<String>,
}

impl Reply {
    /// A reply without an id and peers.
    pub(super) fn bare(from: Address, outcome: SentinelAnswer) -> Self {
        Self {
            from,
            outcome,
            id: None,
            peers: None,
        }
    }

    /// Parses the replies to `SENTINEL MASTER`, `GET-MASTER-ADDR-BY-NAME`, `SENTINELS` and `MYID`.
    ///
    /// The second reply has the address, because it changes as soon as a replica is promoted; the first changes only
    /// when all other replicas follow. The epoch is asked for before the address, so an address is never considered
    /// newer than it is.
    /// `map` translates the addresses.
    pub(super) fn of(from: Address, replies: Vec<Value>, map: &AddressMap) -> Self {
        let Ok([primary, address, peers, id]) = <[Value; 4]>::try_from(replies) else {
            let why = "its answer is incomplete".to_owned();
            return Self::bare(from, SentinelAnswer::NoReply(why));
        };
        let outcome = match (address.extract_error(), primary.extract_error()) {
            (Ok(Value::Nil), _) => SentinelAnswer::UnknownName,
            (Err(no), _) | (_, Err(no)) => SentinelAnswer::Refused(no),
            (Ok(address), Ok(primary)) => view(address, primary, map).map_or_else(
                || SentinelAnswer::NoReply("its answer makes no sense".to_owned()),
                SentinelAnswer::Names,
            ),
        };
        Self {
            from,
            outcome,
            id: from_redis_value(id)
                .ok()
                .filter(|id: &String| !id.is_empty()),
            peers: peers.extract_error().ok().map(|list| peers_in(list, map)),
        }
    }

    pub(super) fn view(&self) -> Option<&View> {
        match &self.outcome {
            SentinelAnswer::Names(view) => Some(view),
            _ => None,
        }
    }
}

fn view(address: Value, primary: Value, map: &AddressMap) -> Option<View> {
    let (host, port): (String, u16) = from_redis_value(address).ok()?;
    let primary: HashMap<String, Value> = from_redis_value(primary).ok()?;
    let epoch = primary.get("config-epoch")?.clone();
    Some(View {
        primary: map.resolve(Address::new(host, port)),
        epoch: from_redis_value(epoch).ok()?,
    })
}

/// Returns the peers in a list of descriptions. Peers without an address are left out.
fn peers_in(list: Value, map: &AddressMap) -> Vec<Peer> {
    let list: Vec<HashMap<String, Value>> = from_redis_value(list).unwrap_or_default();
    list.into_iter()
        .filter_map(|mut one| {
            let host: String = from_redis_value(one.remove("ip")?).ok()?;
            let port: u16 = from_redis_value(one.remove("port")?).ok()?;
            let id = one.remove("runid").and_then(|id| from_redis_value(id).ok());
            (!host.is_empty() && port != 0).then(|| Peer {
                address: map.resolve(Address::new(host, port)),
                id: id.filter(|id: &String| !id.is_empty()),
            })
        })
        .collect()
}

/// The sentinels that have replied so far.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSentinels {
    names: BTreeSet<String>,
    /// The addresses of their replies.
    addresses: BTreeSet<String>,
    /// The largest number of sentinels that replied at once.
    count: usize,
}

impl KnownSentinels {
    /// Records the sentinels that have replied.
    pub(super) fn record(&mut self, counted: &[&Reply]) {
        let names: BTreeSet<String> = counted.iter().flat_map(|one| names(one, counted)).collect();
        if self.names.is_disjoint(&names) {
            *self = Self::default();
        }
        self.names.extend(names);
        self.addresses
            .extend(counted.iter().map(|one| one.from.to_string()));
        self.count = self.count.max(counted.len());
    }
}

/// Returns the name of a sentinel: its id. The address is used only for a sentinel that reports no id to this client,
/// because another deployment may have taken over the address.
fn own_name(reply: &Reply) -> String {
    let id = reply.id.clone();
    id.unwrap_or_else(|| reply.from.to_string())
}

/// Returns the names of the peers, which show to which deployment a sentinel belongs; its own name if it knows no
/// other. It is no evidence that others name a sentinel, because they may not know yet that it watches the primary of
/// another deployment.
fn evidence(reply: &Reply, all: &[&Reply]) -> BTreeSet<String> {
    let has_no_id = |at: &Address| all.iter().any(|one| one.id.is_none() && one.from == *at);
    let peers = reply.peers.iter().flatten().flat_map(|peer| {
        let is_at = peer.id.is_none() || has_no_id(&peer.address);
        let address = is_at.then(|| peer.address.to_string());
        peer.id.clone().into_iter().chain(address)
    });
    let mut names: BTreeSet<String> = peers.collect();
    if names.is_empty() {
        names.insert(own_name(reply));
    }
    names
}

/// Returns the names of a sentinel and its peers.
fn names(reply: &Reply, all: &[&Reply]) -> BTreeSet<String> {
    let mut names = evidence(reply, all);
    names.insert(own_name(reply));
    names
}

/// Sentinels that know each other, directly or through others.
#[derive(Default)]
struct Deployment<'a> {
    names: BTreeSet<String>,
    evidence: BTreeSet<String>,
    members: Vec<&'a Reply>,
}

/// Groups the sentinels that name a primary. The second list has the sentinels that do not report their peers.
fn deployments(replies: &[Reply]) -> (Vec<Deployment<'_>>, Vec<&Reply>) {
    let naming = replies.iter().filter(|one| one.view().is_some());
    let (telling, silent): (Vec<_>, Vec<_>) = naming.partition(|one| one.peers.is_some());
    let mut deployments: Vec<Deployment<'_>> = Vec::new();
    for one in telling.iter().copied() {
        let mut joined = Deployment {
            names: names(one, &telling),
            evidence: evidence(one, &telling),
            members: vec![one],
        };
        deployments.retain_mut(|deployment| {
            let is_the_same = !deployment.evidence.is_disjoint(&joined.names)
                && !joined.evidence.is_disjoint(&deployment.names);
            if is_the_same {
                joined.names.append(&mut deployment.names);
                joined.evidence.append(&mut deployment.evidence);
                joined.members.append(&mut deployment.members);
            }
            !is_the_same
        });
        deployments.push(joined);
    }
    (deployments, silent)
}

/// Returns the replies that count. All count while they name the `last` primary, or, before there is one, a single
/// primary. Otherwise only the deployment of known sentinels counts, unless another deployment has more sentinels than
/// ever replied of the known ones. At first the largest deployment counts. `None` if no deployment is the largest.
pub(super) fn of_one_deployment<'a>(
    replies: &'a [Reply],
    known: &KnownSentinels,
    last: Option<&View>,
) -> Option<Vec<&'a Reply>> {
    let (deployments, silent) = deployments(replies);
    let members = deployments.iter().flat_map(|one| &one.members);
    let mut primaries = members.filter_map(|one| Some(&one.view()?.primary));
    let first = last
        .map(|last| &last.primary)
        .or_else(|| primaries.clone().next());
    if primaries.all(|primary| Some(primary) == first) {
        return Some(replies.iter().filter(|one| one.view().is_some()).collect());
    }
    let (mut ours, mut foreign): (Vec<_>, Vec<_>) = deployments
        .into_iter()
        .partition(|one| !one.evidence.is_disjoint(&known.names));
    if ours.is_empty() {
        // All known sentinels may have been set up again at their addresses, with new ids.
        let is_new = |id: &String| !known.names.contains(id);
        let was_there = |one: &&Reply| {
            known.addresses.contains(&one.from.to_string()) && one.id.as_ref().is_none_or(is_new)
        };
        (ours, foreign) = foreign
            .into_iter()
            .partition(|one| one.members.iter().any(was_there));
    }
    let ours: Vec<&Reply> = ours.into_iter().flat_map(|one| one.members).collect();
    let most = foreign.iter().map(|one| one.members.len()).max();
    let mut counted = match most.filter(|most| *most > known.count.max(ours.len())) {
        None => ours,
        Some(most) => {
            let largest = foreign.into_iter().filter(|one| one.members.len() == most);
            match <[Deployment<'_>; 1]>::try_from(largest.collect::<Vec<_>>()) {
                Ok([largest]) => largest.members,
                Err(_) => return None,
            }
        }
    };
    counted.extend(silent);
    Some(counted)
}

/// Returns the views in these replies.
pub(super) fn views(counted: &[&Reply]) -> Vec<View> {
    let views = counted.iter().filter_map(|reply| reply.view());
    views.cloned().collect()
}

/// The primary and its epoch, as one sentinel sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) primary: Address,
    /// Grows with every failover.
    pub(super) epoch: u64,
}

/// Returns the view to act on, given the views of some of the `sentinels` and the `last` view that was acted on.
///
/// The most common of the newest views wins. They can differ only during a failover, when the last primary is being
/// replaced.
pub(super) fn believed(views: &[View], sentinels: usize, last: Option<&View>) -> Option<View> {
    let newest = views.iter().map(|view| view.epoch).max()?;
    let is_old = last.is_some_and(|last| newest < last.epoch);
    if is_old && shared_by_most(views, sentinels).is_none() {
        return None;
    }
    let votes = |view: &View| views.iter().filter(|other| *other == view).count();
    let newest = views.iter().filter(|view| view.epoch == newest);
    let best = newest.max_by_key(|view| {
        // An equally new view never displaces the last one. Otherwise two sentinels that were set up again and
        // disagree would take turns.
        let is_better =
            last.is_none_or(|last| (last.primary != view.primary) == (view.epoch > last.epoch));
        (votes(view), is_better)
    });
    best.cloned()
}

/// Returns the view that deposes the primary of the `last` view, if there is one: it is later, names another primary,
/// and is shared by most sentinels. A single sentinel may be wrong, and older views depose no primary.
pub(super) fn deposing(views: &[View], sentinels: usize, last: &View) -> Option<View> {
    let shared = shared_by_most(views, sentinels)?;
    let deposes = shared.epoch > last.epoch && shared.primary != last.primary;
    deposes.then(|| shared.clone())
}

/// Returns the view that a majority of all sentinels share, including sentinels without a reply.
pub(super) fn shared_by_most(views: &[View], sentinels: usize) -> Option<&View> {
    views.iter().find(|view| {
        let votes = views.iter().filter(|other| *other == *view).count();
        votes * 2 > sentinels
    })
}
