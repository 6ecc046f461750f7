//! The read-write lock's promises beyond the common ones.

mod counts;
mod deferred_downgrade;
mod downgrade;
mod exclusion;
mod joined;
mod leases;
mod peer;
mod peer_holds;
mod process;
mod renewal;
mod starvation;
mod upgrade;
mod waking;
mod wire;
mod zombies;

use std::collections::BTreeMap;

use futures_util::StreamExt;
use lockset::{Client, RwLock};
use lockset_testkit::{Redisson, Server, eventually, unique_name, within};
use redis::aio::{MultiplexedConnection, PubSub};

use crate::support::{SOON, ask, client, idle, nothing_left, patient_client};

/// A server, a name, and checks of the keys under that name.
struct Scene {
    server: Server,
    admin: MultiplexedConnection,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        Self::named(&unique_name("lock")).await
    }

    async fn named(name: &str) -> Self {
        let server = Server::start();
        Self {
            admin: server.admin().await,
            server,
            name: name.to_owned(),
        }
    }

    /// Clients that never renew within a test, and poll at most once a second.
    async fn patient<const N: usize>(&self) -> [Client; N] {
        let url = self.server.url();
        let clients: [_; N] = std::array::from_fn(|_| patient_client(&url));
        futures_util::future::join_all(clients)
            .await
            .try_into()
            .expect("as many as were asked for")
    }

    /// Clients whose lease is [`LEASE`](crate::support::LEASE).
    async fn quick<const N: usize>(&self) -> [Client; N] {
        let url = self.server.url();
        let clients: [_; N] = std::array::from_fn(|_| client(&url));
        futures_util::future::join_all(clients)
            .await
            .try_into()
            .expect("as many as were asked for")
    }

    fn lock(&self, client: &Client) -> RwLock {
        client.rw_lock(&self.name)
    }

    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.admin.clone(), words).await
    }

    async fn hash(&self) -> BTreeMap<String, String> {
        self.ask(&["HGETALL", &self.name]).await
    }

    /// The remaining lease of the lock in ms, or -2 if it is free.
    async fn lease(&self) -> i64 {
        self.ask(&["PTTL", &self.name]).await
    }

    /// The remaining lease of one read hold in ms, or -2 if there is none.
    async fn read_lease(&self, holder: &str, number: u64) -> i64 {
        let key = Redisson::read_hold(&self.name, holder, number);
        self.ask(&["PTTL", &key]).await
    }

    /// The only holder of the lock.
    async fn holder(&self) -> String {
        let hash = self.hash().await;
        let mut fields = hash.keys().filter(|field| *field != "mode");
        let field = fields.next().expect("it is held");
        field.trim_end_matches(":write").to_owned()
    }

    /// The reader that does not belong to this peer.
    async fn reader_but(&self, peer: &Redisson) -> String {
        let theirs = peer.holder(0);
        let (process, _) = theirs.rsplit_once(':').expect("uuid:number");
        let hash = self.hash().await;
        let mut readers = hash.keys().filter(|field| *field != "mode");
        let reader = readers.find(|field| !field.starts_with(process));
        reader.expect("it reads").clone()
    }

    /// The key of our waiting writers.
    fn writers(&self) -> String {
        Redisson::rw_channel(&self.name).replace("redisson_rwlock", "lockset_rw_waiting")
    }

    /// Waits until `count` of our writers wait at the server.
    async fn writers_wait(&self, count: usize) {
        eventually(SOON, "the writers wait", async || {
            let waiting: Vec<String> = self.ask(&["ZRANGE", &self.writers(), "0", "-1"]).await;
            waiting.iter().filter(|writer| *writer != "done").count() == count
        })
        .await;
    }

    /// Waits until `count` connections are subscribed to the lock.
    async fn listeners(&self, count: usize) {
        let channel = Redisson::rw_channel(&self.name);
        eventually(SOON, "the waiters have subscribed", async || {
            let counts: (String, usize) = self.ask(&["PUBSUB", "NUMSUB", &channel]).await;
            counts.1 == count
        })
        .await;
    }

    /// Subscribes to the lock's channel.
    async fn messages(&self) -> Messages {
        let url = redis::Client::open(self.server.admin_url()).unwrap();
        let mut messages = url.get_async_pubsub().await.unwrap();
        let channel = Redisson::rw_channel(&self.name);
        messages.subscribe(&channel).await.unwrap();
        Messages { channel, messages }
    }

    /// Waits until the server is empty and these clients are idle.
    async fn nothing_left<const N: usize>(&self, clients: [&Client; N]) {
        for client in clients {
            idle(client).await;
        }
        nothing_left(&self.server).await;
    }
}

struct Messages {
    channel: String,
    messages: PubSub,
}

impl Messages {
    /// The next message. After a 1 from our clients, it also takes the message for Redisson waiters
    /// that are not yet asleep.
    async fn next(&mut self) -> String {
        let payload = self.any().await;
        if payload == "1" {
            assert_eq!(self.any().await, "00");
        }
        payload
    }

    async fn any(&mut self) -> String {
        let message = within(SOON, self.messages.on_message().next()).await;
        message
            .expect("the connection stays")
            .get_payload()
            .unwrap()
    }

    /// Asserts that there are no further messages: messages arrive in order, and the next is the
    /// test's own.
    async fn no_more(&mut self, scene: &Scene) {
        let _: i64 = scene.ask(&["PUBLISH", &self.channel, "mark"]).await;
        assert_eq!(self.next().await, "mark");
    }
}

/// The fields at the server: the mode, and the counts of one holder.
fn fields(mode: &str, holder: &str, writes: u32, reads: u32) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("mode".to_owned(), mode.to_owned())]);
    if writes > 0 {
        fields.insert(format!("{holder}:write"), writes.to_string());
    }
    if reads > 0 {
        fields.insert(holder.to_owned(), reads.to_string());
    }
    fields
}
