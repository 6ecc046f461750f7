//! The Redlock: one lock on several independent servers, of which a majority decides.
//!
//! On each server it is the ordinary reentrant lock, so that it excludes whoever takes that there, and
//! Redisson's `RedissonRedLock`. What is added is here: who has a vote (`ballot`), what the answers
//! amount to (`votes`), the wait (`seek`, `pace`), entering again (`enter`), and getting servers back
//! (`mend`).

mod ballot;
mod enter;
mod guard;
mod lock;
mod mend;
mod pace;
mod seek;
mod votes;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::conn::{Lane, Transport};
use crate::error::{Error, Result};
use crate::options::check_lease;

pub use guard::RedlockGuard;
pub use lock::RedlockLock;

/// What is being done while a Redlock is made.
const NEW: &str = "redlock";

/// Locks on several independent servers, each held when a majority of them grants it.
///
/// Cheap to clone; all clones are one. The lock survives the loss of a minority of the servers, with
/// everything on them, at any moment. With N servers a majority is N / 2 + 1: 2 of 3, 3 of 5.
///
/// The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/)
/// (Salvatore Sanfilippo), with what has been found missing in it since:
///
/// * **Validity.** A hold is valid for its lease, less the time since before it was asked for, less a
///   drift of a hundredth of the lease and 2 ms. [`RedlockGuard::is_lost`] and [`RedlockGuard::lost`]
///   go by the clock, whatever the network does.
/// * **Delayed restarts.** A server that was restarted may have forgotten a vote, so it has none until
///   it is up for the longest lease. No operator has to see to that; it is asked how long it is up
///   (`INFO server`, for which a user with restricted rights needs `+info`). Servers that keep every
///   write (`appendonly yes` with `appendfsync always`) can be declared
///   [persistent](RedlockBuilder::persistent_nodes).
/// * **Long holds.** Leases are renewed on every server, and a server that was lost is won back while
///   the others hold.
/// * **Fencing.** With [`fenced`](RedlockLock::fenced) tokens grow with every grant, whichever
///   majorities granted them: a token is made known to a majority before the guard is handed out. A
///   server that lost its data starts over from its clock, but votes only a lease later: tokens go on
///   growing as long as the servers' clocks differ by less than the longest lease.
///
/// What it cannot do: a clock of a server that jumps ahead ends leases on that server early, and may
/// make it look up for longer than it is. As long as
/// less than half of the servers do such things at once, or lose data without being restarted
/// (`FLUSHALL`), a majority still stands. Have the resource check the fencing token.
///
/// All who share a lock must name the same servers, in any order.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// use lockset::{Client, Redlock};
///
/// let mut clients = Vec::new();
/// for host in ["a", "b", "c"] {
///     clients.push(Client::connect(&format!("redis://{host}.internal:6379")).await?);
/// }
/// let redlock = Redlock::new(clients)?;
///
/// let guard = redlock.lock("order:7").fenced().lock().await?;
/// guard.run(async { /* work, with guard.fencing_token() */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redlock(Arc<Electorate>);

/// The servers and their rules.
#[derive(Debug)]
struct Electorate {
    clients: Vec<Client>,
    /// The client in which tasks of this process wait for each other, whatever the order of the
    /// clients.
    meeting: usize,
    /// `None` if the servers forget nothing.
    longest_lease: Option<Duration>,
}

impl Redlock {
    /// A Redlock over the servers of these clients: at least one, best an odd number of three or more.
    /// Each client must be connected to a single server that shares nothing with the others: no
    /// replicas of each other, no members of one cluster.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for no client, for two clients of one server (which
    /// would have two votes), and for a client of a cluster or of sentinels.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self> {
        Self::builder(clients).build()
    }

    /// A Redlock with settings of its own.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> RedlockBuilder {
        RedlockBuilder {
            clients: clients.into_iter().collect(),
            longest_lease: Duration::ZERO,
            is_persistent: false,
        }
    }

    /// A handle on the lock called `name`. Whether the name can work is said by the first call that
    /// uses it.
    pub fn lock(&self, name: impl AsRef<str>) -> RedlockLock {
        RedlockLock::new(&self.0, name.as_ref())
    }
}

/// Settings of a [`Redlock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedlockBuilder {
    clients: Vec<Client>,
    longest_lease: Duration,
    is_persistent: bool,
}

impl RedlockBuilder {
    /// The longest lease that anybody uses for locks on these servers: a server that was restarted has
    /// no vote for so long, as it may have forgotten one that is still valid. Default: the longest of
    /// the leases of the clients given here; say more if a handle or another process uses more. A handle
    /// with a longer lease is refused; one in another process would let two in.
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// The servers forget nothing when they crash (`appendonly yes` and `appendfsync always`), so they
    /// have a vote as soon as they are up.
    pub fn persistent_nodes(mut self) -> Self {
        self.is_persistent = true;
        self
    }

    /// Checks the clients.
    ///
    /// # Errors
    /// As for [`Redlock::new`].
    pub fn build(self) -> Result<Redlock> {
        let invalid = |message: String| Error::invalid(NEW, message);
        let transports = || {
            let cores = self.clients.iter().map(Client::core);
            cores.map(|core| &core.scripts.transport)
        };
        let Some(meeting) = (0..self.clients.len())
            .min_by_key(|at| self.clients[*at].core().scripts.transport.address())
        else {
            return Err(invalid("a Redlock needs at least one client".to_owned()));
        };
        if let Some(transport) = transports().find(|transport| !transport.stands_alone()) {
            return Err(invalid(format!(
                "{} is no single server; a Redlock is made of independent ones, and a cluster or \
                 a primary with sentinels is used as one by an ordinary client",
                transport.address()
            )));
        }
        for (at, one) in transports().enumerate() {
            for other in transports().skip(at + 1) {
                let run = |of: &Arc<dyn Transport>| {
                    let process = of.process(Lane::Command, "");
                    process.map(|process| process.run_id)
                };
                let same_run = run(one).is_some_and(|id| run(other) == Some(id));
                if same_run || server(one.address()) == server(other.address()) {
                    return Err(invalid(format!(
                        "{} and {} are one server, which would have two votes; name each server once",
                        one.address(),
                        other.address()
                    )));
                }
            }
        }
        let leases = self.clients.iter().map(|client| client.core().timing.lease);
        let longest = leases.max().unwrap_or_default().max(self.longest_lease);
        check_lease(longest).map_err(|error| error.during(NEW))?;
        Ok(Redlock(Arc::new(Electorate {
            meeting,
            longest_lease: (!self.is_persistent).then_some(longest),
            clients: self.clients,
        })))
    }
}

/// An address without the number of the database: all of them are one server.
fn server(address: &str) -> &str {
    address
        .rsplit_once('/')
        .map_or(address, |(server, _)| server)
}
