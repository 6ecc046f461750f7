//! One server: its keys, its scripts, its connections and who listens to which channel.
//!
//! Invariant: it does one command at a time, at the time that it is given, and knows of no network: what it
//! sends unasked is left in its outbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::commands::{Command, random_fields};
use crate::lua;
use crate::number;
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

/// The number of a connection at its server.
pub(crate) type ConnectionId = u64;

/// A message on its way to a connection.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) to: ConnectionId,
    pub(crate) channel: Vec<u8>,
    pub(crate) message: Vec<u8>,
}

/// Changes the text of a script before it is run: for tests of the checks.
pub(crate) type Rewrite = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// A script, and what identifies its text.
#[derive(Clone)]
struct Known {
    sha: Arc<str>,
    key: Arc<str>,
    text: Arc<str>,
}

impl Known {
    fn new(sha: &str, text: &str, rewrite: Option<&Rewrite>) -> Self {
        let changed = rewrite
            .map(|rewrite| rewrite(text))
            .filter(|changed| changed != text);
        let sha: Arc<str> = sha.into();
        match changed {
            None => Self {
                key: Arc::clone(&sha),
                sha,
                text: text.into(),
            },
            Some(text) => Self {
                sha,
                key: sha_of(&text).into(),
                text: text.into(),
            },
        }
    }
}

pub(crate) struct Node {
    pub(crate) store: Store,
    /// By its SHA.
    scripts: FxHashMap<Arc<str>, Known>,
    rewrite: Option<Rewrite>,
    channels: BTreeMap<Vec<u8>, Vec<ConnectionId>>,
    connections: BTreeMap<ConnectionId, Vec<u8>>,
    last_connection: ConnectionId,
    pub(crate) outbox: Vec<Push>,
    pub(crate) run_id: Arc<str>,
    started_us: u64,
    /// What every command is refused with, for now.
    pub(crate) refuses_with: Option<&'static str>,
    draw: fastrand::Rng,
    /// How many commands it has done, those inside scripts not counted.
    pub(crate) commands: u64,
}

impl Node {
    pub(crate) fn new(seed: u64, now_us: u64) -> Self {
        let mut draw = fastrand::Rng::with_seed(seed);
        let run_id = run_id(&mut draw);
        Self {
            store: Store::default(),
            scripts: FxHashMap::default(),
            rewrite: None,
            channels: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            outbox: Vec::new(),
            run_id,
            started_us: now_us,
            refuses_with: None,
            draw,
            commands: 0,
        }
    }

    pub(crate) fn rewrite_scripts(&mut self, rewrite: Rewrite) {
        self.rewrite = Some(rewrite);
    }

    pub(crate) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.values().map(Vec::len).sum()
    }

    /// Another run of the server: nothing is left but the keys, if they are.
    pub(crate) fn restart(&mut self, keeps_keys: bool, now_us: u64) {
        self.channels.clear();
        self.connections.clear();
        self.outbox.clear();
        self.scripts.clear();
        self.last_connection = 0;
        self.started_us = now_us;
        self.run_id = run_id(&mut self.draw);
        if !keeps_keys {
            self.store.clear();
        }
    }

    pub(crate) fn connect(&mut self) -> ConnectionId {
        self.last_connection += 1;
        self.connections.insert(self.last_connection, Vec::new());
        self.last_connection
    }

    pub(crate) fn is_connected(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.channels.retain(|_, listeners| {
            listeners.retain(|listener| *listener != id);
            !listeners.is_empty()
        });
    }

    /// Makes the text of a script known, as the preload of a connection does.
    pub(crate) fn load(&mut self, sha: &str, text: &str) {
        if !self.scripts.contains_key(sha) {
            let known = Known::new(sha, text, self.rewrite.as_ref());
            self.scripts.insert(Arc::clone(&known.sha), known);
        }
    }

    /// Does one command of a connection.
    pub(crate) fn execute(
        self: Box<Self>,
        from: ConnectionId,
        words: &Words,
    ) -> (Box<Self>, Reply) {
        let mut node = self;
        node.commands += 1;
        if let Some(refusal) = node.refuses_with {
            return (node, Reply::error(refusal));
        }
        match &*words.verb() {
            verb @ (b"EVAL" | b"EVALSHA") => node.run_script(verb == b"EVAL", words),
            verb => {
                let reply = node.answer(verb, from, words);
                (node, reply)
            }
        }
    }

    fn answer(&mut self, verb: &[u8], from: ConnectionId, words: &Words) -> Reply {
        match verb {
            b"PING" => Reply::Status("PONG"),
            b"SELECT" => Reply::OK,
            b"ROLE" => Reply::Array(vec![
                Reply::bulk(b"master"),
                Reply::Int(0),
                Reply::Array(vec![]),
            ]),
            b"WAIT" => Reply::Int(0),
            b"INFO" => self.info(),
            b"CLIENT" => self.client(from, words),
            b"SCRIPT" => self.script(words),
            b"SUBSCRIBE" | b"SSUBSCRIBE" => self.subscribe(from, words),
            b"UNSUBSCRIBE" | b"SUNSUBSCRIBE" => self.unsubscribe(from, words),
            _ => self.on_keys(verb, words, Caller::Client),
        }
    }

    fn on_keys(&mut self, verb: &[u8], words: &Words, caller: Caller) -> Reply {
        match verb {
            b"PUBLISH" | b"SPUBLISH" => {
                if words.len() != 3 {
                    return caller.wrong_arity(words);
                }
                self.publish(words.at(1), words.at(2))
            }
            b"HRANDFIELD" => {
                if words.len() < 2 {
                    return caller.wrong_arity(words);
                }
                let draw = &mut self.draw;
                random_fields(&self.store, words, &mut |below| draw.usize(..below))
            }
            _ => match Command::named(verb) {
                None => caller.unknown(words),
                Some(command) if !command.accepts(words) => caller.wrong_arity(words),
                Some(command) => command.run(&mut self.store, words),
            },
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> Reply {
        let listeners = self.channels.get(channel).map_or(&[][..], Vec::as_slice);
        for listener in listeners {
            self.outbox.push(Push {
                to: *listener,
                channel: channel.to_vec(),
                message: message.to_vec(),
            });
        }
        Reply::count(listeners.len())
    }

    fn subscribe(&mut self, from: ConnectionId, words: &Words) -> Reply {
        for channel in words.from(1) {
            let listeners = self.channels.entry(channel.to_vec()).or_default();
            if !listeners.contains(&from) {
                listeners.push(from);
            }
        }
        Reply::OK
    }

    fn unsubscribe(&mut self, from: ConnectionId, words: &Words) -> Reply {
        for channel in words.from(1) {
            if let Some(listeners) = self.channels.get_mut(channel) {
                listeners.retain(|listener| *listener != from);
                if listeners.is_empty() {
                    self.channels.remove(channel);
                }
            }
        }
        Reply::OK
    }

    /// For how long it has been up, in µs.
    pub(crate) fn up_us(&self) -> u64 {
        self.store.now_us().saturating_sub(self.started_us)
    }

    fn info(&self) -> Reply {
        let up = self.up_us() / 1_000_000;
        let text = format!(
            "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:{}\r\n\
             uptime_in_seconds:{up}\r\n# Replication\r\nrole:master\r\n",
            self.run_id
        );
        Reply::Bulk(text.into_bytes())
    }

    fn client(&mut self, from: ConnectionId, words: &Words) -> Reply {
        match &*words.get(1).unwrap_or_default().to_ascii_uppercase() {
            b"ID" => Reply::Int(i64::try_from(from).unwrap_or(i64::MAX)),
            b"SETNAME" => {
                let name = words.get(2).unwrap_or_default().to_vec();
                self.connections.insert(from, name);
                Reply::OK
            }
            b"GETNAME" => self
                .connections
                .get(&from)
                .map_or(Reply::Nil, |name| Reply::bulk(name)),
            b"KILL" => {
                let id = words
                    .from(2)
                    .skip_while(|word| !word.eq_ignore_ascii_case(b"ID"))
                    .nth(1);
                let id = id
                    .and_then(number::int)
                    .and_then(|id| u64::try_from(id).ok());
                let Some(id) = id else {
                    return Reply::syntax();
                };
                let was_there = self.is_connected(id);
                self.disconnect(id);
                Reply::Int(was_there.into())
            }
            _ => Reply::error("ERR unknown subcommand of CLIENT on this server"),
        }
    }

    fn script(&mut self, words: &Words) -> Reply {
        match &*words.get(1).unwrap_or_default().to_ascii_uppercase() {
            b"LOAD" if words.len() == 3 => {
                let text = String::from_utf8_lossy(words.at(2)).into_owned();
                let sha = sha_of(&text);
                if let Err(no) = lua::check(&sha, &text) {
                    return no;
                }
                self.load(&sha, &text);
                Reply::Bulk(sha.into_bytes())
            }
            b"EXISTS" => {
                let known = |sha: &[u8]| {
                    std::str::from_utf8(sha).is_ok_and(|sha| self.scripts.contains_key(sha))
                };
                Reply::Array(
                    words
                        .from(2)
                        .map(|sha| Reply::Int(known(sha).into()))
                        .collect(),
                )
            }
            b"FLUSH" => {
                self.scripts.clear();
                Reply::OK
            }
            _ => Reply::error("ERR unknown subcommand of SCRIPT on this server"),
        }
    }

    fn run_script(mut self: Box<Self>, is_text: bool, words: &Words) -> (Box<Self>, Reply) {
        let (known, keys) = match self.named_script(is_text, words) {
            Ok(named) => named,
            Err(no) => return (self, no),
        };
        let script = lua::Script {
            key: &known.key,
            text: &known.text,
            sha: &known.sha,
            words,
            first: 3,
            keys,
        };
        lua::run(self, &script)
    }

    /// The script that is to be run, which is known from here on, and the number of its keys.
    fn named_script(&mut self, is_text: bool, words: &Words) -> Result<(Known, usize), Reply> {
        let wrong = || Reply::error("ERR wrong number of arguments for 'eval' command");
        let (body, count) = (
            words.get(1).ok_or_else(wrong)?,
            words.get(2).ok_or_else(wrong)?,
        );
        let count = number::int(count).ok_or_else(Reply::no_integer)?;
        let Ok(count) = usize::try_from(count) else {
            return Err(Reply::error("ERR Number of keys can't be negative"));
        };
        if count > words.len() - 3 {
            return Err(Reply::error(
                "ERR Number of keys can't be greater than number of args",
            ));
        }
        let body = String::from_utf8_lossy(body);
        // What our clients send is in small letters.
        if let Some(known) = self.scripts.get(&*body).filter(|_| !is_text) {
            return Ok((known.clone(), count));
        }
        let sha = if is_text {
            sha_of(&body)
        } else {
            body.to_ascii_lowercase()
        };
        if is_text && !self.scripts.contains_key(&*sha) {
            lua::check(&sha, &body)?;
            self.load(&sha, &body);
        }
        let known = self.scripts.get(&*sha);
        let unknown = || Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        Ok((known.cloned().ok_or_else(unknown)?, count))
    }
}

/// The commands that scripts call.
impl lua::Host for Node {
    fn run_inside_script(&mut self, words: &Words) -> Reply {
        self.on_keys(&words.verb(), words, Caller::Script)
    }
}

/// Whose command it is: what is said to one that cannot be done.
#[derive(Clone, Copy)]
enum Caller {
    Client,
    Script,
}

impl Caller {
    fn unknown(self, words: &Words) -> Reply {
        let verb = String::from_utf8_lossy(words.get(0).unwrap_or_default()).to_ascii_uppercase();
        Reply::error(match self {
            Self::Client => format!("ERR unknown command '{verb}'"),
            Self::Script => "ERR Unknown Redis command called from script".to_owned(),
        })
    }

    fn wrong_arity(self, words: &Words) -> Reply {
        let verb = String::from_utf8_lossy(words.get(0).unwrap_or_default()).to_ascii_lowercase();
        Reply::error(match self {
            Self::Client => format!("ERR wrong number of arguments for '{verb}' command"),
            Self::Script => "ERR Wrong number of args calling Redis command from script".to_owned(),
        })
    }
}

fn sha_of(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

fn run_id(draw: &mut fastrand::Rng) -> Arc<str> {
    let id: String = (0..40).map(|_| draw.digit(16)).collect();
    id.into()
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("run_id", &self.run_id)
            .field("keys", &self.store.keys().len())
            .finish_non_exhaustive()
    }
}
