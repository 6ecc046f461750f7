//! Locks with waiters, found by the channels that their releases are published on: no search for keys.

use std::collections::{BTreeSet, HashSet};

use lockset::Result;
use lockset::operator::{Channels, Servers, within_braces};

use crate::ask::{ask_all, command, texts};
use crate::barrier;
use crate::info::LockInfo;
use crate::read::Reader;
use crate::recognize::name_behind;

/// The kind of the keys behind a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sought {
    Lock,
    /// A semaphore or a latch.
    Counted,
    Barrier,
}

/// Patterns that match the channels of each and no others.
const CHANNELS: [(Sought, &str); 5] = [
    (Sought::Lock, "redisson_lock__channel:*"),
    (Sought::Lock, "redisson_rwlock:*"),
    (Sought::Counted, "redisson_sc:*"),
    (Sought::Counted, "redisson_countdownlatch__channel__*"),
    (Sought::Barrier, "lockset_barrier:*"),
];

/// The keys that are waited for, of one server after the other.
#[derive(Debug)]
pub(crate) struct Contended {
    servers: Servers,
    /// The servers that have named their channels.
    heard: HashSet<String>,
    /// The keys behind these channels that are still to be read. A plain channel may be at any node of a cluster.
    keys: BTreeSet<(Sought, String)>,
    /// The server that was asked last.
    asked: Option<String>,
    left_out: HashSet<String>,
}

impl Contended {
    pub(crate) fn new(servers: &Servers) -> Self {
        Self {
            servers: servers.clone(),
            heard: HashSet::new(),
            keys: BTreeSet::new(),
            asked: None,
            left_out: HashSet::new(),
        }
    }

    /// Returns what is waited for at the next server; `None` after the last.
    pub(crate) async fn next(&mut self, reader: &Reader) -> Result<Option<Vec<LockInfo>>> {
        self.hear().await?;
        let Some((_, first)) = self.keys.first() else {
            return Ok(None);
        };
        let address = self.servers.endpoint(first);
        self.asked = Some(address.clone());
        let (of_it, others): (BTreeSet<_>, _) = self
            .keys
            .iter()
            .cloned()
            .partition(|(_, key)| self.servers.endpoint(key) == address);
        let of = |sought: Sought| -> Vec<String> {
            let keys = of_it.iter().filter(|(kind, _)| *kind == sought);
            keys.map(|(_, key)| key.clone()).collect()
        };
        let mut locks = reader.read_waited_for(of(Sought::Lock)).await?;
        locks.extend(reader.read_counted(of(Sought::Counted)).await?);
        let barriers = of(Sought::Barrier).into_iter();
        let barriers = barriers.filter_map(|key| reader.name(&key)).collect();
        let waiting = reader.read_barriers(barriers).await?;
        locks.extend(waiting.into_iter().map(|found| found.lock));
        self.keys = others;
        Ok(Some(locks))
    }

    /// Learns the channels of all servers that have not named them.
    async fn hear(&mut self) -> Result<()> {
        let list = match self.servers.channels() {
            Channels::Plain => "CHANNELS",
            Channels::Sharded => "SHARDCHANNELS",
        };
        let routes = self.servers.routes().into_iter();
        let routes = routes.map(|route| (self.servers.endpoint(&route), route));
        let is_new =
            |address: &String| !self.heard.contains(address) && !self.left_out.contains(address);
        let routes: Vec<_> = routes.filter(|(address, _)| is_new(address)).collect();
        let questions = routes.iter().flat_map(|(_, route)| {
            CHANNELS.map(|(_, glob)| (route.clone(), command(&["PUBSUB", list, glob])))
        });
        let answers = ask_all(&self.servers, &questions.collect::<Vec<_>>()).await;
        for ((address, _), answers) in routes.into_iter().zip(answers.chunks(CHANNELS.len())) {
            self.asked = Some(address.clone());
            for ((sought, _), answer) in CHANNELS.iter().zip(answers) {
                let channels = texts(answer.as_ref().map_err(Clone::clone)?);
                let keys = channels.iter().flat_map(|channel| keys_behind(channel));
                self.keys.extend(keys.map(|key| (*sought, key)));
            }
            self.heard.insert(address);
        }
        Ok(())
    }

    /// Leaves out the server that was asked last.
    pub(crate) fn leave_out(&mut self) {
        self.left_out.extend(self.asked.take());
        let Self {
            servers, left_out, ..
        } = self;
        self.keys
            .retain(|(_, key)| !left_out.contains(&servers.endpoint(key)));
    }
}

/// Returns the keys of the locks, semaphores, latches and barriers that publish their release on a channel of this name,
/// or have a helper key of this name. Empty if it is neither. `x` and `{x}` share theirs.
fn keys_behind(helper: &str) -> Vec<String> {
    const PREFIXES: [&str; 4] = [
        "redisson_lock__channel:",
        "redisson_rwlock:",
        "redisson_lock_token:",
        "redisson_sc:",
    ];
    if let Some(rest) = helper.strip_prefix("redisson_countdownlatch__channel__") {
        // Every name is in braces, but for one that has some and a channel with a slot.
        let inner = rest
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let own = rest.strip_prefix(':').filter(|name| name.contains('{'));
        return inner.or(own).map(str::to_owned).into_iter().collect();
    }
    if let Some(name) = name_behind(barrier::CHANNEL, helper) {
        return vec![name.to_owned()];
    }
    let mut rests = PREFIXES
        .iter()
        .filter_map(|prefix| helper.strip_prefix(prefix));
    let Some(rest) = rests.next() else {
        return Vec::new();
    };
    // A waiter in the queue of a fair lock has a channel of its own: its id follows.
    let rest = without_waiter(rest).unwrap_or(rest);
    match within_braces(rest) {
        Some(inner) => vec![inner.to_owned(), rest.to_owned()],
        None if rest.contains('{') => vec![rest.to_owned()],
        None => Vec::new(),
    }
}

/// The text before the `:uuid:number` at the end.
fn without_waiter(channel: &str) -> Option<&str> {
    let (rest, number) = channel.rsplit_once(':')?;
    let number = number.strip_prefix('-').unwrap_or(number);
    let (rest, client) = rest.rsplit_once(':')?;
    let is_id = client.len() == 36 && client.bytes().filter(|byte| *byte == b'-').count() == 4;
    (is_id && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockset::operator::LockName;

    #[test]
    fn a_channel_leads_back_to_its_lock() {
        let waiter = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:7";
        // Some end in text that looks like a waiter's id and is none.
        let no_number = format!("a{{b}}:{}:x", &waiter[..36]);
        for name in [
            "abc",
            "{abc}",
            "a{b}c",
            "x:1",
            "a b{c}:d",
            "ключ",
            "a{b}:x:7",
            "a{b}:1-2-3-4-5:7",
            &no_number,
        ] {
            let lock = LockName::new("", name).unwrap();
            for channel in [
                lock.lock_channel(),
                lock.rw_channel(),
                lock.token_key(),
                lock.semaphore_channel(),
                lock.latch_channel(false),
                lock.latch_channel(true),
                lock.barrier_key(),
                format!("{}:{waiter}", lock.lock_channel()),
            ] {
                let keys = keys_behind(&channel);
                assert!(keys.iter().any(|key| key == name), "{channel}: {keys:?}");
            }
        }
        for other in [
            "news",
            "redisson_lock__channel:abc",
            "redisson_sc:abc",
            "redisson_countdownlatch__channel__abc",
            "lockset_sem_queue:{abc}",
            "",
        ] {
            assert!(keys_behind(other).is_empty(), "{other}");
        }
    }
}
