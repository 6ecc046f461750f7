//! A primary, its replicas and those who watch them, from separate processes.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;

use super::{NAME, Sentinels};
use crate::replication::{AT_ONCE, following};
use crate::server::{Server, ServerBuilder};
use crate::tls::Certificates;
use crate::wait::reached;

const FORM_BOUND: Duration = Duration::from_secs(40);

/// How often sentinels in a hurry ask servers who they are, and tell each other, in milliseconds. They
/// know these words from Redis 7 on.
const HURRY: [&str; 4] = ["INFO-PERIOD", "250", "PUBLISH-PERIOD", "200"];

/// The sentinels' own pace.
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

    /// How many replicas the primary has: 2 if not said.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How many sentinels there are: 3 if not said. More than half of them must agree.
    #[must_use]
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// How long a server may be silent before a sentinel takes it to be down: 500 ms if not said.
    #[must_use]
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// `failover-timeout`: 2 s if not said. An attempt that failed is repeated after twice this time.
    #[must_use]
    pub fn failover_timeout(mut self, time: Duration) -> Self {
        self.failover_timeout = time;
        self
    }

    /// Lets the sentinels ask and talk many times more often than they do of their own, so that they
    /// make an old primary a replica within a second or two instead of about eleven. Without effect
    /// before Redis 7, and on a sentinel that was restarted.
    #[must_use]
    pub fn hurried(mut self) -> Self {
        self.hurried = true;
        self
    }

    /// As [`ServerBuilder::tls`], for all processes, with the same certificates. They speak TLS with each
    /// other too, and clients are sent to the ports where the servers do.
    #[must_use]
    pub fn tls(mut self) -> Self {
        let certificates = Certificates::new();
        self.server = self.server.tls_with(certificates.clone());
        self.sentinel = self.sentinel.tls_with(certificates);
        self
    }

    /// As [`ServerBuilder::valkey`], for all processes.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.server = self.server.valkey();
        self.sentinel = self.sentinel.valkey();
        self
    }

    /// As [`ServerBuilder::binary`], for all processes.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.server = self.server.binary(&path);
        self.sentinel = self.sentinel.binary(path);
        self
    }

    /// As [`ServerBuilder::args`], for the servers, such as `["--min-replicas-to-write", "1"]`. With a
    /// `--requirepass` goes the same `--masterauth`.
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.server = self.server.args(args);
        self
    }

    /// The password of the servers, and that with which they and the sentinels come to each server.
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

    /// Starts all processes. Returns when the replicas have all data, and each sentinel knows the
    /// primary, all replicas and all other sentinels.
    ///
    /// # Panics
    ///
    /// With what was still missing when that is not so within 40 s.
    pub async fn start(self) -> Sentinels {
        match self.try_start().await {
            Ok(sentinels) => sentinels,
            Err(reason) => panic!("no test sentinels: {reason}"),
        }
    }

    /// As [`start`](Self::start), with the reason as an error instead of a panic.
    pub async fn try_start(self) -> Result<Sentinels, String> {
        let primary = self.server().conf("").try_start()?;
        let replica = self.server().conf(format!(
            "replicaof {} {}\n",
            primary.peer_addr().ip(),
            primary.peer_addr().port()
        ));
        let mut servers = vec![primary];
        servers.extend(ServerBuilder::start_all(vec![replica; self.replicas])?);
        // Sentinels that come too early see no fit replicas, and look again ten seconds later.
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
    // One that does not know the command keeps its own pace, and is waited for longer.
    let telling = sentinels
        .iter()
        .map(async |sentinel| sentinel.try_ask::<((),)>(&[&command]).await);
    join_all(telling).await;
}
