//! A cluster: each command goes to the node that serves the slot of its key.
//!
//! We route commands ourselves, with one server per node, because order and outcome matter more here than convenience:
//! a command is sent again only if a node replied that it did not execute it. With sharded channels, each node has a
//! link for subscriptions only ([`PushState`](super::push::PushState) gives the reason), and commands that must follow
//! a subscription wait until it has ended.
//!
//! ```text
//! map.rs          pure: slots, views of nodes, redirections
//! route.rs        the node for each command; redirections followed; the barrier behind subscriptions
//! refresh.rs      the task that keeps the map up to date, and the questions to nodes
//! ```

mod map;
mod refresh;
mod route;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::ConnectionInfo;
use tokio::task::AbortHandle;

use self::map::slot_of;
use self::route::Router;
use super::address::Address;
use super::error_reply::connect_error;
use super::setup::Setup;
use super::single::Nodes;
use super::transport::{Channels, Commands, Fault, Lane, LinkState, Recipient, Replies, Transport};
use crate::api::error::Error;

#[derive(Debug)]
pub(crate) struct Cluster {
    router: Arc<Router>,
    refresh: AbortHandle,
}

impl Cluster {
    /// Connects to a cluster, with the map from its seeds.
    pub(crate) async fn connect(
        seeds: Vec<Address>,
        model: ConnectionInfo,
        setup: Setup,
    ) -> Result<Self, Error> {
        let nodes = Nodes::new(model, setup);
        let (answered, view) = refresh::discover(&nodes, &seeds, None, &seeds)
            .await
            .map_err(no_seed)?;
        let channels = refresh::channels(&nodes, &answered).await;
        let channels = channels.map_err(|fault| connect_error(fault, &answered.to_string()))?;
        let router = Arc::new(Router::new(nodes, seeds, channels));
        let mark = router.refresh_wanted.mark();
        router.adopt(&view);
        let refresh = refresh::run(Arc::clone(&router), view, mark);
        let refresh = router.nodes.setup().network.spawn(refresh);
        Ok(Self { router, refresh })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.refresh.abort();
    }
}

/// The error of a connect without a map from any seed. An error reply of one seed says more than the silence of
/// another.
fn no_seed(faults: Vec<(Address, Fault)>) -> Error {
    let mut silent = Vec::new();
    for (address, fault) in faults {
        match fault {
            Fault::Answered(_) | Fault::Declined(_) => {
                return connect_error(fault, &address.to_string());
            }
            Fault::Unsent(why) | Fault::Unknown(why) => silent.push(why.to_string()),
        }
    }
    let why = format!("no node of the cluster answers ({})", silent.join("; "));
    connect_error(Fault::Unsent(why.into()), "")
}

impl Transport for Cluster {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: Commands<'a>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>> {
        if route.is_empty() {
            return (self.router)
                .exchange_with_any(lane, commands, limit)
                .boxed();
        }
        self.router.exchange(lane, route, commands, limit).boxed()
    }

    fn submit(
        &self,
        lane: Lane,
        route: &str,
        commands: Commands<'_>,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        // An attempt on the push lane may have to wait for a subscription.
        let owner = self.router.owner(route).ok().filter(|_| lane != Lane::Push);
        owner.is_some_and(|node| node.server.link(lane).submit(commands, limit, to))
    }

    fn link_state(&self, lane: Lane, route: &str) -> Option<LinkState> {
        let node = self.router.owner(route).ok()?;
        Some(self.router.link(&node, lane, false).state())
    }

    fn slot(&self, route: &str) -> u16 {
        slot_of(route.as_bytes())
    }

    fn splits_slots(&self) -> bool {
        true
    }

    fn server(&self, route: &str) -> u64 {
        // A server exists for as long as this does, so its address in memory identifies it.
        let owner = self.router.owner(route);
        owner.map_or(0, |node| Arc::as_ptr(&node.server).addr() as u64)
    }

    fn address(&self) -> &str {
        self.router.address()
    }

    fn routes(&self) -> Vec<String> {
        self.router.map.read().routes()
    }

    fn channels(&self) -> Channels {
        self.router.channels
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.router.nodes.setup().network.spawn(task);
    }
}
