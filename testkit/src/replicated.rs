//! A private primary with replicas and without sentinels, for tests of a primary's promises about
//! its replicas, and of what a broken promise loses.
//!
//! Invariant: roles change only when the test changes them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::ports;
use crate::proxy::Proxy;
use crate::replication::{AT_ONCE, following_through, offset};
use crate::server::{Server, ServerBuilder};
use crate::wait::reached;

/// How long replicas may take to catch up.
const BOUND: Duration = Duration::from_secs(30);

/// A primary and its replicas on 127.0.0.1, without sentinels.
///
/// Dropping the value kills all its processes. They do not outlive the test process either.
#[derive(Debug)]
pub struct Replicated {
    // Dropped before the servers, because a proxy whose server is gone would notify the other side.
    links: Vec<Proxy>,
    replicas: Vec<Server>,
    primary: Server,
}

/// Options for [`Replicated`], from [`Replicated::builder`].
#[derive(Clone, Debug)]
pub struct ReplicatedBuilder {
    server: ServerBuilder,
    replicas: usize,
    proxied: bool,
}

impl ReplicatedBuilder {
    /// The number of replicas. The default is 1.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Puts a [`Proxy`] between each replica and the primary: see [`Replicated::link`].
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Like [`ServerBuilder::valkey`], for all servers.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.server = self.server.valkey();
        self
    }

    /// Like [`ServerBuilder::binary`], for all servers.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.server = self.server.binary(path);
        self
    }

    /// Like [`ServerBuilder::args`], for all servers. A `--requirepass` also sets `--masterauth`.
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.server = self.server.args(args);
        self
    }

    /// Starts the servers. Returns once every replica follows the primary and has all data.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn start(self) -> Replicated {
        match self.try_start().await {
            Ok(replicated) => replicated,
            Err(reason) => panic!("no test replicas: {reason}"),
        }
    }

    /// Like [`start`](Self::start), but returns the reason as an error.
    pub async fn try_start(self) -> Result<Replicated, String> {
        let mut server = self.server.args(AT_ONCE);
        if let Some(password) = server.password() {
            server = server.args(["--masterauth".to_owned(), password]);
        }
        let primary = server.clone().conf("").try_start()?;
        let links: Vec<Proxy> = if self.proxied {
            (0..self.replicas)
                .map(|_| link(&primary))
                .collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let upstreams = (0..self.replicas)
            .map(|index| links.get(index).map_or(primary.addr(), Proxy::addr))
            .map(|upstream| server.clone().conf(follow(upstream)));
        let replicas = ServerBuilder::start_all(upstreams.collect())?;
        let replicated = Replicated {
            links,
            replicas,
            primary,
        };
        reached(BOUND, async || replicated.well().await).await?;
        Ok(replicated)
    }
}

impl Replicated {
    /// Starts a primary and one replica.
    ///
    /// # Panics
    ///
    /// Like [`ReplicatedBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Sets options before [`ReplicatedBuilder::start`].
    #[must_use]
    pub fn builder() -> ReplicatedBuilder {
        ReplicatedBuilder {
            server: Server::builder(),
            replicas: 1,
            proxied: false,
        }
    }

    /// The server started as the primary.
    #[must_use]
    pub fn primary(&self) -> &Server {
        &self.primary
    }

    /// The servers started as replicas. After a [`restart`](Server::restart), a server follows its
    /// former primary again.
    #[must_use]
    pub fn replicas(&self) -> &[Server] {
        &self.replicas
    }

    /// The replica at this index of [`replicas`](Self::replicas).
    ///
    /// # Panics
    ///
    /// If there are fewer replicas.
    #[must_use]
    #[track_caller]
    pub fn replica(&self, index: usize) -> &Server {
        &self.replicas[index]
    }

    /// The proxy between this replica and the primary. The primary's data are replies: holding
    /// replies freezes the replica's data, and holding requests freezes its acknowledgements.
    ///
    /// # Panics
    ///
    /// If started without [`ReplicatedBuilder::proxied`], or if there are fewer replicas.
    #[must_use]
    #[track_caller]
    pub fn link(&self, index: usize) -> &Proxy {
        assert!(
            !self.links.is_empty(),
            "the replicas were started without `.proxied()`"
        );
        &self.links[index]
    }

    /// Waits until every replica has everything that the primary had at the call.
    ///
    /// # Panics
    ///
    /// Lists the replicas that are behind after 30 s.
    pub async fn have_caught_up(&self) {
        let outcome = async {
            let wanted = reached(BOUND, async || offset(&self.primary).await).await?;
            reached(BOUND, async || {
                for replica in &self.replicas {
                    let has = offset(replica).await?;
                    if has < wanted {
                        let addr = replica.addr();
                        return Err(format!("{addr} has {has} of {wanted} bytes"));
                    }
                }
                Ok(())
            })
            .await
        };
        if let Err(reason) = outcome.await {
            panic!("the replicas are behind: {reason}");
        }
    }

    /// Waits until every replica follows the primary.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn is_well(&self) {
        if let Err(reason) = reached(BOUND, async || self.well().await).await {
            panic!("the replicas are not well: {reason}");
        }
    }

    /// Makes a replica a primary, and the other replicas follow it. The old primary is not
    /// notified, and continues as a primary without replicas.
    ///
    /// # Panics
    ///
    /// If the replica does not answer.
    pub async fn promote(&self, index: usize) -> &Server {
        let new = &self.replicas[index];
        let () = new.ask(&["REPLICAOF", "NO", "ONE"]).await;
        let (ip, port) = (new.addr().ip().to_string(), new.port().to_string());
        for other in &self.replicas {
            if other.addr() != new.addr() {
                let () = other.ask(&["REPLICAOF", &ip, &port]).await;
            }
        }
        new
    }

    async fn well(&self) -> Result<(), String> {
        let upstreams: Vec<u16> = (0..self.replicas.len())
            .map(|index| {
                let link = self.links.get(index);
                link.map_or(self.primary.port(), |link| link.addr().port())
            })
            .collect();
        following_through(&self.primary, &self.replicas, &upstreams).await
    }
}

fn link(primary: &Server) -> Result<Proxy, String> {
    ports::listen()
        .and_then(|listener| Proxy::try_start(listener, primary.addr()))
        .map_err(|error| format!("no proxy: {error}"))
}

fn follow(upstream: SocketAddr) -> String {
    format!("replicaof {} {}\n", upstream.ip(), upstream.port())
}
