//! Locks on a primary that sentinels watch: what a failover leaves of them, and what it does not.

mod failover;
mod loss;
mod refusals;
mod sentinels;
mod window;

use std::time::Duration;

use lockset::{Client, FairLock, ReadSide, ReentrantLock, WriteSide};
use lockset_testkit::{ClientKind, Sentinels, Server, eventually, unique_name, within};
use tokio::task::JoinHandle;

use crate::primitive::{Guard, Multi, Primitive};
use crate::support::{self, waiting};

/// A bound on what comes after a failover: sentinels that notice, clients that ask them, and calls that
/// are repeated.
const SETTLED: Duration = Duration::from_secs(20);

/// A client whose calls are repeated for as long as a failover takes.
async fn client(sentinels: &Sentinels) -> Client {
    let client = Client::connect(&sentinels.url()).await;
    client.expect("a client of the sentinels")
}

async fn command(server: &Server, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    support::command(server, &words).await;
}

/// How many connections of lockset clients a server has.
async fn connections(server: &Server) -> usize {
    let clients = server.clients(ClientKind::All).await;
    let ours = clients
        .iter()
        .filter(|line| line.name.starts_with("lockset-") && !line.name.contains("observer"));
    ours.count()
}

/// Waits until the replicas of a primary have all that was written to it.
async fn replicated(primary: &Server, replicas: usize) {
    let mut admin = primary.admin().await;
    eventually(SETTLED, "the replicas have it all", async || {
        // It tells of what its own connection has written, and of all that was written before.
        let mut write = redis::cmd("SET");
        write.arg("lockset-test").arg(1).arg("PX").arg(1);
        let _: () = write.query_async(&mut admin).await.unwrap();
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(1000);
        let copies: usize = wait.query_async(&mut admin).await.unwrap();
        copies >= replicas
    })
    .await;
}

/// A lock that is held by one client and waited for by another.
struct Contended<P: Primitive> {
    ours: Client,
    name: String,
    held: P::Guard,
    waiter: JoinHandle<lockset::Result<<P::Rival as Primitive>::Guard>>,
}

impl<P: Primitive> Contended<P> {
    async fn begin(sentinels: &Sentinels) -> Self {
        let (ours, theirs) = (client(sentinels).await, client(sentinels).await);
        let name = unique_name("lock");
        let held = P::of(&ours, &name).fenced().lock().await.unwrap();
        let rival = P::rival(&theirs, &name).fenced();
        let waiter = tokio::spawn(async move { rival.lock().await });
        waiting(&theirs, 1).await;
        Self {
            ours,
            name,
            held,
            waiter,
        }
    }

    /// It is held all the time, by one after the other, and everything works as before.
    async fn goes_on(self) {
        let inner = within(SETTLED, self.held.reenter()).await.unwrap();
        assert_eq!(self.held.hold_count(), 2, "{}", self.name);
        within(SETTLED, inner.release()).await.unwrap();
        assert!(!self.waiter.is_finished(), "two hold {}", self.name);
        let first = self.held.fencing_token();
        within(SETTLED, self.held.release()).await.unwrap();
        let next = within(SETTLED, self.waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > first, "{}", self.name);
        assert!(!next.is_lost());
        within(SETTLED, next.release()).await.unwrap();
        let again = within(SETTLED, P::of(&self.ours, &self.name).try_lock()).await;
        within(SETTLED, again.unwrap().expect("it is free").release())
            .await
            .unwrap();
    }
}

/// One of each kind.
struct AllContended(
    Contended<ReentrantLock>,
    Contended<FairLock>,
    Contended<ReadSide>,
    Contended<WriteSide>,
    Contended<Multi>,
);

impl AllContended {
    async fn begin(sentinels: &Sentinels) -> Self {
        Self(
            Contended::begin(sentinels).await,
            Contended::begin(sentinels).await,
            Contended::begin(sentinels).await,
            Contended::begin(sentinels).await,
            Contended::begin(sentinels).await,
        )
    }

    async fn go_on(self) {
        tokio::join!(
            self.0.goes_on(),
            self.1.goes_on(),
            self.2.goes_on(),
            self.3.goes_on(),
            self.4.goes_on(),
        );
    }
}
