//! Makes a replica a primary, by command or by killing its primary.

use std::time::Duration;

use super::Cluster;
use super::form::tell;
use super::view::{View, owner};
use crate::server::Server;
use crate::wait::reached;

/// How long a change of the primary may take. A failed election is repeated.
const BOUND: Duration = Duration::from_secs(30);

/// After 5 s without progress, a server silently aborts a manual failover. Then it is requested
/// again.
const ONE_ATTEMPT: Duration = Duration::from_secs(7);

/// How often a failover is requested before the test fails.
const ATTEMPTS: usize = 3;

/// The mode of [`Cluster::fail_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOver {
    /// The primary stops serving until the replica has all its data. Nothing is lost.
    Graceful,
    /// The replica does not involve the primary, and only asks the other primaries for their votes.
    /// Data that it has not received is lost.
    Force,
    /// The replica takes over without votes.
    Takeover,
}

/// Every method panics if the change does not happen within its bound, with a list of what is
/// missing.
impl Cluster {
    /// Makes the first replica of the key's slot its primary.
    ///
    /// Returns the former primary once every node that answers knows the new one. A failover
    /// without effect is requested twice more, every 7 s.
    pub async fn fail_over(&self, key: &str, mode: FailOver) -> &Server {
        let slot = self.slot(key).await;
        let old = self.owner_of(slot).await;
        // Only a graceful failover needs the primary, which may be dead.
        let new = self.follower_of(slot, mode == FailOver::Graceful).await;
        let command: &[&str] = match mode {
            FailOver::Graceful => &["CLUSTER", "FAILOVER"],
            FailOver::Force => &["CLUSTER", "FAILOVER", "FORCE"],
            FailOver::Takeover => &["CLUSTER", "FAILOVER", "TAKEOVER"],
        };
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let mut accepted = false;
            let attempt = reached(ONE_ATTEMPT, async || {
                let outcome = self.agreed(slot, new).await;
                if outcome.is_err() && !accepted {
                    // A replica refuses while its link to the primary is down.
                    tell(new, command).await?;
                    accepted = true;
                }
                outcome
            });
            match attempt.await {
                Ok(()) => return old,
                Err(reason) => last = reason,
            }
        }
        panic!("no failover of slot {slot} to {}: {last}", new.addr());
    }

    /// Kills the primary of the key's slot, and waits until a replica was elected and every node that
    /// answers knows it; within 30 s.
    ///
    /// Returns the dead server. After a [`restart`](Server::restart) it is empty, and joins as a
    /// replica.
    pub async fn kill_primary_of(&self, key: &str) -> &Server {
        let old = self.primary_of(key).await;
        old.kill();
        self.promoted(key, old).await;
        old
    }

    /// Waits up to 30 s until another server than `old` is the primary of the key's slot and every
    /// node that answers knows it. Returns the new primary.
    pub async fn promoted(&self, key: &str, old: &Server) -> &Server {
        let slot = self.slot(key).await;
        let outcome = reached(BOUND, async || {
            let views = View::of_all(&self.nodes).await;
            let new = owner(&views, slot).and_then(|id| self.by_id(id));
            let new = new.ok_or("no node answers")?;
            if new.addr() == old.addr() {
                return Err(format!("{} is still primary", old.addr()));
            }
            self.agreed(slot, new).await.map(|()| new)
        });
        match outcome.await {
            Ok(new) => new,
            Err(reason) => panic!("slot {slot} has no new primary: {reason}"),
        }
    }

    /// Whether every node that answers, including this one, reports that it owns the slot and the
    /// cluster is healthy.
    pub(super) async fn agreed(&self, slot: u16, wanted: &Server) -> Result<(), String> {
        let views = View::of_all(&self.nodes).await;
        for (node, view) in self.nodes.iter().zip(&views) {
            let Some(view) = view else {
                if node.addr() == wanted.addr() {
                    return Err(format!("{} does not answer", node.addr()));
                }
                continue;
            };
            let owner = view.owner(slot).and_then(|(id, _)| self.by_id(id));
            match owner {
                Some(owner) if owner.addr() == wanted.addr() && view.ok => {}
                Some(owner) if owner.addr() == wanted.addr() => {
                    return Err(format!("{} says that the cluster is down", node.addr()));
                }
                Some(owner) => {
                    let owner = owner.addr();
                    return Err(format!("{} says that {owner} owns it", node.addr()));
                }
                None => return Err(format!("{} knows no owner", node.addr())),
            }
        }
        Ok(())
    }
}
