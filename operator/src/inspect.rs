//! One lock with everything that the server knows of it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{HOLDS_OF_PERMITS, LockName};

use crate::Survey;
use crate::ask::{ask_all, command, integer, milliseconds, scored, span_of, texts};
use crate::barrier::Waiting;
use crate::info::{ClientInfo, HoldMode, LockDetail, LockInfo, LockKind, QueuedWaiter};
use crate::recognize::{client_of, name_behind};

/// The places of waiters, and their ends by the server's clock.
struct Places {
    now: f64,
    queue: Vec<String>,
    /// The places of our waiters, by heartbeat.
    alive: Vec<(String, f64)>,
    /// The places of all waiters, as Redisson keeps them.
    timeouts: Vec<(String, f64)>,
    /// For a read-write lock: writers with the end of their heartbeat, readers with its negative.
    read_write: Vec<(String, f64)>,
}

impl Survey {
    /// Returns one lock, semaphore, latch, barrier or election with everything that the server knows of it; `None` if it has
    /// neither holders nor waiters, nor permits whose leases have ended.
    ///
    /// Takes some ten commands.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks), and [`is_invalid`](lockset::Error::is_invalid) for a name that no lock can have.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// if let Some(found) = lockset_operator::Survey::new(&client).inspect("desk").await? {
    ///     for (place, waiter) in found.queue.iter().enumerate() {
    ///         println!("{place}: {}", waiter.id);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self, name: &str) -> Result<Option<LockDetail>> {
        let name = self.servers.name(name)?;
        let key = name.key();
        let read = self.reader().read_waited_for(vec![key.to_string()]).await?;
        let places = self.places(&name).await;
        let Some(mut lock) = read.into_iter().next() else {
            return self.inspect_counted(&name).await;
        };
        if lock.holders.is_empty() && !places.read_write.is_empty() {
            lock.kind = LockKind::ReadWrite;
        }
        let queue = places.into_queue(lock.kind);
        let channels = [name.lock_channel(), name.rw_channel()];
        Ok(Some(self.detail(&name, lock, queue, channels).await))
    }

    /// The semaphore, latch or barrier of this name.
    async fn inspect_counted(&self, name: &LockName) -> Result<Option<LockDetail>> {
        let read = self
            .reader()
            .read_numbers(vec![name.key().to_string()])
            .await?;
        let Some(counted) = read.into_iter().next() else {
            let waiting = self.reader().read_barriers(vec![name.clone()]).await?;
            let Some(Waiting { lock, parties }) = waiting.into_iter().next() else {
                return Ok(None);
            };
            let channels = [name.barrier_key()];
            return Ok(Some(self.detail(name, lock, parties, channels).await));
        };
        let queue = self.reader().places_of(name).await;
        let channels = self.reader().counted_channels(name);
        Ok(Some(self.detail(name, counted, queue, channels).await))
    }

    async fn detail(
        &self,
        name: &LockName,
        lock: LockInfo,
        mut queue: Vec<QueuedWaiter>,
        channels: impl IntoIterator<Item = String>,
    ) -> LockDetail {
        let key = name.key();
        let ids = queue.iter().filter_map(|waiter| client_of(&waiter.id));
        let clients = self.clients.of(ids).await;
        for waiter in &mut queue {
            let client = client_of(&waiter.id).and_then(|id| clients.get(id));
            waiter.client = client.map(|(_, client)| Arc::clone(client));
        }
        let channels = channels.into_iter();
        let channels: Vec<_> = channels.map(|channel| (Arc::clone(key), channel)).collect();
        let subscribers = self.reader().subscribers(&channels).await;
        let mut channels: Vec<(String, u64)> = subscribers.into_iter().collect();
        channels.retain(|(_, count)| *count > 0);
        channels.sort();
        LockDetail {
            server: self.servers.endpoint(key),
            announced_waits: self.announced_waits(key).await,
            lock,
            queue,
            channels,
        }
    }

    /// Whether the server has a key of this name, of a lock or of anything else. One command.
    ///
    /// [`inspect`](Self::inspect) finds nothing if an application keeps something of its own under the name, or if the
    /// lease of a lock was removed: the lock is certain to be free only if there is no such key.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`inspect`](Self::inspect).
    pub async fn has_key(&self, name: &str) -> Result<bool> {
        let name = self.servers.name(name)?;
        let exists = command(&["EXISTS", name.key()]);
        let exists = self.servers.ask(name.key(), &exists).await?;
        Ok(integer(&exists) != Some(0))
    }

    /// Returns the plain semaphore whose holders are noted at the key of this name; `None` for any other name. Such a key
    /// has the form of a lock, and is none: a client with a key prefix cannot name one.
    #[must_use]
    pub fn semaphore_noted_at(&self, name: &str) -> Option<String> {
        let name = self.servers.name(name).ok()?;
        name_behind(HOLDS_OF_PERMITS, name.key()).map(str::to_owned)
    }

    /// Returns the number that the server keeps under this name, if it is a number: of a semaphore with all its permits
    /// free, of a latch without a subscribed waiter, or of an application. The server does not distinguish them. One
    /// command.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`inspect`](Self::inspect).
    pub async fn number(&self, name: &str) -> Result<Option<i64>> {
        let name = self.servers.name(name)?;
        let get = command(&["GET", name.key()]);
        match self.servers.ask(name.key(), &get).await {
            Err(error) if error.is_wrong_type() => Ok(None),
            number => Ok(integer(&number?)),
        }
    }

    async fn places(&self, name: &LockName) -> Places {
        let key = name.key();
        let ask = |words: &[&str]| (Arc::clone(key), command(words));
        let all = |key: String| ask(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
        let questions = [
            ask(&["TIME"]),
            ask(&["LRANGE", &name.fair_queue_key(), "0", "-1"]),
            all(name.fair_alive_key()),
            all(name.fair_timeouts_key()),
            all(name.rw_waiting_key()),
        ];
        let answers = ask_all(&self.servers, &questions).await;
        let scores = |at: usize| answers[at].as_ref().map(scored).unwrap_or_default();
        Places {
            now: answers[0].as_ref().map(milliseconds).unwrap_or_default(),
            queue: answers[1].as_ref().map(texts).unwrap_or_default(),
            alive: scores(2),
            timeouts: scores(3),
            read_write: scores(4),
        }
    }

    async fn announced_waits(&self, key: &str) -> Vec<(Arc<ClientInfo>, Duration)> {
        let clients = self.clients.all().await.unwrap_or_default();
        let waits = clients.into_iter().flat_map(|client| {
            let announced = client.announced.iter().flat_map(|of| &of.waits);
            let of_it = announced
                .filter(|wait| wait.key == key)
                .map(|wait| wait.lasts);
            let of_it: Vec<Duration> = of_it.collect();
            of_it
                .into_iter()
                .map(move |lasts| (Arc::clone(&client), lasts))
        });
        let mut waits: Vec<_> = waits.collect();
        waits.sort_by_key(|(_, lasts)| Reverse(*lasts));
        waits
    }
}

impl Places {
    fn into_queue(self, kind: LockKind) -> Vec<QueuedWaiter> {
        let left = |until: f64| span_of(until - self.now);
        let find = |places: &[(String, f64)], id: &str| {
            places
                .iter()
                .find(|(other, _)| other == id)
                .map(|(_, score)| *score)
        };
        if kind == LockKind::ReadWrite {
            // Entries of the scripts stand among the waiters.
            let waiters = self
                .read_write
                .iter()
                .filter(|(id, _)| client_of(id).is_some());
            let waiters = waiters.map(|(id, score)| QueuedWaiter {
                id: id.clone(),
                mode: if *score < 0.0 {
                    HoldMode::Read
                } else {
                    HoldMode::Write
                },
                has_heartbeat: *score >= 0.0,
                kept_for: left(*score),
                client: None,
            });
            return waiters.collect();
        }
        let queue = self.queue.iter().map(|id| {
            let alive = find(&self.alive, id);
            let until = alive.or_else(|| find(&self.timeouts, id));
            QueuedWaiter {
                id: id.clone(),
                mode: HoldMode::Exclusive,
                has_heartbeat: alive.is_some(),
                kept_for: left(until.unwrap_or_default()),
                client: None,
            }
        });
        queue.collect()
    }
}
