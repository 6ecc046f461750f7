//! Grants that need the confirmation of replicas: a real primary with real replicas, which lag, are
//! cut off, and take over.

mod faults;
mod grants;
mod together;

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually};

use crate::support::{SOON, ask, command};

/// Long enough for healthy replicas on a busy machine.
const WITHIN: Duration = Duration::from_secs(5);

/// For waits that should fail.
const BRIEFLY: Duration = Duration::from_millis(200);

/// A primary and its replicas, each behind a proxy that can disturb it.
struct Group {
    primary: Server,
    replicas: Vec<Server>,
    links: Vec<Proxy>,
}

impl Group {
    async fn of(replicas: usize) -> Self {
        let instantly = ["--repl-diskless-sync-delay", "0"];
        let primary = Server::builder().args(instantly).start();
        let mut group = Self {
            primary,
            replicas: Vec::new(),
            links: Vec::new(),
        };
        for _ in 0..replicas {
            let link = Proxy::start(group.primary.addr()).await;
            let port = link.addr().port().to_string();
            let of = ["--replicaof", "127.0.0.1", &*port];
            group.replicas.push(Server::builder().args(of).start());
            group.links.push(link);
        }
        let mut admin = group.primary.admin().await;
        let online = async || {
            let says: String = ask(&mut admin, &["INFO", "replication"]).await;
            says.matches("state=online").count() == replicas
        };
        eventually(SOON * 4, "all replicas are online", online).await;
        // A replica that is online gets no data until it has acknowledged once, which may take a
        // second.
        let mut wait = redis::pipe();
        wait.cmd("SET").arg("heard").arg(1).ignore();
        wait.cmd("DEL").arg("heard").ignore();
        wait.cmd("WAIT").arg(replicas).arg(4_000);
        let (heard,): (usize,) = wait.query_async(&mut admin).await.unwrap();
        assert_eq!(heard, replicas);
        group.primary.reset_stats().await;
        group
    }

    /// A client that neither renews nor polls within a test.
    async fn client(&self) -> Client {
        Client::connect(&self.primary.url())
            .await
            .expect("a client")
    }

    /// Makes a replica a primary, like a failover.
    async fn promote(&self, replica: usize) {
        command(&self.replicas[replica], &["REPLICAOF", "NO", "ONE"]).await;
    }
}

/// How often the primary received `WAIT`.
async fn waits(server: &Server) -> u64 {
    server
        .commandstats()
        .await
        .get("wait")
        .copied()
        .unwrap_or(0)
}
