//! The servers of a Redlock: which can be part of it, which have a vote at the moment, and which are down.
//!
//! Invariant: there are as many servers as were named, whether or not they were ever seen; a server that was never seen
//! has no vote.
//!
//! A restarted server has no vote for the longest lease, because it may have forgotten a vote for a holder that is
//! alive. That holder last asked the server before it went down, so by the holder's own clock its hold there ends
//! within a lease after the server came up again. Every connection asks for its server's uptime before it is used, and
//! the uptime is checked after the vote. So the check is about the process that gave the vote, or a later process,
//! which errs on the safe side. The uptime of another process at a known address counts from when it was first seen
//! there, because it may have been up elsewhere and have taken over.
//!
//! A server with replicas has no vote. A replica that takes over at its address would otherwise have a vote at once for
//! every process that has not seen the first server. The server is asked for replicas beside its first vote.
//!
//! The longest lease is known for this process only; other processes may use longer ones. A lease of another holder
//! that was seen counts until it is over and some time longer ([`Sightings`]). If it is longer than all known ones, it
//! may have begun before the restart of a server where it was not seen, so no recently started server has a vote until
//! it is over. Besides, a round that needs the vote of a recently started server awaits the votes of all others first,
//! because one of them may know of a holder that this server has forgotten. The round stops waiting once a majority of
//! servers that have been up for long has granted the lock: then no other majority is possible.
//!
//! A server that is down is dead, silent or out of reach, and calls skip it ([`Health`]). The finding of one call holds
//! for all. A server is down when it cannot be reached, when it does not answer a vote in time, or when a request to it
//! has had no reply at all for that time. Short holds never wait for a minority, so their votes alone would not show
//! it. Invariants: one task asks a server that is down until it answers, and then all holds that lack it are notified;
//! the servers that are not skipped can always make a majority.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::tally::{HAS_REPLICAS, Tally, VoteOutcome, quorum};
use crate::api::error::{Error, Result};
use crate::api::options::check_lease;
use crate::client::Client;
use crate::conn::url::{self, TargetKind};
use crate::conn::{Lane, Process, Transport, value};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::engine::keys::LockName;

/// The operation in errors of making a Redlock.
const NEW: &str = "redlock";

/// A server with a shorter uptime may have forgotten a vote with a lease of this length.
const RECENT_START: Duration = Duration::from_secs(600);

pub(super) struct Servers {
    pub(super) clients: Box<[Client]>,
    /// The numbers of the clients, sorted by address: one order for all Redlocks of these servers.
    pub(super) in_order: Box<[usize]>,
    /// `None` if the servers forget nothing.
    pub(super) longest_lease: Option<Duration>,
    /// Leases of other holders that were seen.
    seen: Mutex<Sightings>,
    /// The servers that are down. The others can always make a majority.
    down: Mutex<BTreeSet<usize>>,
    /// By server.
    health: Box<[Health]>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.addresses()).finish()
    }
}

impl Servers {
    /// Makes the servers of `clients`.
    ///
    /// # Errors
    /// If they cannot make a Redlock, judging by their addresses and by the servers already seen.
    pub(super) fn of(
        clients: Vec<Client>,
        longest_lease: Duration,
        is_persistent: bool,
    ) -> Result<Self> {
        if clients.is_empty() {
            return Err(invalid("a Redlock needs at least one client".to_owned()));
        }
        let mut in_order: Box<[usize]> = (0..clients.len()).collect();
        in_order.sort_by_key(|at| transport(&clients[*at]).address());
        let mut transports = clients.iter().map(transport);
        if let Some(transport) = transports.find(|transport| !transport.is_single_server()) {
            return Err(no_single_server(transport.address()));
        }
        let leases = clients.iter().map(|client| client.core().timing.lease);
        let longest = leases.max().unwrap_or_default().max(longest_lease);
        check_lease(longest).map_err(|error| error.during(NEW))?;
        let servers = Self {
            down: Mutex::default(),
            health: clients.iter().map(|_| Health::default()).collect(),
            clients: clients.into(),
            in_order,
            longest_lease: (!is_persistent).then_some(longest),
            seen: Mutex::default(),
        };
        servers.check_distinct()?;
        Ok(servers)
    }

    /// Connects to the servers at `urls`.
    ///
    /// # Errors
    /// If they cannot make a Redlock, or fewer than a majority answer.
    pub(super) async fn connect(urls: Vec<String>) -> Result<Self> {
        let mut clients = Vec::with_capacity(urls.len());
        for url in &urls {
            if !matches!(url::parse(url)?.kind, TargetKind::Single) {
                return Err(no_single_server("a cluster or a primary with sentinels"));
            }
            clients.push(Client::builder(url).lazy().build().await?);
        }
        let servers = Self::of(clients, Duration::ZERO, false)?;
        let clients = &servers.clients;
        let answers = (0..clients.len()).map(|at| servers.check(at));
        let answers = join_all(answers).await;
        let mut tally = Tally::new(clients.len());
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(()) => tally.record(at, VoteOutcome::Reachable),
                // A repeat would not help: the program has to be changed.
                Err(error) if error.is_invalid() => {
                    return Err(error.at(transport(&clients[at]).address()));
                }
                Err(error) => tally.record(at, VoteOutcome::Failed(error)),
            }
        }
        servers.check_distinct()?;
        if tally.lacks_voters() {
            return Err(tally.error("connect", servers.addresses()));
        }
        Ok(servers)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.clients
            .iter()
            .map(|client| transport(client).address())
    }

    /// Returns a name for these keys, one on each server, in any order of the servers.
    pub(super) fn place_of<'a>(&'a self, keys: impl Iterator<Item = &'a str>) -> Arc<str> {
        let mut each: Vec<(&str, &str)> = self.addresses().zip(keys).collect();
        each.sort_unstable();
        format!("{each:?}").into()
    }

    /// Makes the error that says why no majority has this lock.
    pub(super) fn error(&self, operation: &'static str, name: &LockName, tally: &Tally) -> Error {
        let error = tally.error(operation, self.addresses());
        error.of_lock(name.as_str())
    }

    /// Returns the least uptime of a server with a vote. `None` if the servers forget nothing.
    fn min_uptime(&self) -> Option<Duration> {
        let longest = self.longest_lease?;
        let longest = longest.max(self.seen.lock().longest(self.now()));
        // The rates of clocks differ by up to a hundredth.
        Some(longest + longest / 100)
    }

    /// Notes a lease of another holder with this time left.
    pub(super) fn observe_lease(&self, remaining: Duration) {
        let known = self.longest_lease.unwrap_or_default();
        self.seen.lock().note(remaining, known, self.now());
    }

    /// Whether a server may have forgotten a vote whose lease this process has not seen.
    pub(super) fn may_have_forgotten(&self, at: usize) -> bool {
        let uptime = self.uptime(at);
        self.longest_lease.is_some() && uptime.is_none_or(|uptime| uptime < RECENT_START)
    }

    /// Returns the reason if a server's last answer does not count.
    pub(super) fn disqualified(&self, at: usize) -> Option<VoteOutcome> {
        if self.process(at).is_none() {
            // A single server that keeps every write is not checked further.
            let is_known = self.clients.len() == 1 && self.longest_lease.is_none();
            return (!is_known).then_some(VoteOutcome::UnknownUptime);
        }
        self.duplicate(at).or_else(|| self.too_young(at))
    }

    /// Returns the reason if a server is the same as an earlier one in the list.
    pub(super) fn duplicate(&self, at: usize) -> Option<VoteOutcome> {
        let other = (0..at).find(|other| self.is_same_run(at, *other))?;
        let address = transport(&self.clients[other]).address();
        Some(VoteOutcome::Duplicate(address.to_owned()))
    }

    /// Checks that a server answers and has no replicas.
    async fn check(&self, at: usize) -> Result<()> {
        let client = &self.clients[at];
        client.is_served().await?;
        if self.has_replicas(at, client.core().timing.reply).await {
            return Err(invalid(HAS_REPLICAS.to_owned()));
        }
        Ok(())
    }

    /// Whether a server has replicas. One of them may take over at its address and lack a vote. Asks in each run of the
    /// server until it has reported none, for at most `limit` each time. Never asks servers that are declared
    /// persistent.
    pub(super) async fn has_replicas(&self, at: usize, limit: Duration) -> bool {
        let run = self.process(at).map(|process| process.run_id);
        let is_known = run.is_some() && *self.health[at].without_replicas.lock() == run;
        if is_known || self.longest_lease.is_none() {
            return false;
        }
        let has_replicas = has_replicas(&self.clients[at], limit).await;
        let now = self.process(at).map(|process| process.run_id);
        // If another run of the server may have answered, the server is asked again.
        if has_replicas == Some(false) && (run.is_none() || run == now) {
            *self.health[at].without_replicas.lock() = now;
        }
        has_replicas == Some(true)
    }

    /// Returns the reason not to ask a server, if it is known to have started too recently.
    pub(super) fn too_young(&self, at: usize) -> Option<VoteOutcome> {
        let uptime = self.uptime(at)?;
        let mut remaining = self.min_uptime()?.saturating_sub(uptime);
        if uptime < RECENT_START {
            let unknown_until = self.seen.lock().unknown_until;
            remaining = remaining.max(self.now().until(unknown_until));
        }
        (!remaining.is_zero()).then_some(VoteOutcome::TooYoung { uptime, remaining })
    }

    fn uptime(&self, at: usize) -> Option<Duration> {
        let process = self.process(at)?;
        Some(process.up_since.until(self.now()))
    }

    fn now(&self) -> Tick {
        self.clients[0].core().clock.now()
    }

    fn process(&self, at: usize) -> Option<Process> {
        transport(&self.clients[at]).process(Lane::Command, "")
    }

    fn check_distinct(&self) -> Result<()> {
        let pairs = (0..self.clients.len()).flat_map(|at| (0..at).map(move |first| (first, at)));
        for (first, second) in pairs {
            let addresses = [first, second].map(|at| transport(&self.clients[at]).address());
            let [one, other] = addresses.map(without_database);
            if one == other || self.is_same_run(first, second) {
                let [first, second] = addresses;
                return Err(invalid(format!(
                    "{first} and {second} are one server, which would have two votes; name each \
                     server once"
                )));
            }
        }
        Ok(())
    }

    /// Whether two addresses are known to lead to one process.
    fn is_same_run(&self, at: usize, other: usize) -> bool {
        let both = self.process(at).zip(self.process(other));
        both.is_some_and(|(one, other)| other.is_same_run(&one))
    }
}

/// Asks a server whether it has replicas. `None` if it gives no answer in time.
async fn has_replicas(client: &Client, limit: Duration) -> Option<bool> {
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let core = client.core();
    // Sent with the usual reply time, because a server that is slower than the limit is not dead: its connection stays.
    let answer = transport(client).send(Lane::Command, "", &info, core.timing.reply);
    let answer = core.clock.within(limit, answer).await?.ok()?;
    let mut lines = value::text(&answer).into_iter().flat_map(str::lines);
    let replicas = lines.find_map(|line| line.strip_prefix("connected_slaves:"));
    Some(replicas.is_some_and(|replicas| replicas.trim() != "0"))
}

fn transport(client: &Client) -> &dyn Transport {
    &*client.core().scripts.transport
}

fn invalid(message: String) -> Error {
    Error::invalid(NEW, message)
}

fn no_single_server(what: &str) -> Error {
    invalid(format!(
        "{what} is not a single server; a Redlock needs independent single servers (a cluster or \
         a primary with sentinels is used through an ordinary client)"
    ))
}

/// Returns an address without the number of the database: all its databases belong to one server.
fn without_database(address: &str) -> &str {
    address
        .rsplit_once('/')
        .map_or(address, |(server, _)| server)
}

/// The longest random pause before a server that is down is asked again. Once it is up, each hold asks it after such a
/// pause.
const PROBE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The state of one server.
#[derive(Debug, Default)]
struct Health {
    /// The run of the server that has reported that it has no replicas.
    without_replicas: Mutex<Option<Arc<str>>>,
    /// When the first request since its last reply was sent.
    asked: Mutex<Option<Tick>>,
    /// Signalled when the server is up again.
    up: Hint,
}

impl Servers {
    pub(super) fn is_down(&self, at: usize) -> bool {
        self.down.lock().contains(&at)
    }

    /// Notes that a server is about to be asked.
    pub(super) fn note_request(&self, at: usize) {
        let mut asked = self.health[at].asked.lock();
        if asked.is_none_or(|asked| self.last_reply(at) >= asked) {
            *asked = Some(self.now());
        }
    }

    /// Marks a server down if it was asked and has been silent for `timeout`.
    pub(super) fn check_silence(self: &Arc<Self>, at: usize, timeout: Duration) {
        let asked = *self.health[at].asked.lock();
        if let Some(asked) = asked
            && asked.until(self.now()) > timeout
            && self.last_reply(at) < asked
        {
            self.mark_down(at);
        }
    }

    /// Marks a server down, unless the others would be no majority.
    pub(super) fn mark_down(self: &Arc<Self>, at: usize) {
        let mut down = self.down.lock();
        let is_majority = self.clients.len() - down.len() > quorum(self.clients.len());
        let is_new = is_majority && down.insert(at);
        drop(down);
        if is_new {
            let watchdog = &self.clients[at].core().watchdog;
            watchdog.drive(probe(Arc::downgrade(self), at).boxed());
        }
    }

    pub(super) fn mark_up(&self, at: usize) {
        let health = &self.health[at];
        *health.asked.lock() = None;
        if self.down.lock().remove(&at) {
            health.up.notify();
        }
    }

    /// Resolves at `end`, or soon after the server is up again; never while it is down. All holds that lack the server
    /// wait here, and a random pause keeps them from asking it at once.
    pub(super) async fn wait_while_down(&self, at: usize, end: Tick) {
        let health = &self.health[at];
        let mark = health.up.mark();
        let end = if self.is_down(at) { Tick::NEVER } else { end };
        tokio::select! {
            biased;
            () = health.up.changed_since(mark) => {
                tokio::time::sleep(PROBE_PAUSE_MAX.mul_f64(fastrand::f64())).await;
            }
            () = self.clients[at].core().clock.sleep_until(end) => {}
        }
    }

    fn last_reply(&self, at: usize) -> Tick {
        let scripts = &self.clients[at].core().scripts;
        scripts.transport.last_reply_at(Lane::Command, "")
    }
}

/// Asks a server that is down until it answers. Keeps neither the Redlock nor its clients alive.
async fn probe(servers: Weak<Servers>, at: usize) {
    let client = |servers: Arc<Servers>| servers.clients[at].clone();
    while let Some(client) = servers.upgrade().map(client) {
        let answer = client.core().until_closed(client.is_served()).await;
        drop(client);
        // A refusal, or a closed client, ends the probe, because the calls that ask report it.
        if !matches!(answer, Some(Err(error)) if error.is_io()) {
            if let Some(this) = servers.upgrade() {
                this.mark_up(at);
            }
            return;
        }
        tokio::time::sleep(PROBE_PAUSE_MAX.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}

/// A lease that is over may be requested again. For that reason servers that restart wait at most this much longer for
/// their votes.
const AGAIN_MAX: Duration = Duration::from_secs(600);

/// Leases of other holders that this process has seen, which may be longer than its own.
///
/// A lease that was used may be used again. So it counts until it is over and then for its own length again, but for at
/// most ten minutes (or a hundredth of the lease, because clocks differ): otherwise a hold kept for a day would take
/// the votes from servers that restart later. A lease that is longer than all known ones may have begun long before it
/// was seen, so its whole length is unknown, and only the time until which it may be alive is kept. Invariants: the
/// estimate of the longest lease is no shorter than the longest lease that counts, and less than twice as long; there
/// is one entry for each power of two.
#[derive(Debug, Default)]
struct Sightings {
    /// By the magnitude of the lease: the longest lease of that size, and until when it counts.
    leases: BTreeMap<Option<u32>, (Duration, Tick)>,
    /// The time when all holds whose whole lease is unknown are over.
    unknown_until: Tick,
}

impl Sightings {
    /// Notes a lease of another holder with this time left. `known` is the longest lease of this process.
    fn note(&mut self, remaining: Duration, known: Duration, now: Tick) {
        if remaining > self.longest(now).max(known) {
            // Clocks differ by up to a hundredth.
            let over = now.after(remaining.saturating_add(remaining / 100));
            self.unknown_until = self.unknown_until.max(over);
        }
        // Clocks differ by up to a hundredth.
        let again = remaining.min(AGAIN_MAX).max(remaining / 100);
        let until = now.after(remaining.saturating_add(again));
        let size = remaining.as_nanos().checked_ilog2();
        let (lease, counts_until) = self.leases.entry(size).or_default();
        *lease = remaining.max(*lease);
        *counts_until = until.max(*counts_until);
    }

    /// Returns the longest lease that counts.
    fn longest(&mut self, now: Tick) -> Duration {
        self.leases
            .retain(|_, (_, counts_until)| now < *counts_until);
        let leases = self.leases.values().map(|(lease, _)| *lease);
        leases.max().unwrap_or_default()
    }
}
