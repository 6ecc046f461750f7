//! The servers of a Redlock and their rules: which can be one, and which has a vote just now.
//!
//! Invariant: servers are as many as were named, whether or not they were ever seen; one that was not
//! seen has no vote.
//!
//! Why a server that was restarted does not vote for a lease: it may have had a vote for a holder
//! that is alive, and may have lost it. That holder asked it last before it went down, so by its own
//! clock its hold there is over a lease after the server came up again. How long a server is up is
//! asked on every connection before that is used, and looked at after the answer came. So it is said of
//! the process that gave the answer, or of one that was started later, and that errs on the safe side.
//! Another process at an address that is known counts from when it was seen there: it may have been up
//! elsewhere, and have taken over.
//!
//! How long a lease is, is known of this process. Others may use longer ones: one that is seen in the way
//! goes for the future, and whoever needs the vote of a server that was started not long ago hears all
//! the others first, as one of them may know of a holder that it has forgotten.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use super::NEW;
use super::health::Health;
use super::tally::{Tally, VoteOutcome};
use crate::client::Client;
use crate::conn::url::{self, Target};
use crate::conn::{Lane, Process, Transport, process};
use crate::error::{Error, Result};
use crate::options::check_lease;
use crate::script::millis;

/// A server that is up for less may have forgotten a vote, if somebody uses leases that long.
const RECENT_START: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Servers {
    pub(super) clients: Vec<Client>,
    /// The client in which tasks of this process wait for each other, whatever the order of the
    /// clients.
    pub(super) queue_client: usize,
    /// `None` if the servers forget nothing.
    pub(super) longest_lease: Option<Duration>,
    /// The longest rest of a lease, in milliseconds, that was seen in the way.
    longest_seen: AtomicU64,
    /// One for each server.
    pub(super) health: Box<[Health]>,
}

impl Servers {
    /// Of `clients`, if they can be one: as far as addresses tell, and servers that were seen.
    pub(super) fn of(
        clients: Vec<Client>,
        longest_lease: Duration,
        is_persistent: bool,
    ) -> Result<Self> {
        let Some(queue_client) =
            (0..clients.len()).min_by_key(|at| transport(&clients[*at]).address())
        else {
            return Err(invalid("a Redlock needs at least one client".to_owned()));
        };
        let mut transports = clients.iter().map(transport);
        if let Some(transport) = transports.find(|transport| !transport.is_single_server()) {
            return Err(no_single_server(transport.address()));
        }
        let leases = clients.iter().map(|client| client.core().timing.lease);
        let longest = leases.max().unwrap_or_default().max(longest_lease);
        check_lease(longest).map_err(|error| error.during(NEW))?;
        let health = clients.iter().map(|_| Health::default()).collect();
        let servers = Self {
            clients,
            queue_client,
            longest_lease: (!is_persistent).then_some(longest),
            longest_seen: AtomicU64::new(0),
            health,
        };
        servers.check_distinct()?;
        Ok(servers)
    }

    /// Of these servers, of which a majority answers.
    pub(super) async fn connect(urls: Vec<String>) -> Result<Self> {
        let mut clients = Vec::with_capacity(urls.len());
        for url in &urls {
            if !matches!(url::parse(url)?, Target::Single(_)) {
                return Err(no_single_server("a cluster or a primary with sentinels"));
            }
            clients.push(Client::builder(url).lazy().build().await?);
        }
        let servers = Self::of(clients, Duration::ZERO, false)?;
        let clients = &servers.clients;
        let answers = join_all(clients.iter().map(check_no_replicas)).await;
        let mut tally = Tally::new(clients.len(), servers.quorum());
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(()) => tally.record(at, VoteOutcome::Reachable),
                // It will not become better, and it is the program that has to be put right.
                Err(error) if error.is_invalid() => {
                    return Err(error.at(transport(&clients[at]).address()));
                }
                Err(error) => tally.record(at, VoteOutcome::Failed(error)),
            }
        }
        servers.check_distinct()?;
        match tally.lacks_voters() {
            true => Err(tally.error("connect", servers.addresses())),
            false => Ok(servers),
        }
    }

    pub(super) fn quorum(&self) -> usize {
        self.clients.len() / 2 + 1
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.clients
            .iter()
            .map(|client| transport(client).address())
    }

    /// A server that is up for less has no vote; `None` if the servers forget nothing.
    fn min_uptime(&self) -> Option<Duration> {
        let longest_seen = Duration::from_millis(self.longest_seen.load(Ordering::Relaxed));
        let longest = self.longest_lease?.max(longest_seen);
        // Clocks differ in rate by up to a hundredth.
        Some(longest + longest / 100)
    }

    /// Somebody has a lock for so long still.
    pub(super) fn observe_lease(&self, remaining: Duration) {
        self.longest_seen
            .fetch_max(millis(remaining), Ordering::Relaxed);
    }

    /// Whether one of these servers may have forgotten a vote with a lease that was not seen.
    pub(super) fn may_have_forgotten(&self, mut servers: impl Iterator<Item = usize>) -> bool {
        let is_young = |at| {
            let process = self.process(at);
            process.is_none_or(|process| self.shortfall(&process, RECENT_START).is_some())
        };
        self.longest_lease.is_some() && servers.any(is_young)
    }

    /// Why what a server has just said is not to be counted.
    pub(super) fn disqualified(&self, at: usize) -> Option<VoteOutcome> {
        let Some(process) = self.process(at) else {
            // A single server that forgets nothing is known well enough.
            let is_known = self.clients.len() == 1 && self.longest_lease.is_none();
            return (!is_known).then_some(VoteOutcome::UnknownUptime);
        };
        let is_same = |other: &usize| self.process(*other).is_some_and(|of| of.is_run(&process));
        if let Some(twin) = (0..at).find(is_same) {
            let address = transport(&self.clients[twin]).address();
            return Some(VoteOutcome::Duplicate(address.to_owned()));
        }
        self.shortfall(&process, self.min_uptime()?)
    }

    /// Why it is no use to ask a server, as far as is known.
    pub(super) fn too_young(&self, at: usize) -> Option<VoteOutcome> {
        self.shortfall(&self.process(at)?, self.min_uptime()?)
    }

    fn shortfall(&self, process: &Process, min_uptime: Duration) -> Option<VoteOutcome> {
        let uptime = process.up_since.until(self.clients[0].core().clock.now());
        let remaining = min_uptime.saturating_sub(uptime);
        (!remaining.is_zero()).then_some(VoteOutcome::TooYoung { uptime, remaining })
    }

    fn process(&self, at: usize) -> Option<Process> {
        transport(&self.clients[at]).process(Lane::Command, "")
    }

    fn check_distinct(&self) -> Result<()> {
        for (at, one) in self.clients.iter().map(transport).enumerate() {
            let other = self.clients[..at].iter().map(transport);
            let mut other = other.enumerate().filter(|(other, transport)| {
                let run = self.process(at);
                let is_run = run.is_some_and(|run| {
                    let other = self.process(*other);
                    other.is_some_and(|other| other.is_run(&run))
                });
                is_run || server(transport.address()) == server(one.address())
            });
            if let Some((_, other)) = other.next() {
                return Err(invalid(format!(
                    "{} and {} are one server, which would have two votes; name each server once",
                    other.address(),
                    one.address()
                )));
            }
        }
        Ok(())
    }
}

/// Whether a server is there, and has no replicas: one that takes over at its address may not have heard
/// of a vote.
async fn check_no_replicas(client: &Client) -> Result<()> {
    client.is_served().await?;
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let limit = client.core().timing.reply;
    let lines = transport(client)
        .send(Lane::Command, "", &info, limit)
        .await;
    let lines = lines.unwrap_or(redis::Value::Nil);
    let mut lines = process::text(&lines).into_iter().flat_map(str::lines);
    let replicas = lines.find_map(|line| line.strip_prefix("connected_slaves:"));
    match replicas.is_some_and(|replicas| replicas.trim() != "0") {
        true => Err(invalid(
            "has replicas, and one that takes over at its address may have missed a vote: take servers \
             without; if none of them ever takes over, give clients to Redlock::new"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

fn transport(client: &Client) -> &dyn Transport {
    &*client.core().scripts.transport
}

fn invalid(message: String) -> Error {
    Error::invalid(NEW, message)
}

fn no_single_server(what: &str) -> Error {
    invalid(format!(
        "{what} is no single server; a Redlock is made of independent ones, and a cluster or \
         a primary with sentinels is used as one by an ordinary client"
    ))
}

/// An address without the number of the database: all of them are one server.
fn server(address: &str) -> &str {
    address
        .rsplit_once('/')
        .map_or(address, |(server, _)| server)
}
