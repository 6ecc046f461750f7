//! Forms a primary, its replicas and sentinels from separate processes.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;

use super::{NAME, Sentinels};
use crate::replication::{AT_ONCE, following};
use crate::server::{Server, ServerBuilder};
use crate::tls::Certificates;
use crate::wait::reached;

const FORM_BOUND: Duration = Duration::from_secs(40);

/// How often fast sentinels query servers and publish to each other, in milliseconds. These
/// settings exist from Redis 7.
const HURRY: [&str; 4] = ["INFO-PERIOD", "250", "PUBLISH-PERIOD", "200"];

/// The sentinels' default pace.
const NO_HURRY: [&str; 4] = ["INFO-PERIOD", "10000", "PUBLISH-PERIOD", "2000"];

/// Options for [`Sentinels`], from [`Sentinels::builder`].
#[derive(Clone, Debug)]
pub struct SentinelsBuilder {
    server: ServerBuilder,
    sentinel: ServerBuilder,
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
    failover_timeout: Duration,
    hurried: bool,
}

impl SentinelsBuilder {
    pub(super) fn new() -> Self {
        Self {
            server: Server::builder(),
            sentinel: Server::builder(),
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_millis(500),
            failover_timeout: Duration::from_secs(2),
            hurried: false,
        }
    }

    /// The number of replicas. The default is 2.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// The number of sentinels. The default is 3. More than half of them must agree.
    #[must_use]
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// How long a server may be silent before a sentinel considers it down. The default is 500 ms.
    #[must_use]
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// `failover-timeout`, 2 s by default. A failed attempt is repeated after twice this time.
    #[must_use]
    pub fn failover_timeout(mut self, time: Duration) -> Self {
        self.failover_timeout = time;
        self
    }

    /// Makes the sentinels query and publish much more often than by default, so that they demote
    /// an old primary within a second or two instead of about eleven. Has no effect before Redis 7,
    /// or on a restarted sentinel.
    #[must_use]
    pub fn hurried(mut self) -> Self {
        self.hurried = true;
        self
    }

    /// Like [`ServerBuilder::tls`], for all processes, with the same certificates. The processes
    /// also use TLS among themselves, and send clients to the TLS ports.
    #[must_use]
    pub fn tls(mut self) -> Self {
        let certificates = Certificates::new();
        self.server = self.server.tls_with(certificates.clone());
        self.sentinel = self.sentinel.tls_with(certificates);
        self
    }

    /// Like [`ServerBuilder::valkey`], for all processes.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.server = self.server.valkey();
        self.sentinel = self.sentinel.valkey();
        self
    }

    /// Like [`ServerBuilder::binary`], for all processes.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.server = self.server.binary(&path);
        self.sentinel = self.sentinel.binary(path);
        self
    }

    /// Like [`ServerBuilder::args`], for the servers, such as `["--min-replicas-to-write", "1"]`. A
    /// `--requirepass` also sets `--masterauth`.
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.server = self.server.args(args);
        self
    }

    /// The password of the servers, also used between servers and by sentinels.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        self.args(["--requirepass", password])
    }

    /// The password of the sentinels, for clients and each other.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel = self.sentinel.args(["--requirepass", password]);
        self
    }

    /// Starts all processes. Returns once the replicas have all data, and each sentinel knows the
    /// primary, all replicas and all other sentinels.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 40 s.
    pub async fn start(self) -> Sentinels {
        match self.try_start().await {
            Ok(sentinels) => sentinels,
            Err(reason) => panic!("no test sentinels: {reason}"),
        }
    }

    /// Like [`start`](Self::start), but returns the reason as an error.
    pub async fn try_start(self) -> Result<Sentinels, String> {
        let primary = self.server().conf("").try_start()?;
        let replica = self.server().conf(format!(
            "replicaof {} {}\n",
            primary.peer_addr().ip(),
            primary.peer_addr().port()
        ));
        let mut servers = vec![primary];
        servers.extend(ServerBuilder::start_all(vec![replica; self.replicas])?);
        // Sentinels started too early find no suitable replicas, and check again only ten seconds
        // later.
        reached(FORM_BOUND, async || following(&servers).await).await?;

        let mut sentinel = self
            .sentinel
            .clone()
            .sentinel()
            .conf(self.conf(&servers[0]));
        if sentinel.has_tls() {
            sentinel = sentinel.args(["--tls-replication", "yes"]);
        }
        let sentinels = ServerBuilder::start_all(vec![sentinel; self.sentinels])?;
        let all = Sentinels { servers, sentinels };
        pace(&all.sentinels, HURRY).await;
        reached(FORM_BOUND, async || all.well().await).await?;
        if !self.hurried {
            pace(&all.sentinels, NO_HURRY).await;
        }
        Ok(all)
    }

    fn server(&self) -> ServerBuilder {
        let mut server = self.server.clone().args(AT_ONCE);
        if let Some(password) = server.password() {
            server = server.args(["--masterauth".to_owned(), password]);
        }
        if server.has_tls() {
            server = server.args(["--tls-replication", "yes"]);
        }
        server
    }

    fn conf(&self, primary: &Server) -> String {
        let (ip, port) = (primary.peer_addr().ip(), primary.peer_addr().port());
        let quorum = self.sentinels / 2 + 1;
        let down_after = self.down_after.as_millis();
        let failover_timeout = self.failover_timeout.as_millis();
        let mut conf = format!(
            "sentinel monitor {NAME} {ip} {port} {quorum}\n\
             sentinel down-after-milliseconds {NAME} {down_after}\n\
             sentinel failover-timeout {NAME} {failover_timeout}\n\
             sentinel parallel-syncs {NAME} 1\n"
        );
        if let Some(password) = self.server.password() {
            conf.push_str(&format!("sentinel auth-pass {NAME} {password}\n"));
        }
        if let Some(password) = self.sentinel.password() {
            conf.push_str(&format!("sentinel sentinel-pass {password}\n"));
        }
        conf
    }
}

async fn pace(sentinels: &[Server], pace: [&str; 4]) {
    let command: Vec<&str> = ["SENTINEL", "DEBUG"].into_iter().chain(pace).collect();
    // A sentinel without this command keeps the default pace, and gets more time.
    let telling = sentinels
        .iter()
        .map(async |sentinel| sentinel.try_ask::<((),)>(&[&command]).await);
    join_all(telling).await;
}
