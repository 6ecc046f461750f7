//! Reads the locks behind some keys: whether they are locks, their holders, leases and waiters.
//!
//! Invariant: a hash of an application costs three commands of constant time, even if it is large.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{Channels, HOLDS_OF_PERMITS, LockName, Servers, within_braces};
use redis::Value;

use crate::ask::{Question, ask_all, command, counted, integer, pairs, texts};
use crate::clients::Clients;
use crate::info::{HoldMode, LockHolder, LockInfo, LockKind};
use crate::recognize::{Recognized, client_of, may_be_of_lock, name_behind, recognize};

/// A hash with more fields is not read: no lock has this many holders.
const FIELDS_MAX: i64 = 10_000;

/// How many fields are read before all are.
const PROBED: &str = "3";

/// The most holds of one reader whose leases are read.
const READ_HOLDS_MAX: u32 = 16;

/// What `PTTL` answers for a key that is not there.
const GONE: i64 = -2;

/// The most channels in one question.
const CHANNELS_MAX: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Reader {
    servers: Servers,
    clients: Arc<Clients>,
}

/// A lock that is held, or free and waited for.
struct Seen {
    key: Arc<str>,
    name: LockName,
    remaining: Duration,
    fields: Option<Recognized>,
}

impl Reader {
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Adds the clients to the holders of these locks.
    pub(crate) async fn tell_clients(&self, locks: &mut [LockInfo]) {
        self.clients.tell(locks).await;
    }

    pub(crate) fn new(servers: &Servers, clients: Arc<Clients>) -> Self {
        Self {
            servers: servers.clone(),
            clients,
        }
    }

    /// Returns the keys that are locks and are held.
    pub(crate) async fn read_some(&self, keys: Vec<String>) -> Result<Vec<LockInfo>> {
        let seen = self.held(keys).await?;
        let mut locks = self.described(seen).await?;
        locks.retain(|lock| !lock.holders.is_empty());
        Ok(locks)
    }

    /// Returns the locks that are held, and free locks with waiters.
    pub(crate) async fn read_waited_for(&self, keys: Vec<String>) -> Result<Vec<LockInfo>> {
        let mut seen = self.held(keys.clone()).await?;
        for key in keys {
            if !seen.iter().any(|seen| *seen.key == *key)
                && let Some(name) = self.name(&key)
            {
                seen.push(Seen {
                    key: key.into(),
                    name,
                    remaining: Duration::ZERO,
                    fields: None,
                });
            }
        }
        let mut locks = self.described(seen).await?;
        // Two locks can share a channel. Its listeners then wait for the lock that is held.
        let listed: HashSet<String> = locks.iter().map(|lock| lock.key.clone()).collect();
        let held = locks.iter().filter(|lock| !lock.holders.is_empty());
        let held: HashSet<String> = held.map(|lock| lock.key.clone()).collect();
        locks.retain(|lock| {
            if held.contains(&lock.key) {
                return true;
            }
            let has_listed_twin = match within_braces(&lock.key) {
                Some(plain) => listed.contains(plain),
                None => held.contains(&format!("{{{}}}", lock.key)),
            };
            lock.waiters > 0 && !has_listed_twin
        });
        Ok(locks)
    }

    /// Returns the name of the lock with this key, if a client with this prefix can name it.
    pub(crate) fn name(&self, key: &str) -> Option<LockName> {
        self.servers
            .name(key.strip_prefix(self.servers.prefix())?)
            .ok()
    }

    async fn held(&self, keys: Vec<String>) -> Result<Vec<Seen>> {
        let named = keys
            .into_iter()
            .filter(|key| name_behind(HOLDS_OF_PERMITS, key).is_none())
            .filter_map(|key| Some((self.name(&key)?, Arc::from(key))));
        let named: Vec<(LockName, Arc<str>)> = named.collect();
        let probes = named.iter().flat_map(|(_, key)| {
            let probe = |words: &[&str]| (Arc::clone(key), command(words));
            [
                probe(&["PTTL", key]),
                probe(&["HLEN", key]),
                probe(&["HRANDFIELD", key, PROBED]),
            ]
        });
        let answers = ask_all(&self.servers, &probes.collect::<Vec<_>>()).await;
        let mut candidates = Vec::new();
        for ((name, key), answers) in named.into_iter().zip(answers.chunks_exact(3)) {
            if may_be_lock(answers)? {
                candidates.push((name, key));
            }
        }
        let all = candidates.iter().flat_map(|(_, key)| {
            let ask = |words: &[&str]| (Arc::clone(key), command(words));
            [ask(&["PTTL", key]), ask(&["HGETALL", key])]
        });
        let answers = ask_all(&self.servers, &all.collect::<Vec<_>>()).await;
        let mut seen = Vec::new();
        for ((name, key), answers) in candidates.into_iter().zip(answers.chunks_exact(2)) {
            let [Ok(ttl), Ok(fields)] = answers else {
                continue;
            };
            let ttl = integer(ttl).and_then(|ttl| u64::try_from(ttl).ok());
            let fields = pairs(fields).as_deref().and_then(recognize);
            if let (Some(ttl), Some(fields)) = (ttl, fields) {
                seen.push(Seen {
                    key,
                    name,
                    remaining: Duration::from_millis(ttl),
                    fields: Some(fields),
                });
            }
        }
        Ok(seen)
    }

    /// Reads the leases of readers, together: each has one for each of its holds. A reader whose leases have all ended
    /// holds nothing, even if others renew the lock.
    async fn reader_leases(&self, seen: &mut [Seen]) {
        let numbers = |holder: &LockHolder| {
            let last = match holder.mode {
                HoldMode::Read => holder.hold_count.min(READ_HOLDS_MAX),
                _ => 0,
            };
            1..=last
        };
        let questions = seen.iter().flat_map(|lock| {
            let holders = lock.fields.iter().flat_map(|fields| &fields.holders);
            holders.flat_map(move |reader| {
                numbers(reader).map(|number| {
                    let lease = lock.name.read_lease_key(&reader.id, number);
                    (Arc::clone(&lock.key), command(&["PTTL", &lease]))
                })
            })
        });
        let answers = ask_all(&self.servers, &questions.collect::<Vec<_>>()).await;
        let mut answers = answers.iter();
        for fields in seen.iter_mut().filter_map(|lock| lock.fields.as_mut()) {
            fields.holders.retain_mut(|holder| {
                let of_it = answers.by_ref().take(numbers(holder).count());
                let of_it = of_it.map(|answer| integer(answer.as_ref().ok()?));
                let of_it: Vec<Option<i64>> = of_it.collect();
                let left = of_it.iter().filter_map(|left| u64::try_from((*left)?).ok());
                holder.remaining = left.max().map(Duration::from_millis);
                let all_are_read = of_it.len() == holder.hold_count as usize;
                !all_are_read || of_it.iter().any(|left| *left != Some(GONE))
            });
        }
    }

    /// Adds the data beside the lock's own key: leases of readers, token, queue, leader, subscribers.
    async fn described(&self, mut seen: Vec<Seen>) -> Result<Vec<LockInfo>> {
        self.reader_leases(&mut seen).await;
        let beside = seen.iter().flat_map(|lock| {
            let ask = |words: &[&str]| (Arc::clone(&lock.key), command(words));
            [
                ask(&["GET", &lock.name.token_key()]),
                ask(&["LLEN", &lock.name.fair_queue_key()]),
                ask(&["HGETALL", &lock.name.leader_key()]),
            ]
        });
        let beside = ask_all(&self.servers, &beside.collect::<Vec<_>>()).await;
        let channels = seen.iter().flat_map(|lock| {
            let channels = lock.channels().into_iter();
            channels.map(|channel| (Arc::clone(&lock.key), channel))
        });
        let subscribers = self.subscribers(&channels.collect::<Vec<_>>()).await;
        let locks = seen.into_iter().zip(beside.chunks_exact(3));
        let mut locks: Vec<LockInfo> = locks
            .map(|(lock, beside)| {
                let number = |at: usize| beside[at].as_ref().ok().and_then(integer);
                let queued = number(1).and_then(|count| usize::try_from(count).ok());
                let token = number(0).and_then(|token| u64::try_from(token).ok());
                let channels = lock.channels();
                let subscribed = channels
                    .iter()
                    .filter_map(|channel| subscribers.get(channel));
                let subscribed = subscribed.sum();
                let leader = beside[2].as_ref().ok().and_then(pairs).unwrap_or_default();
                let lock = lock.described(token, queued.unwrap_or(0), subscribed);
                led(lock, &leader)
            })
            .collect();
        self.clients.tell(&mut locks).await;
        Ok(locks)
    }

    /// Returns how many clients are subscribed to each of these channels, as far as the user may know. Each channel
    /// comes with a key.
    pub(crate) async fn subscribers(
        &self,
        channels: &[(Arc<str>, String)],
    ) -> HashMap<String, u64> {
        let mut questions: Vec<Question> = Vec::new();
        // Two locks can share a channel, which must be counted once.
        let mut named = HashSet::new();
        let channels = channels.iter().filter(|(_, channel)| named.insert(channel));
        let channels: Vec<&(Arc<str>, String)> = channels.collect();
        if self.servers.channels() == Channels::Plain {
            // A subscription to a plain channel may be at any node of a cluster.
            for server in self.servers.routes() {
                for some in channels.chunks(CHANNELS_MAX) {
                    let asked = number_of("NUMSUB", some.iter().copied());
                    questions.push((Arc::clone(&server), asked));
                }
            }
        } else {
            let mut by_server: HashMap<String, Vec<&(Arc<str>, String)>> = HashMap::new();
            for channel in channels {
                by_server
                    .entry(self.servers.endpoint(&channel.0))
                    .or_default()
                    .push(channel);
            }
            for of_server in by_server.values() {
                for some in of_server.chunks(CHANNELS_MAX) {
                    let asked = number_of("SHARDNUMSUB", some.iter().copied());
                    questions.push((Arc::clone(&some[0].0), asked));
                }
            }
        }
        let mut subscribers = HashMap::new();
        for answer in ask_all(&self.servers, &questions).await.iter().flatten() {
            for (channel, count) in counted(answer) {
                *subscribers.entry(channel).or_default() += count;
            }
        }
        subscribers
    }
}

fn number_of<'a>(what: &str, channels: impl Iterator<Item = &'a (Arc<str>, String)>) -> redis::Cmd {
    let mut asked = command(&["PUBSUB", what]);
    channels.for_each(|(_, channel)| {
        asked.arg(channel);
    });
    asked
}

/// Whether a key may be a lock: it has a lease, and its fields look like the fields of a lock. An error for this key
/// alone means that it is no longer a hash.
fn may_be_lock(answers: &[Result<Value>]) -> Result<bool> {
    if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err())
        && !error.is_wrong_type()
    {
        return Err(error.clone());
    }
    let [Ok(ttl), Ok(length), Ok(some)] = answers else {
        return Ok(false);
    };
    let some = texts(some);
    Ok(integer(ttl) > Some(0)
        && integer(length).is_some_and(|length| length <= FIELDS_MAX)
        && some.iter().any(|field| client_of(field).is_some())
        && some.iter().all(|field| may_be_of_lock(field)))
}

impl Seen {
    /// The channels of the waiters for this lock, but for a fair lock. The kind of a free lock is unknown.
    fn channels(&self) -> Vec<String> {
        match &self.fields {
            Some(fields) if fields.is_read_write => vec![self.name.rw_channel()],
            Some(_) => vec![self.name.lock_channel()],
            None => vec![self.name.lock_channel(), self.name.rw_channel()],
        }
    }

    fn described(self, token: Option<u64>, queued: usize, subscribed: u64) -> LockInfo {
        let kind = match &self.fields {
            Some(fields) if fields.is_read_write => LockKind::ReadWrite,
            _ if queued > 0 => LockKind::Fair,
            _ => LockKind::Exclusive,
        };
        LockInfo {
            name: self.name.as_str().to_owned(),
            key: self.key.as_ref().to_owned(),
            kind,
            holders: self.fields.map(|fields| fields.holders).unwrap_or_default(),
            remaining: self.remaining,
            waiters: queued.max(usize::try_from(subscribed).unwrap_or(usize::MAX)),
            token: token.map(Into::into),
            free_permits: None,
            count: None,
            parties: None,
            value: None,
        }
    }
}

/// Makes it an election if its holder has proclaimed something.
fn led(mut lock: LockInfo, leader: &[(String, String)]) -> LockInfo {
    let field = |name: &str| leader.iter().find(|(field, _)| field == name);
    let field = |name: &str| field(name).map(|(_, value)| value);
    let [holder] = &*lock.holders else {
        return lock;
    };
    if field("id") == Some(&holder.id) {
        lock.kind = LockKind::Election;
        lock.value = field("value").cloned();
    }
    lock
}
