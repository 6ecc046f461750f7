//! One server: its keys, its scripts, its connections and the listeners of its channels.
//!
//! Invariant: it does one command at a time, at the time that it is given, and knows of no network: what it
//! sends unasked is left in its outbox.

mod client;
mod deployed;
mod known;
mod refusals;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub(crate) use self::known::Rewrite;
use self::known::{Known, sha_of};
use crate::channels::Channels;
pub(crate) use crate::channels::ConnectionId;
use crate::cluster::Membership;
use crate::commands::{Command, random_fields};
use crate::lua;
use crate::number;
use crate::replication::{Between, Replication, ServerId};
use crate::reply::Reply;
use crate::rights::{Rights, User};
use crate::sentinel::Watch;
use crate::store::Store;
use crate::words::Words;

/// A server's side of a connection.
#[derive(Debug, Default)]
struct Connection {
    name: Vec<u8>,
    user: User,
    /// At its client's end.
    port: u64,
    /// Whether it speaks the newer protocol.
    is_newer: bool,
    /// How many changes the server had made after the last command of this connection that made one.
    changes: u64,
    /// For its next command.
    is_asking: bool,
}

pub(crate) struct Node {
    pub(crate) store: Store,
    /// By its SHA.
    scripts: FxHashMap<Arc<str>, Known>,
    rewrite: Option<Rewrite>,
    pub(crate) channels: Channels,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: ConnectionId,
    /// The last port, over all runs: no two connections share an address, though their numbers start again with each
    /// run.
    last_port: u64,
    /// Connections that a client has had ended.
    pub(crate) killed: Vec<ConnectionId>,
    pub(crate) replication: Replication,
    /// If it is one of a cluster.
    pub(crate) membership: Option<Membership>,
    /// If it is a sentinel.
    pub(crate) watch: Option<Watch>,
    /// Messages for other servers.
    pub(crate) for_servers: Vec<(ServerId, Between)>,
    pub(crate) run_id: Arc<str>,
    started_us: u64,
    /// Whether the command that is being done came behind an `ASKING`: what its script calls did, too.
    is_asking: bool,
    rights: Rights,
    /// How many commands it has refused as their user may not do them, those inside scripts not counted.
    pub(crate) denials: u64,
    /// Whose command is being done.
    serves: ConnectionId,
    /// How many replicas have to be well connected for it to accept a write.
    pub(crate) min_replicas: usize,
    /// How many commands it has refused for want of them.
    pub(crate) shortages: u64,
    /// Whether it has fewer.
    pub(crate) lacks_replicas: bool,
    /// For now, every command is refused with this, unless it sets up a connection.
    pub(crate) refuses_with: Option<&'static str>,
    draw: fastrand::Rng,
    /// How many commands it has done. Commands inside scripts do not count, nor do commands that set up a connection.
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
            channels: Channels::default(),
            connections: BTreeMap::new(),
            last_connection: 0,
            last_port: 0,
            killed: Vec::new(),
            replication: Replication::default(),
            membership: None,
            watch: None,
            for_servers: Vec::new(),
            run_id,
            started_us: now_us,
            is_asking: false,
            rights: Rights::default(),
            denials: 0,
            serves: 0,
            min_replicas: 0,
            shortages: 0,
            lacks_replicas: false,
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
        self.channels.subscriptions()
    }

    /// Another run of the server: nothing is left but the keys, if they are.
    pub(crate) fn restart(&mut self, keeps_keys: bool, now_us: u64) {
        self.channels.clear();
        self.connections.clear();
        self.replication.restart();
        self.scripts.clear();
        self.last_connection = 0;
        self.started_us = now_us;
        self.run_id = run_id(&mut self.draw);
        if !keeps_keys {
            self.store.clear();
        }
    }

    pub(crate) fn connect(&mut self, user: User) -> ConnectionId {
        self.last_connection += 1;
        self.last_port += 1;
        let connection = Connection {
            user,
            port: self.last_port,
            ..Connection::default()
        };
        self.connections.insert(self.last_connection, connection);
        self.last_connection
    }

    pub(crate) fn is_connected(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.channels.disconnect(id);
    }

    /// Whether a connection speaks the newer protocol.
    pub(crate) fn is_newer(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|one| one.is_newer)
    }

    /// How many changes replicas need to have what this connection has written.
    pub(crate) fn changes_of(&self, id: ConnectionId) -> u64 {
        self.connections.get(&id).map_or(0, |one| one.changes)
    }

    /// The name that a connection gave itself.
    pub(crate) fn name_of(&self, id: ConnectionId) -> &[u8] {
        let name = self.connections.get(&id).map(|one| &*one.name);
        name.unwrap_or_default()
    }

    /// Makes the text of a script known.
    fn load(&mut self, sha: &str, text: &str) {
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
        node.serves = from;
        let verb = &*words.verb();
        let is_of_setup = matches!(
            verb,
            b"HELLO" | b"AUTH" | b"SELECT" | b"CLIENT" | b"INFO" | b"SCRIPT"
        );
        node.commands += u64::from(!is_of_setup);
        if let Some(no) = node.denied(verb, from, words) {
            return (node, no);
        }
        if let Some(refusal) = node
            .refuses_with
            .filter(|no| !is_of_setup || no.starts_with("NOAUTH"))
        {
            return (node, Reply::error(refusal));
        }
        if let Err(no) = node.admit(verb, from, words) {
            return (node, no);
        }
        let (mut node, reply) = if matches!(verb, b"EVAL" | b"EVALSHA") {
            node.run_script(verb == b"EVAL", words)
        } else {
            let reply = node.answer(verb, from, words);
            (node, reply)
        };
        node.pass_on(Some(from));
        (node, reply)
    }

    fn answer(&mut self, verb: &[u8], from: ConnectionId, words: &Words) -> Reply {
        match verb {
            b"PING" => Reply::Status("PONG"),
            b"SELECT" | b"AUTH" => Reply::OK,
            b"HELLO" => self.hello(from, words),
            b"ROLE" => self.role(),
            // Of one who has nothing to wait for: who has waits at its connection.
            b"WAIT" => Reply::count(self.replication.confirmed(self.changes_of(from))),
            b"INFO" => self.info(),
            b"CLIENT" => self.client(from, words),
            b"SCRIPT" => self.script(words),
            b"SUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"SUNSUBSCRIBE" => {
                self.subscription(verb, from, words)
            }
            b"PUBSUB" => Reply::Array(Vec::new()),
            b"ASKING" => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.is_asking = true;
                }
                Reply::OK
            }
            b"CLUSTER" => match &self.membership {
                Some(membership) => membership.answer(words),
                None => Reply::error("ERR This instance has cluster support disabled"),
            },
            b"SENTINEL" if self.watch.is_some() => self
                .watch
                .as_ref()
                .map_or(Reply::Nil, |watch| watch.answer(words)),
            _ => self.on_keys(verb, words, Caller::Client),
        }
    }

    fn on_keys(&mut self, verb: &[u8], words: &Words, caller: Caller) -> Reply {
        if let Some(no) = self.refuses(verb) {
            return no;
        }
        match verb {
            b"PUBLISH" | b"SPUBLISH" => {
                if words.len() != 3 {
                    return caller.wrong_arity(words);
                }
                self.publish(verb, words.at(1), words.at(2))
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

    /// For how long it has been up, in µs.
    pub(crate) fn up_us(&self) -> u64 {
        self.store.now_us().saturating_sub(self.started_us)
    }

    fn info(&self) -> Reply {
        let up = self.up_us() / 1_000_000;
        let text = format!(
            "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:{}\r\n\
             uptime_in_seconds:{up}\r\n# Replication\r\nrole:{}\r\n",
            self.run_id,
            if self.replication.is_replica() {
                "slave"
            } else {
                "master"
            }
        );
        Reply::Bulk(text.into_bytes())
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

    /// Returns the script to run, which is now known, and the number of its keys.
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
        // Our clients send it in small letters.
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
        let verb = &*words.verb();
        let is_here = |membership: &Membership| {
            let admitted = membership.admit(verb, words, self.is_asking, &self.store);
            admitted.is_ok()
        };
        if !self.membership.as_ref().is_none_or(is_here) {
            let why = "ERR Script attempted to access a non local key in a cluster node";
            return Reply::error(why);
        }
        if let Some(why) = self.denial(self.serves, verb, words, Caller::Script) {
            return Reply::error(why);
        }
        self.on_keys(verb, words, Caller::Script)
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
            Self::Client => {
                let args = words.from(1).map(String::from_utf8_lossy);
                let args: String = args.map(|arg| format!("'{arg}' ")).collect();
                format!("ERR unknown command '{verb}', with args beginning with: {args}")
            }
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
