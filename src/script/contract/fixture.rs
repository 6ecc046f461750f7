//! A server with helpers that run scripts as the engine does, and read all keys and messages.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use lockset_testkit::{Server, within};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::script::catalog;
use crate::script::reply::{self, Acquired, Queued};

/// Holder ids of one client, as the scripts know them.
macro_rules! holders {
    ($($name:ident $number:literal)*) => {
        $(pub(super) const $name: &str = concat!("fa2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:", $number);)*
    };
}
holders! {
    U0 "0" U1 "1" U2 "2" U3 "3" U4 "4" U5 "5" U6 "6" U8 "8" U9 "9" U1_WRITE "1:write" U3_WRITE "3:write"
}

pub(super) const HELD: Value = Value::Nil;
pub(super) const NO_SUCH_HOLD: Value = Value::Int(-3);
pub(super) const UNKNOWN: Value = Value::Int(-1);
pub(super) const DONE: Value = Value::Int(0);
pub(super) const NOT_HELD: Value = Value::Int(-1);

pub(super) fn list(items: &[i64]) -> Value {
    Value::Array(items.iter().map(|item| Value::Int(*item)).collect())
}

/// Whether a duration was measured from a moment ago.
pub(super) fn near(actual: i64, expected: i64) -> bool {
    (expected - 2_000..=expected).contains(&actual)
}

/// Whether the reply says that the lock is held elsewhere, for about this long.
pub(super) fn elsewhere(reply: &Value, expected: i64) -> bool {
    matches!(reply, Value::Int(remaining) if near(*remaining, expected))
}

/// The token that an attempt at one lock was granted.
pub(super) fn token_of(reply: &Value) -> u64 {
    match reply::acquired(reply) {
        Ok(Acquired::Held { tokens }) => tokens[0].expect("a token").get(),
        other => panic!("{other:?}"),
    }
}

/// The place in the queue that a refused attempt has.
pub(super) fn place_of(reply: &Value) -> Queued {
    match reply::acquired(reply) {
        Ok(Acquired::Elsewhere { place, .. }) => place.expect("a place"),
        other => panic!("{other:?}"),
    }
}

/// The contents of all keys, without times and scores, which change by themselves.
pub(super) type Keys = BTreeMap<String, Vec<String>>;

/// A server, and an administrator's connection to it.
pub(super) struct Fixture {
    pub(super) server: Server,
    pub(super) connection: MultiplexedConnection,
}

impl Fixture {
    pub(super) async fn new() -> Self {
        let server = Server::start();
        let connection = server.admin().await;
        Self { server, connection }
    }

    /// A user with all rights except these.
    pub(super) async fn user(&mut self, rights: &str) -> User {
        let mut set = redis::cmd("ACL");
        set.arg(&["SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all"])
            .arg(rights.split(' ').collect::<Vec<_>>());
        let () = set.query_async(&mut self.connection).await.unwrap();
        let url = format!("redis://u:p@{}", self.server.addr());
        let client = redis::Client::open(url).unwrap();
        User(client.get_multiplexed_async_connection().await.unwrap())
    }

    pub(super) async fn run(&mut self, name: &str, keys: &[&str], args: &[&str]) -> Value {
        let reply = eval(&mut self.connection, name, keys, args).await;
        reply.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(super) async fn refused(&mut self, name: &str, keys: &[&str], args: &[&str]) -> RedisError {
        let reply = eval(&mut self.connection, name, keys, args).await;
        reply.expect_err(name)
    }

    /// Runs these in one transaction, so that no time passes between them, however busy the machine is.
    pub(super) async fn at_once<const N: usize>(&mut self, commands: [Cmd; N]) -> [Value; N] {
        let mut transaction = redis::pipe();
        transaction.atomic();
        for command in commands {
            transaction.add_command(command);
        }
        let replies: Vec<Value> = transaction.query_async(&mut self.connection).await.unwrap();
        replies.try_into().expect("a reply to each")
    }

    pub(super) async fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection).await.unwrap()
    }

    /// Runs a command and ignores the reply.
    pub(super) async fn make(&mut self, words: &[&str]) {
        let _: Value = self.ask(words).await;
    }

    pub(super) async fn pttl_of(&mut self, key: &str) -> i64 {
        self.ask(&["PTTL", key]).await
    }

    pub(super) async fn score(&mut self, key: &str, member: &str) -> i64 {
        let score: f64 = self.ask(&["ZSCORE", key, member]).await;
        score as i64
    }

    pub(super) async fn now(&mut self) -> i64 {
        let now: Vec<i64> = self.ask(&["TIME"]).await;
        now[0] * 1_000 + now[1] / 1_000
    }

    /// Makes the server refuse every command that needs memory.
    pub(super) async fn fill(&mut self) {
        self.make(&["CONFIG", "SET", "maxmemory", "1"]).await;
    }

    pub(super) async fn keys(&mut self) -> Keys {
        let mut seen = Keys::new();
        for key in self.server.keys().await {
            let kind: String = self.ask(&["TYPE", &key]).await;
            let mut content: Vec<String> = match &*kind {
                "hash" => self.ask(&["HGETALL", &key]).await,
                "list" => self.ask(&["LRANGE", &key, "0", "-1"]).await,
                "zset" => self.ask(&["ZRANGE", &key, "0", "-1"]).await,
                _ => vec![self.ask(&["GET", &key]).await],
            };
            if kind == "zset" {
                content.sort();
            }
            seen.insert(key, content);
        }
        seen
    }

    /// Subscribes to all channels.
    pub(super) async fn subscriber(&self) -> Subscriber {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut listener = client.get_async_pubsub().await.unwrap();
        listener.psubscribe("*").await.unwrap();
        Subscriber(listener)
    }

    /// The messages since the last call, as `channel payload`.
    pub(super) async fn messages(&mut self, subscriber: &mut Subscriber) -> Vec<String> {
        // Messages arrive in order, so this one marks the end.
        self.make(&["PUBLISH", "that is all", ""]).await;
        let mut messages = Vec::new();
        let mut stream = subscriber.0.on_message();
        loop {
            let message = within(Duration::from_secs(5), stream.next()).await;
            let message = message.expect("a connection that stays");
            if message.get_channel_name() == "that is all" {
                return messages;
            }
            let payload: String = message.get_payload().unwrap();
            messages.push(format!("{} {payload}", message.get_channel_name()));
        }
    }
}

/// Receives all messages.
pub(super) struct Subscriber(PubSub);

/// The connection of a user with fewer rights.
pub(super) struct User(MultiplexedConnection);

impl User {
    pub(super) async fn run(
        &mut self,
        name: &str,
        keys: &[&str],
        args: &[&str],
    ) -> RedisResult<Value> {
        eval(&mut self.0, name, keys, args).await
    }

    pub(super) async fn refused(&mut self, name: &str, keys: &[&str], args: &[&str]) -> RedisError {
        self.run(name, keys, args).await.expect_err(name)
    }
}

async fn eval(
    connection: &mut MultiplexedConnection,
    name: &str,
    keys: &[&str],
    args: &[&str],
) -> RedisResult<Value> {
    script(name, keys, args).query_async(connection).await
}

pub(super) fn script(name: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let listed = catalog::ALL.iter().find(|(listed, _)| *listed == name);
    let (_, script) = listed.expect("a script of this name");
    let mut eval = redis::cmd("EVAL");
    eval.arg(script.text()).arg(keys.len()).arg(keys).arg(args);
    eval
}
