//! The clients behind holder ids: the announcements of clients of this library, and the addresses they connect from.
//!
//! Invariant: this is all optional. Anything that the user has no right to read is left out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{Entry, INDEX_KEY, Servers, key_of, text};
use parking_lot::Mutex;
use redis::Value;
use tokio::time::Instant;

use crate::ask::{Question, ask_all, command, integer, texts};
use crate::info::{Announced, Announcement, ClientInfo, LockInfo};
use crate::recognize::client_of;
use crate::record;

/// How long an answer is trusted.
const FRESH: Duration = Duration::from_secs(5);

/// A client is forgotten after this time. A question that was asked while it was fresh has its answer by then.
const KEPT: Duration = Duration::from_secs(10);

/// A list of all connections costs the server about 1 µs each.
const ADDRESSES_FRESH: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Clients {
    servers: Servers,
    /// Never locked while a server is asked: a question that nobody polls holds up no other.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By id; `None` if there is no such client of this library.
    clients: HashMap<String, (Instant, Option<Arc<ClientInfo>>)>,
    /// By the id of the client.
    addresses: BTreeMap<String, Vec<String>>,
    addresses_at: Option<Instant>,
}

fn is_fresh(at: Instant, span: Duration, now: Instant) -> bool {
    now < at + span
}

impl Known {
    /// Those of these clients that have to be read again.
    fn stale<'a>(&self, ids: &[&'a str], now: Instant) -> Vec<&'a str> {
        let is_known = |id: &str| {
            let read = self.clients.get(id);
            read.is_some_and(|(at, _)| is_fresh(*at, FRESH, now))
        };
        let stale = ids.iter().filter(|id| !is_known(id));
        stale.copied().collect()
    }

    /// Notes what these clients have announced, and forgets clients that were read long ago.
    fn put(&mut self, ids: &[&str], announced: Vec<Option<Announced>>, now: Instant) {
        self.clients.retain(|_, (at, _)| is_fresh(*at, KEPT, now));
        for (id, announced) in ids.iter().zip(announced) {
            let addresses = self.addresses.get(*id).cloned().unwrap_or_default();
            let client = (announced.is_some() || !addresses.is_empty()).then(|| {
                Arc::new(ClientInfo {
                    id: (*id).to_owned(),
                    addresses,
                    announced,
                })
            });
            self.clients.insert((*id).to_owned(), (now, client));
        }
    }
}

impl Clients {
    pub(crate) fn new(servers: &Servers) -> Self {
        Self {
            servers: servers.clone(),
            known: Mutex::default(),
        }
    }

    /// Adds the clients to the holders of these locks.
    pub(crate) async fn tell(&self, locks: &mut [LockInfo]) {
        let ids = locks.iter().flat_map(|lock| &lock.holders);
        let ids = ids.filter_map(|holder| client_of(&holder.id));
        let clients = self.of(ids).await;
        let now = Instant::now();
        for lock in locks {
            for holder in &mut lock.holders {
                let Some((at, client)) = client_of(&holder.id).and_then(|id| clients.get(id))
                else {
                    continue;
                };
                holder.held_for = client.announced.as_ref().and_then(|announced| {
                    let of_it =
                        |hold: &&Announcement| hold.holder == holder.id && hold.key == lock.key;
                    let hold = announced.holds.iter().find(of_it)?;
                    Some(hold.lasts + (now - *at))
                });
                holder.client = Some(Arc::clone(client));
            }
        }
    }

    /// Returns the known clients among these ids, each with the time when it was read.
    pub(crate) async fn of<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
    ) -> HashMap<String, (Instant, Arc<ClientInfo>)> {
        let mut ids: Vec<&str> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let now = Instant::now();
        let stale = self.known.lock().stale(&ids, now);
        if !stale.is_empty() {
            self.read_addresses(now).await;
            let announced = self.announced(&stale).await;
            self.known.lock().put(&stale, announced, now);
        }
        let known = self.known.lock();
        let found = ids.into_iter().filter_map(|id| {
            let (at, client) = known.clients.get(id)?;
            Some((id.to_owned(), (*at, Arc::clone(client.as_ref()?))))
        });
        found.collect()
    }

    /// Reads from where clients are connected, unless that was read a moment ago.
    async fn read_addresses(&self, now: Instant) {
        let read_at = self.known.lock().addresses_at;
        if read_at.is_none_or(|at| !is_fresh(at, ADDRESSES_FRESH, now)) {
            let addresses = self.addresses().await;
            let mut known = self.known.lock();
            known.addresses = addresses;
            known.addresses_at = Some(now);
        }
    }

    /// All that announce themselves.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<ClientInfo>>> {
        let index = command(&["ZRANGE", INDEX_KEY, "0", "-1"]);
        let ids = texts(&self.servers.ask(INDEX_KEY, &index).await?);
        let of_ids = self.of(ids.iter().map(String::as_str)).await;
        let mut all: Vec<_> = of_ids.into_values().map(|(_, client)| client).collect();
        // The index may name clients that have ended.
        all.retain(|client| client.announced.is_some());
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    async fn announced(&self, ids: &[&str]) -> Vec<Option<Announced>> {
        let questions = ids.iter().flat_map(|id| {
            let key = key_of(id);
            let ask = |word: &str| -> Question { (key.as_str().into(), command(&[word, &key])) };
            [ask("PTTL"), ask("GET")]
        });
        let answers = ask_all(&self.servers, &questions.collect::<Vec<_>>()).await;
        let read = answers.chunks_exact(2).map(|answers| match answers {
            [Ok(left), Ok(record)] => announced(left, record),
            _ => None,
        });
        read.collect()
    }

    async fn addresses(&self) -> BTreeMap<String, Vec<String>> {
        let list = command(&["CLIENT", "LIST"]);
        let servers = self.servers.routes().into_iter();
        let questions: Vec<Question> = servers.map(|server| (server, list.clone())).collect();
        let mut addresses: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for lines in ask_all(&self.servers, &questions).await.iter().flatten() {
            for (id, address) in text(lines)
                .unwrap_or_default()
                .lines()
                .filter_map(connection)
            {
                let of_client = addresses.entry(id.to_owned()).or_default();
                of_client.push(address.to_owned());
            }
        }
        addresses
    }
}

/// Reads the client and the address of a connection of this library from its line in `CLIENT LIST`.
fn connection(line: &str) -> Option<(&str, &str)> {
    let field = |name: &str| {
        let mut words = line.split(' ');
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let (_, id) = field("name")?.strip_prefix("lockset-")?.split_once('-')?;
    Some((id, field("addr")?))
}

/// Reads an announcement at the server, with the time that it has left.
fn announced(left: &Value, record: &Value) -> Option<Announced> {
    let record = record::read(text(record)?);
    let left = Duration::from_millis(u64::try_from(integer(left)?).ok()?);
    let age = record.kept_for.saturating_sub(left);
    let entries = |entries: Vec<Entry>| -> Vec<Announcement> {
        let entries = entries.into_iter();
        entries
            .map(|entry| Announcement {
                key: entry.key,
                holder: entry.holder,
                lasts: entry.lasts + age,
            })
            .collect()
    };
    Some(Announced {
        host: record.host,
        pid: record.pid,
        program: record.program,
        label: (!record.label.is_empty()).then_some(record.label),
        version: record.version,
        up_for: record.up_for + age,
        holds: entries(record.holds),
        waits: entries(record.waits),
        more: record.more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockset::operator::Record;

    #[test]
    fn clients_that_were_read_long_ago_are_forgotten() {
        let mut known = Known::default();
        let mut now = Instant::now();
        for id in ["a", "b", "c"] {
            assert_eq!(known.stale(&[id], now), [id]);
            known.put(&[id], vec![None], now);
            assert!(known.stale(&[id], now).is_empty());
            now += KEPT;
        }
        assert_eq!(known.clients.len(), 1);
    }

    #[test]
    fn connections_of_this_library_are_found() {
        let line =
            "id=5 addr=10.0.0.7:40022 laddr=10.0.0.1:6379 fd=8 name=lockset-command-9f2c-11 age=1";
        assert_eq!(connection(line), Some(("9f2c-11", "10.0.0.7:40022")));
        assert_eq!(connection("id=5 addr=10.0.0.7:1 name= age=1"), None);
    }

    #[test]
    fn what_is_announced_is_older_by_the_time_that_has_passed() {
        let record = Record {
            kept_for: Duration::from_secs(30),
            holds: vec![Entry {
                lasts: Duration::from_secs(60),
                holder: "u:1".to_owned(),
                key: "x".to_owned(),
            }],
            ..Record::default()
        };
        let record = Value::BulkString(record.write().into());
        let seen = announced(&Value::Int(26_000), &record).unwrap();
        assert_eq!(seen.holds[0].lasts, Duration::from_secs(64));
        assert_eq!(announced(&Value::Int(-2), &Value::Nil), None);
    }
}
