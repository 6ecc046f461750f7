//! The servers of a client as its transport: one server, the nodes of a cluster, or a primary behind sentinels. That
//! decides which link serves a key and what a fault means. The rest is here, once for all of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join};
use redis::Cmd;
use tokio::task::JoinSet;

use super::address::listed;
use super::cluster::{self, Router, slot_of};
use super::error_reply::{connect_error, is_temporary, not_a_primary};
use super::link::Link;
use super::sentinel::{CurrentPrimary, follow};
use super::setup::{Network, Setup};
use super::single::SingleServer;
use super::transport::{Channels, Fault, Lane, LinkState, Recipient, Replies, Transport, command};
use super::url::{Target, TargetKind};
use crate::api::error::{Error, Result};

#[derive(Debug)]
struct Servers {
    address: String,
    network: Network,
    topology: Topology,
    /// Keeps the topology up to date. Ends with this.
    _task: JoinSet<()>,
}

#[derive(Debug)]
enum Topology {
    Single(SingleServer),
    Cluster(Arc<Router>),
    Sentinel(Arc<CurrentPrimary>),
}

/// Connects to the target of a URL.
pub(crate) async fn connect(target: Target, setup: Setup) -> Result<Arc<dyn Transport>> {
    let (network, limit) = (setup.network.clone(), setup.step_timeout);
    let is_lazy = setup.is_lazy;
    let mut task = JoinSet::new();
    let Target { kind, model } = target;
    let db = model.redis_settings().db();
    let (address, topology) = match kind {
        TargetKind::Single => {
            let address = format!("{}/{db}", model.addr());
            let server = SingleServer::new(model, &setup);
            (address, Topology::Single(server))
        }
        TargetKind::Cluster { .. } if is_lazy => {
            return Err(Error::invalid(
                "connect",
                "a client of a cluster cannot be lazy, because only the nodes tell how its channels \
                 work; leave out ClientBuilder::lazy, and build the client when the \
                 cluster is up",
            ));
        }
        TargetKind::Cluster { seeds } => {
            let address = listed(&seeds);
            let (router, refresh) = cluster::connect(seeds, model, setup).await?;
            task.spawn(network.task(refresh));
            (address, Topology::Cluster(router))
        }
        TargetKind::Sentinel {
            sentinels,
            primary: name,
            sentinel_model,
        } => {
            let address = format!("sentinel:{name}@{}/{db}", listed(&sentinels));
            let models = [sentinel_model, model];
            let connected = follow::connect(sentinels, name, models, setup).await?;
            let (primary, following) = connected;
            task.spawn(network.task(following));
            (address, Topology::Sentinel(primary))
        }
    };
    let servers = Servers {
        address,
        network,
        topology,
        _task: task,
    };
    if !is_lazy {
        servers.check(limit).await?;
    }
    Ok(Arc::new(servers))
}

/// Tries a script, so that a server or a user without scripts is reported when the client connects. In a cluster, the
/// first node that can be reached and does not refuse it for now is enough.
pub(crate) async fn can_run_scripts(transport: &dyn Transport, limit: Duration) -> Result<()> {
    let probe = command(&["EVAL", "return 1", "0"]);
    let mut refused = connect_error(Fault::Unsent("no node serves any slot".into()), "");
    for route in transport.routes() {
        let sent = transport.send(Lane::Command, &route, &probe, limit).await;
        let Err(fault) = sent else {
            return Ok(());
        };
        let is_final = match &fault {
            Fault::Unsent(_) => false,
            fault => !fault.answer().is_some_and(is_temporary),
        };
        refused = connect_error(fault, &transport.endpoint(&route));
        if is_final {
            break;
        }
    }
    Err(refused)
}

impl Servers {
    /// Whether a client can work with them. A topology has checked the rest when it connected.
    async fn check(&self, limit: Duration) -> Result<()> {
        let runs_scripts = can_run_scripts(self, limit);
        let Topology::Single(server) = &self.topology else {
            return runs_scripts.await;
        };
        let at = self.endpoint("");
        let failed = |fault| connect_error(fault, &at);
        server.open().await.map_err(failed)?;
        // Both in one round trip.
        let (is_primary, runs_scripts) = join(server.is_primary(limit), runs_scripts).await;
        if !is_primary.map_err(failed)? {
            return Err(not_a_primary(&at));
        }
        runs_scripts
    }

    /// Calls `then` with the link that serves `route` now; `None` if there is none.
    fn at_link<T>(&self, lane: Lane, route: &str, then: impl FnOnce(&Link) -> T) -> Option<T> {
        match &self.topology {
            Topology::Single(server) => Some(then(server.link(lane))),
            Topology::Cluster(router) => {
                let node = router.owner(route).ok()?;
                Some(then(node.server.link(lane)))
            }
            Topology::Sentinel(current) => {
                let (primary, _) = current.get().ok()?;
                Some(then(primary.link(lane)))
            }
        }
    }

    fn cluster(&self) -> Option<&Router> {
        match &self.topology {
            Topology::Cluster(router) => Some(router),
            _ => None,
        }
    }
}

impl Transport for Servers {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, std::result::Result<Replies, Fault>> {
        match &self.topology {
            Topology::Single(server) => server.link(lane).exchange(commands, limit).boxed(),
            Topology::Cluster(router) => router.exchange(lane, route, commands, limit).boxed(),
            Topology::Sentinel(current) => current.exchange(lane, commands, limit).boxed(),
        }
    }

    fn submit(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        if let (Lane::Push, Channels::Plain, Some(nodes)) = (lane, self.channels(), self.cluster())
        {
            // The end of a subscription, which goes on at the node where it was made, whatever node has its slot by now.
            nodes.at_others(route, |node| {
                node.link(lane).submit(commands, limit, Arc::new(()));
            });
        }
        // Once another server is the primary, no connection to this one is used any longer.
        let is_sent = self.at_link(lane, route, |link| link.submit(commands, limit, to));
        is_sent.unwrap_or(false)
    }

    fn link_state(&self, lane: Lane, route: &str) -> Option<LinkState> {
        self.at_link(lane, route, Link::state)
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.network.spawn(task);
    }

    fn slot(&self, route: &str) -> u16 {
        self.cluster().map_or(0, |_| slot_of(route.as_bytes()))
    }

    fn splits_slots(&self) -> bool {
        self.cluster().is_some()
    }

    fn server(&self, route: &str) -> u64 {
        let owner = self.cluster().and_then(|router| router.owner(route).ok());
        owner.map_or(0, |node| node.server.number)
    }

    fn routes(&self) -> Vec<String> {
        self.cluster()
            .map_or_else(|| vec![String::new()], Router::routes)
    }

    fn channels(&self) -> Channels {
        self.cluster()
            .map_or(Channels::Plain, |router| router.channels)
    }

    fn is_single_server(&self) -> bool {
        matches!(self.topology, Topology::Single(_))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::conn::tests::{BOUND, FakeServer, at_once, bulk};
    use crate::conn::url;

    /// A node that loads its data after a restart, say, or was demoted.
    #[tokio::test]
    async fn scripts_are_tried_at_the_next_node_if_one_refuses_them_for_now() {
        for (handshake, eval, is_asked) in
            [("-ERR no", "-LOADING", true), ("-LOADING", ":1", false)]
        {
            let slots = Arc::<OnceLock<String>>::default();
            let asked = Arc::<AtomicUsize>::default();
            let (map, evals) = (Arc::clone(&slots), Arc::clone(&asked));
            let refuses = FakeServer::start(move |asked| match asked {
                "EVAL return 1 0" => {
                    evals.fetch_add(1, Ordering::SeqCst);
                    at_once(eval)
                }
                "CLUSTER SLOTS" => at_once(map.get()?),
                _ => at_once(handshake),
            });
            let (refuses, map) = (refuses.await, Arc::clone(&slots));
            let works = FakeServer::start(move |asked| match asked {
                "EVAL return 1 0" => at_once(":1"),
                "CLUSTER SLOTS" => at_once(map.get()?),
                _ => at_once("-ERR no"),
            });
            let works = works.await;
            let range = |first: u16, last: u16, node: &FakeServer| {
                let (host, port) = (bulk(&node.address.host), node.address.port);
                format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n{host}\r\n:{port}")
            };
            let [few, most] = [range(0, 1, &works), range(2, 16_383, &refuses)];
            slots
                .set(format!("*2\r\n{few}\r\n{most}"))
                .expect("it is new");
            let url = format!("redis+cluster://{},{}", refuses.address, works.address);
            let target = url::parse(&url).expect("a URL");
            let connected = connect(target, Setup::sample(BOUND)).await;
            connected.expect("one node runs scripts");
            assert_eq!(asked.load(Ordering::SeqCst) > 0, is_asked, "{handshake}");
        }
    }
}
