//! A private primary with replicas and sentinels for one test.
//!
//! Invariant: the primary is always queried from the sentinels and never cached, because they also
//! change it on their own.

mod form;
mod view;

use std::time::Duration;

use tokio::sync::OnceCell;

use crate::replication::Role;
use crate::rights;
use crate::server::Server;
use crate::wait::reached;
use view::View;

pub use form::SentinelsBuilder;

/// The sentinels' name for the primary.
const NAME: &str = "main";

/// How long a change of the primary may take. A failed attempt is repeated some seconds later.
const CHANGE_BOUND: Duration = Duration::from_secs(30);

/// How long a failover may take before it is considered aborted.
const ONE_ATTEMPT: Duration = Duration::from_secs(8);

/// How often a failover is requested before the test fails.
const ATTEMPTS: usize = 4;

/// How long all servers may take to return to their roles.
const WELL_BOUND: Duration = Duration::from_secs(60);

/// A private primary with replicas and sentinels on 127.0.0.1, by default 2 and 3. The sentinels'
/// name for the primary is `main`.
///
/// Dropping the value kills all its processes. They do not outlive the test process either.
#[derive(Debug)]
pub struct Sentinels {
    // Dropped before the servers, so that killing the servers does not cause an election.
    sentinels: Vec<Server>,
    servers: Vec<Server>,
}

impl Sentinels {
    /// Starts a primary, 2 replicas and 3 sentinels.
    ///
    /// # Panics
    ///
    /// Like [`SentinelsBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Sets options before [`SentinelsBuilder::start`].
    #[must_use]
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder::new()
    }

    /// The servers and sentinels shared by all tests of this process that do no damage: no
    /// failover, no `FLUSHALL`, and only names of their own. The sentinels' `down-after` is 15 s.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Sentinels> = OnceCell::const_new();
        let patience = Duration::from_secs(15);
        SHARED
            .get_or_init(|| Self::builder().down_after(patience).start())
            .await
    }

    /// `redis+sentinel://HOST:PORT,HOST:PORT,../main` of all sentinels, without passwords;
    /// `rediss+sentinel://..` after [`SentinelsBuilder::tls`].
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.sentinels.iter().map(Server::peer_addr);
        let addrs: Vec<String> = addrs.map(|addr| addr.to_string()).collect();
        let scheme = self.servers[0].scheme();
        let login = rights::login();
        format!("{scheme}+sentinel://{login}{}/{NAME}", addrs.join(","))
    }

    /// All servers, starting with the original primary.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// All sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The primary, by the newest view of all sentinels.
    ///
    /// # Panics
    ///
    /// If no sentinel answers for 30 s.
    pub async fn primary(&self) -> &Server {
        let look = async || {
            let views = View::of_all(&self.sentinels).await;
            let newest = views.iter().flatten().max_by_key(|view| view.epoch);
            newest
                .and_then(|view| self.by_port(view.port))
                .ok_or_else(|| "no sentinel knows".to_owned())
        };
        match reached(CHANGE_BOUND, look).await {
            Ok(server) => server,
            Err(reason) => panic!("who is primary? {reason}"),
        }
    }

    /// Makes a sentinel promote a replica (`SENTINEL FAILOVER`), without the votes of others. The
    /// old primary continues as a primary until the sentinels demote it.
    ///
    /// Returns the former primary once a replica is the primary and every sentinel that answers
    /// reports it.
    ///
    /// # Panics
    ///
    /// Lists what is missing after four attempts of 8 s.
    pub async fn fail_over(&self) -> &Server {
        let old = self.primary().await;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            // Not while a failover is in progress, because that would cause a second one.
            if self.primary().await.addr() == old.addr()
                && let Err(reason) = self.command_fail_over().await
            {
                last = reason;
            }
            // A sentinel that finds no suitable replica aborts silently.
            match reached(ONE_ATTEMPT, async || self.replaced(old).await).await {
                Ok(_) => return old,
                Err(reason) => last = format!("{reason} {last}"),
            }
        }
        panic!("no failover from {}: {last}", old.addr());
    }

    async fn command_fail_over(&self) -> Result<(), String> {
        let mut last = "there is no sentinel".to_owned();
        for sentinel in &self.sentinels {
            let command: &[&str] = &["SENTINEL", "FAILOVER", NAME];
            match sentinel.try_ask::<((),)>(&[command]).await {
                Ok(_) => return Ok(()),
                Err(error) => last = format!("({} answers {error})", sentinel.addr()),
            }
        }
        Err(last)
    }

    /// Kills the primary, and waits until the sentinels have promoted a replica and every sentinel
    /// that answers reports it.
    ///
    /// Returns the dead server. After a [`restart`](Server::restart) it is an empty primary that
    /// sentinels send no clients to, until they demote it: see [`is_well`](Self::is_well).
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn kill_primary(&self) -> &Server {
        let old = self.primary().await;
        old.kill();
        self.promoted(old).await;
        old
    }

    /// Waits until a server other than `old` is the primary and every sentinel that answers reports
    /// it. Returns the new primary.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn promoted(&self, old: &Server) -> &Server {
        match reached(CHANGE_BOUND, async || self.replaced(old).await).await {
            Ok(new) => new,
            Err(reason) => panic!("there is no new primary: {reason}"),
        }
    }

    /// The new primary, if all sentinels agree on it.
    async fn replaced(&self, old: &Server) -> Result<&Server, String> {
        let new = self.agreed().await?;
        if new.addr() == old.addr() {
            return Err(format!("{} is still primary", old.addr()));
        }
        match Role::of(new).await {
            Some(Role::Primary { .. }) => Ok(new),
            other => Err(format!("{} says that it is {other:?}", new.addr())),
        }
    }

    /// Waits until all processes answer, all other servers follow the primary, and each sentinel
    /// knows them all. At the sentinels' default pace, an old primary takes about eleven seconds.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 60 s.
    pub async fn is_well(&self) {
        if let Err(reason) = reached(WELL_BOUND, async || self.well().await).await {
            panic!("the sentinels are not well: {reason}");
        }
    }

    /// The server that every sentinel that answers considers a healthy primary.
    async fn agreed(&self) -> Result<&Server, String> {
        let views = View::of_all(&self.sentinels).await;
        let mut views = self.sentinels.iter().zip(&views);
        let mut agreed = None;
        for (sentinel, view) in &mut views {
            let Some(view) = view else { continue };
            if view.flags != "master" {
                let (sentinel, flags) = (sentinel.addr(), &view.flags);
                return Err(format!("{sentinel} says of its primary: {flags}"));
            }
            if agreed.is_some_and(|port| port != view.port) {
                return Err("the sentinels disagree".to_owned());
            }
            agreed = Some(view.port);
        }
        agreed
            .and_then(|port| self.by_port(port))
            .ok_or_else(|| "no sentinel answers".to_owned())
    }

    async fn well(&self) -> Result<(), String> {
        let primary = self.agreed().await?;
        for server in &self.servers {
            let followers = self.servers.len() - 1;
            let wanted = if server.addr() == primary.addr() {
                Role::Primary { online: followers }
            } else {
                Role::Replica {
                    of: primary.peer_addr().port(),
                    linked: true,
                }
            };
            let role = Role::of(server).await;
            if role.as_ref() != Some(&wanted) {
                return Err(format!("{} is {role:?}, not {wanted:?}", server.addr()));
            }
        }
        let views = View::of_all(&self.sentinels).await;
        for (sentinel, view) in self.sentinels.iter().zip(&views) {
            let addr = sentinel.addr();
            let view = view.as_ref().ok_or(format!("{addr} does not answer"))?;
            let known = (view.replicas, view.other_sentinels);
            if known != (self.servers.len() - 1, self.sentinels.len() - 1) {
                let (replicas, others) = known;
                return Err(format!(
                    "{addr} knows {replicas} fit replicas and {others} other sentinels"
                ));
            }
        }
        Ok(())
    }

    fn by_port(&self, port: u16) -> Option<&Server> {
        self.servers
            .iter()
            .find(|server| server.peer_addr().port() == port)
    }
}
