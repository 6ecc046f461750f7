//! The public server: one, in this process, with the faults of a test.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockset::operator::LockName;
use lockset::{Client, ClientBuilder, Result};

use crate::clients::Clients;
use crate::net::{Direction, Net};

/// The only server of this network.
const SERVER: usize = 0;

/// A simulated server, for tests of code that uses lockset.
///
/// It lives in this process and needs no port. The clients it gives out are real ones, and it runs the scripts
/// of the library in Lua 5.1, as Redis does. It answers at once, by tokio's clock: start the test with `start_paused =
/// true`, and hours pass as soon as every task waits.
///
/// Clones are one server. It ends with the last clone and the last client.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> lockset::Result<()> {
/// let server = lockset_sim::Server::new();
/// let client = server.client().await;
/// let guard = client.lock("order:7").lock().await?;
///
/// // The server is out of reach: the hold is lost when its lease of 30 s ends, and not before.
/// server.partition(&client);
/// server.advance(Duration::from_secs(29)).await;
/// assert!(!guard.is_lost());
/// server.advance(Duration::from_secs(1)).await;
/// assert!(guard.is_lost());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Server {
    net: Arc<Net>,
    clients: Arc<Clients>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("keys", &self.keys())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// An empty server.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self {
            net: Net::of_a_test(1),
            clients: Arc::default(),
        }
    }

    /// An empty server with the clock of this machine, for a program that runs without Redis. Fencing tokens grow from
    /// one run of the program to the next, so a database that keeps them accepts the tokens of the next run.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> lockset::Result<()> {
    /// let client = lockset_sim::Server::in_real_time().client().await;
    /// client.lock("order:7").lock().await?.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn in_real_time() -> Self {
        let server = Self::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = i64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
        server.net.with(|state| {
            let simulated = i64::try_from(state.server_us(SERVER)).unwrap_or(i64::MAX);
            state.slots[SERVER].offset_us = now - simulated;
        });
        // It counts from this moment how long it is up.
        server.net.restart(SERVER, false);
        server
    }

    /// A client with the default settings, which connects when it is first used. Each call makes another client, as
    /// another process would have it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> lockset::Result<()> {
    /// let server = lockset_sim::Server::new();
    /// let (ours, theirs) = (server.client().await, server.client().await);
    /// let guard = theirs.lock("order:7").lock().await?;
    /// assert!(ours.lock("order:7").try_lock().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn client(&self) -> Client {
        let client = self.client_with(|settings| settings).await;
        client.expect("the default settings work")
    }

    /// A client with other settings of the builder that `settings` is given, which has the address of this server and
    /// makes a lazy client. Certificates change nothing.
    ///
    /// # Errors
    /// [`is_invalid`](lockset::Error::is_invalid): a setting cannot work.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> lockset::Result<()> {
    /// let server = lockset_sim::Server::new();
    /// let settings = |builder: lockset::ClientBuilder| {
    ///     builder.key_prefix("shop:").lease(Duration::from_secs(10))
    /// };
    /// let client = server.client_with(settings).await?;
    /// let guard = client.lock("order:7").lock().await?;
    /// assert_eq!(server.keys(), ["shop:order:7"]);
    /// # drop(guard); Ok(()) }
    /// ```
    pub async fn client_with(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client> {
        let url = self.net.with(|state| state.url(SERVER));
        // No announcements unless a test wants them, as they have no reader.
        let lazy = |builder: ClientBuilder| settings(builder.lazy().announce_every(Duration::MAX));
        self.clients.add(&self.net, &url, lazy).await
    }

    /// Lets time pass. All timers due in this time run in order: renewals, expiries, time limits.
    ///
    /// `tokio::time::advance` does not do this: it jumps, and everything that was due on the way is late.
    pub async fn advance(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Ends the server: its connections are reset, and new ones fail until [`restart`](Self::restart).
    pub fn kill(&self) {
        self.net.kill(SERVER);
    }

    /// Starts the server again, with the keys it had.
    pub fn restart(&self) {
        self.net.restart(SERVER, true);
    }

    /// Starts the server again, without a key: its data was lost.
    pub fn restart_empty(&self) {
        self.net.restart(SERVER, false);
    }

    /// Separates a client from the server, until [`heal`](Self::heal): nothing arrives, and neither side notices.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn partition(&self, client: &Client) {
        let number = self.number(client);
        for direction in [Direction::ToServer, Direction::ToClient] {
            self.net.cut_off(number, SERVER, direction);
        }
    }

    /// The server still gets what this client sends, but its replies do not arrive, until
    /// [`heal`](Self::heal): a client then cannot know what was done. A client that is not connected yet does not get
    /// that far: it connects with its first call.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn lose_replies(&self, client: &Client) {
        self.net
            .cut_off(self.number(client), SERVER, Direction::ToClient);
    }

    /// Resets the connections of a client: what is on its way on them is lost. It makes new ones.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn reset(&self, client: &Client) {
        self.net.reset(self.number(client));
    }

    /// The client stands still, as in a stopped process: it renews nothing and receives nothing, until
    /// [`resume`](Self::resume). The tasks of the test go on.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn pause(&self, client: &Client) {
        let (number, process) = self.clients.find(client);
        process.pause();
        self.net.pause(number);
    }

    /// Has a client that was paused go on.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn resume(&self, client: &Client) {
        let (number, process) = self.clients.find(client);
        self.net.resume(number);
        process.resume();
    }

    /// The client ends as in a process that is killed: its connections are closed, and what it held stays at
    /// the server until its lease ends.
    ///
    /// # Panics
    /// If it is no client of this server.
    pub fn crash(&self, client: &Client) {
        let (number, process) = self.clients.find(client);
        process.end();
        self.net.forget(number);
    }

    /// Every command is answered with this error from now on, unless it sets up a connection; `None` ends that. `NOAUTH ..` refuses new connections, too. For example
    /// `OOM command not allowed when used memory > 'maxmemory'.`
    pub fn refuse_with(&self, error: Option<&'static str>) {
        self.net
            .with(|state| state.node(SERVER).refuses_with = error);
    }

    /// Ends all partitions; what was held back by them arrives now.
    pub fn heal(&self) {
        self.net.heal();
    }

    /// Every message and reply takes this long on its way from now on. Default: no time.
    pub fn delay(&self, span: Duration) {
        self.net.with(|state| state.delay = span..=span);
    }

    /// Deletes the key of a lock, or the keys of a semaphore and its permits, as an eviction or a hand at the server would,
    /// and has all clients check what they hold: its guards are lost with
    /// [`LostReason::Revoked`](lockset::LostReason::Revoked). The name is the key, with the prefix of the client if it has
    /// one. False if there was no such key.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> lockset::Result<()> {
    /// let server = lockset_sim::Server::new();
    /// let client = server.client().await;
    /// let guard = client.lock("order:7").lock().await?;
    /// assert!(server.lose_lease("order:7"));
    /// let lost = guard.lost().await;
    /// # let _ = lost;
    /// assert!(guard.is_lost());
    /// # Ok(()) }
    /// ```
    pub fn lose_lease(&self, name: &str) -> bool {
        // The permits that are taken have a key of their own.
        let permits = LockName::new("", name).map(|name| name.semaphore_timeouts_key());
        let was_there = self.net.with(|state| {
            let store = &mut state.node(SERVER).store;
            let had_permits = permits.is_ok_and(|key| store.remove(key.as_bytes()));
            store.remove(name.as_bytes()) || had_permits
        });
        self.clients.check();
        was_there
    }

    /// The keys that are there, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let keys = self.net.with(|state| state.node(SERVER).store.keys());
        keys.iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    /// The server's clock, since 1970.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.net.with(|state| state.server_us(SERVER)))
    }

    /// How many commands it has done: what a call costs, counted. Those that set up a connection are left out.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.net.with(|state| state.node(SERVER).commands)
    }

    fn number(&self, client: &Client) -> usize {
        self.clients.find(client).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and releases the lock. Returns its token, which is above `last`.
    async fn next_token(server: &Server, lock: &lockset::ReentrantLock, last: u64) -> u64 {
        server.advance(Duration::from_millis(1)).await;
        let guard = lock.lock().await.expect("it is free");
        let token = guard.fencing_token().expect("it is fenced").get();
        assert!(token > last, "{token} after {last}");
        guard.release().await.expect("it is held");
        token
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_grow_when_the_clock_is_set_back() {
        let server = Server::new();
        let client = server.client().await;
        let lock = client.lock("a").fenced();
        let mut last = 0;
        for _ in 0..4 {
            for _ in 0..20 {
                last = next_token(&server, &lock, last).await;
            }
            let set_back = 400_000;
            server
                .net
                .with(|state| state.slots[SERVER].offset_us -= set_back);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_grow_when_the_counter_is_lost() {
        let server = Server::new();
        let client = server.client().await;
        let lock = client.lock("a").fenced();
        let mut last = 0;
        for _ in 0..4 {
            for _ in 0..20 {
                last = next_token(&server, &lock, last).await;
            }
            let counter = b"redisson_lock_token:{a}";
            server
                .net
                .with(|state| assert!(state.node(SERVER).store.remove(counter), "it is there"));
        }
    }
}
