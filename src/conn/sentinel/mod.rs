//! A primary with replicas, followed through failovers by asking sentinels.
//!
//! Invariant: a command goes to the server that is the primary at that time, and its reply counts only if that server
//! is still the primary. Late commands do no harm: docs/design/ordering.md has the argument. Grants of the old
//! primary after the promotion are lost, and every hold is checked at the switch.

mod current_primary;
mod deployment;
mod diagnosis;
mod follow;
mod reply;
mod sentinels;
mod view;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::ConnectionInfo;

use self::current_primary::CurrentPrimary;
use self::follow::{Follower, Following};
use self::sentinels::Sentinels;
use super::address::Address;
use super::network::Network;
use super::nodes::Nodes;
use super::setup::{Opening, Setup};
use super::topology::Transport;
use super::transport::{Commands, Fault, Lane, LinkState, Replies};
use crate::api::error::Error;

#[derive(Debug)]
pub(super) struct FollowedPrimary {
    address: String,
    current: Arc<CurrentPrimary>,
    network: Network,
    /// Ends the task on drop.
    _following: Following,
}

impl FollowedPrimary {
    /// Finds the primary that these sentinels know under this name, at once or in the background, and follows it. The
    /// models are the connection settings for a sentinel and for a server.
    pub(super) async fn connect(
        sentinels: Vec<Address>,
        name: String,
        [sentinel_model, model]: [ConnectionInfo; 2],
        setup: Setup,
        opening: Opening,
    ) -> Result<Self, Error> {
        let mut shown: Vec<String> = sentinels.iter().map(Address::to_string).collect();
        shown.sort_unstable();
        shown.dedup();
        let db = model.redis_settings().db();
        let address = format!("sentinel:{name}@{}/{db}", shown.join(","));
        let current = Arc::new(CurrentPrimary::unknown(Arc::clone(&setup.events)));
        let sentinels = Sentinels::new(sentinels, &name, sentinel_model, &setup);
        let clock = setup.clock;
        let limit = setup.reply_timeout;
        let network = setup.network.clone();
        let nodes = Nodes::new(model, setup);
        let mut follower =
            Follower::new(name, sentinels, nodes, Arc::clone(&current), clock, limit);
        if opening == Opening::Eager {
            follower.find().await?;
        }
        Ok(Self {
            address,
            current,
            network,
            _following: follower.start(),
        })
    }
}

impl Transport for FollowedPrimary {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        _route: &'a str,
        commands: Commands<'a>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>> {
        let exchanged = async move {
            let (primary, mark) = self.current.get()?;
            let replies = primary.link(lane).exchange(commands, limit);
            self.current.during(mark, replies).await
        };
        exchanged.boxed()
    }

    fn link_state(&self, lane: Lane, _route: &str) -> Option<LinkState> {
        let (primary, _) = self.current.get().ok()?;
        Some(primary.link(lane).state())
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.network.spawn(task);
    }
}
