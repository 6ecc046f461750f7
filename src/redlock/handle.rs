//! The base of a handle on a Redlock: one handle on the member at each server, the options of the whole, and the
//! questions to all servers that acquire nothing: the holder of the lock, and its forced release.
//!
//! Invariant: an answer is the answer of a majority. A server that does not answer may know of a hold that the others
//! lack, and a restarted server may have forgotten one. While such servers could complete a majority, there is no
//! answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::round::QuorumRequest;
use super::servers::Servers;
use super::tally::{Tally, VoteOutcome, quorum};
use crate::api::error::{Error, Result};
use crate::api::handle::Handle;
use crate::api::holder::{Holder, Owner};
use crate::api::options::{LeasePolicy, Options};
use crate::engine::acquire::LockRequest;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::reentrant::PROTOCOL;

/// The time that a server has to answer, as a part of the lease, and its bounds.
const VOTE_TIMEOUT_PART: u32 = 6;
pub(super) const VOTE_TIMEOUT_MIN: Duration = Duration::from_millis(50);
const VOTE_TIMEOUT_MAX: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct QuorumHandle {
    pub(super) servers: Arc<Servers>,
    /// One member per server.
    pub(super) members: Arc<[Handle]>,
    pub(super) options: Options,
}

/// Returns how long a server has to answer a request for this lease.
fn vote_timeout(lease: Duration) -> Duration {
    let timeout = (lease / VOTE_TIMEOUT_PART).clamp(VOTE_TIMEOUT_MIN, VOTE_TIMEOUT_MAX);
    timeout.min(lease / 3)
}

impl QuorumHandle {
    pub(super) fn new(servers: &Arc<Servers>, name: &str) -> Self {
        let clients = servers.clients.iter();
        let members = clients.map(|client| Handle::new(client, name, &PROTOCOL, Mode::Exclusive));
        Self {
            servers: Arc::clone(servers),
            members: members.collect(),
            options: Options::default(),
        }
    }

    /// Makes the requests of one call, one per server.
    ///
    /// # Errors
    /// If the name or an option cannot work.
    pub(super) fn request(&self, operation: &'static str) -> Result<QuorumRequest> {
        let name = self.members[0].name(operation)?.as_str();
        let policy = self.policy();
        let policy = policy.map_err(|error| error.during(operation).of_lock(name))?;
        // A new owner, so that a call for one of the members alone never enters its hold.
        let voter = Owner::new();
        let requests = self.members.iter().map(|member| {
            let options = Options {
                owner: Some(voter.clone()),
                policy: Some(policy),
                // The policy includes this bound.
                max_hold: None,
                replication: self.options.replication.or(member.options.replication),
                give_up: self.options.give_up.or(member.options.give_up),
                ..self.options.clone()
            };
            member.asking(options.into(), operation)
        });
        let requests: Arc<[_]> = requests.collect::<Result<_>>()?;
        let give_up = requests
            .iter()
            .map(LockRequest::give_up)
            .min()
            .unwrap_or_default();
        Ok(QuorumRequest {
            requests,
            vote_timeout: vote_timeout(policy.lease()).min(give_up),
            servers: Arc::clone(&self.servers),
        })
    }

    pub(super) fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Sets the group for the metrics.
    pub(super) fn set_group(&mut self, name: &str) {
        self.options.group = self.members[0].core().observed().group(name);
    }

    fn policy(&self) -> Result<LeasePolicy> {
        let leases = self.members.iter().map(|member| member.core().timing.lease);
        let policy = self.options.policy(leases.min().unwrap_or_default())?;
        let lease = policy.lease();
        match self.servers.longest_lease {
            // After a restart, other processes wait only for the longest lease.
            Some(longest) if lease > longest => {
                let message = format!(
                    "a lease of {lease:?} is longer than the {longest:?} after which a restarted \
                     server votes again; set RedlockBuilder::longest_lease to the longest lease in \
                     use"
                );
                Err(Error::invalid("lock", message))
            }
            _ => Ok(policy),
        }
    }

    pub(super) fn given_name(&self) -> &str {
        self.members[0].given_name()
    }

    /// Writes the handle for `Debug`, on one line.
    pub(super) fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("name", &self.given_name());
        let addresses = self.servers.addresses();
        shown.field("servers", &addresses.collect::<Vec<_>>());
        self.options.show(&mut shown);
        shown.finish()
    }
}

/// Questions and commands to all servers at once without acquiring the lock.
impl QuorumHandle {
    /// Asks all members at once, within this handle's limit. Each answer comes with the number of its server.
    fn ask_all<T, F: Future<Output = Result<T>>>(
        &self,
        ask: impl Fn(Handle) -> F,
    ) -> FuturesUnordered<impl Future<Output = (usize, Result<T>)>> {
        let members = self.members.iter().cloned().enumerate();
        let asked = members.map(|(at, mut member)| {
            member.options_mut().give_up = self.options.give_up;
            ask(member).map(move |answer| (at, answer))
        });
        asked.collect()
    }

    /// Returns the holders that a majority of the servers names; none if there can be no majority.
    pub(super) async fn holders(&self, operation: &'static str) -> Result<Vec<Holder>> {
        let name = self.members[0].name(operation)?;
        let count = self.members.len();
        let quorum = quorum(count);
        let mut tally = Tally::new(count);
        let ask = |member: Handle| async move { member.holder(operation).await };
        let mut answers = self.ask_all(ask);
        let mut seen: Vec<(usize, Option<Holder>)> = Vec::new();
        while let Some((at, answer)) = answers.next().await {
            tally.record(
                at,
                match &answer {
                    Ok(Some(_)) => VoteOutcome::HeldElsewhere(None),
                    Ok(None) => VoteOutcome::Free,
                    Err(error) => VoteOutcome::Failed(error.clone()),
                },
            );
            seen.extend(answer.map(|holder| (at, holder)));
            // The answers of the other servers may disqualify one.
            tally.retain(&mut seen, |at, holder| match holder {
                Some(_) => self.servers.duplicate(at),
                None => self.servers.disqualified(at),
            });
            let held = seen.iter().filter(|(_, holder)| holder.is_some()).count();
            if held >= quorum {
                return Ok(seen.into_iter().filter_map(|(_, holder)| holder).collect());
            }
            if count + held - seen.len() < quorum {
                return Ok(Vec::new());
            }
        }
        Err(self.servers.error(operation, name, &tally))
    }

    /// Frees the lock on every server. Returns whether it was held. Once a majority has answered, the others have the
    /// time of one round.
    pub(super) async fn force_unlock(&self) -> Result<bool> {
        const OPERATION: &str = "force_unlock";
        let name = self.members[0].name(OPERATION)?;
        let quorum = quorum(self.members.len());
        let mut tally = Tally::new(self.members.len());
        let ask = |member: Handle| async move { member.force_unlock().await };
        let mut answers = self.ask_all(ask);
        let core = self.members[0].core();
        let (mut done, mut was_held) = (0, false);
        let mut end = Tick::NEVER;
        loop {
            let limit = core.clock.now().until(end);
            let answer = core.clock.within(limit, answers.next()).await;
            let Some((at, answer)) = answer.flatten() else {
                break;
            };
            let outcome = match answer {
                Ok(freed) => {
                    done += 1;
                    if done == quorum {
                        let slack = vote_timeout(core.timing.lease);
                        end = core.clock.now().after(slack);
                    }
                    was_held |= freed;
                    VoteOutcome::Free
                }
                Err(error) => VoteOutcome::Failed(error),
            };
            tally.record(at, outcome);
        }
        if done < quorum {
            return Err(self.servers.error(OPERATION, name, &tally));
        }
        Ok(was_held)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use crate::client::Client;
    use crate::redlock::Redlock;
    use crate::script::catalog::REENTRANT_FORCE_UNLOCK;
    use crate::testing::{Answer, Scripted};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Two of five servers are slow, and the second is slower than the first.
    #[tokio::test(start_paused = true)]
    async fn the_servers_that_a_majority_has_left_behind_have_half_a_second_together() {
        let client = |(address, slow): (&'static str, u32)| {
            let server = Scripted::at(address, move |sent| {
                assert_eq!(sent.words[1], REENTRANT_FORCE_UNLOCK.sha());
                Answer::Late(MS * slow, Value::Int(1))
            });
            Client::over(&server, MS * 30_000)
        };
        let nodes = [
            ("a:1", 1),
            ("b:2", 1),
            ("c:3", 1),
            ("d:4", 450),
            ("e:5", 900),
        ];
        let redlock = Redlock::builder(nodes.map(client)).persistent_nodes();
        let lock = redlock.build().unwrap().lock("x");
        let since = tokio::time::Instant::now();
        assert!(lock.force_unlock().await.unwrap());
        let took = since.elapsed();
        assert!(took <= MS * 501, "{took:?}");
    }
}
