//! Locks on a primary monitored by sentinels: what survives a failover, and what does not.

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

/// A bound for a failover: sentinels notice, clients ask them, and calls are repeated.
const SETTLED: Duration = Duration::from_secs(20);

/// A client that repeats calls for the length of a failover.
async fn client(sentinels: &Sentinels) -> Client {
    let client = Client::connect(&sentinels.url()).await;
    client.expect("a client of the sentinels")
}

async fn command(server: &Server, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    support::command(server, &words).await;
}

/// The number of lockset connections to a server.
async fn connections(server: &Server) -> usize {
    let clients = server.clients(ClientKind::All).await;
    let ours = clients
        .iter()
        .filter(|line| line.name.starts_with("lockset-") && !line.name.contains("observer"));
    ours.count()
}

/// Waits until the replicas have everything written to the primary.
async fn replicated(primary: &Server, replicas: usize) {
    let mut admin = primary.admin().await;
    eventually(SETTLED, "the replicas have it all", async || {
        // `WAIT` covers the writes of its own connection and everything written earlier.
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

/// A lock that one client holds while another waits.
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
        let waiter = lockset_testkit::spawn(async move { rival.lock().await });
        waiting(&theirs, 1).await;
        Self {
            ours,
            name,
            held,
            waiter,
        }
    }

    /// The lock stays held, by one holder after another, and works as before.
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

/// One lock of each kind.
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
