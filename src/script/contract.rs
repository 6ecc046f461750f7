//! The contract of every Lua file: its header says what its body reads, it is spliced from the
//! pieces it uses, it loads, and it replies as its header says.

use std::collections::BTreeSet;

use lockset_testkit::Server;
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::catalog;

/// The comment a file starts with, and the rest.
fn header_and_body(text: &str) -> (&str, &str) {
    let start = text.find("--[[").expect("a header");
    let end = text.find("]]\n").expect("the end of the header");
    (&text[start..end], &text[end + 3..])
}

/// The places `KEYS[..]` and `ARGV[..]` named in a text. An index that is not a number belongs to a
/// loop and stands as `i`.
fn places(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in ["KEYS", "ARGV"] {
        for (at, _) in text.match_indices(&format!("{table}[")) {
            let index = &text[at + table.len() + 1..];
            let index = &index[..index.find(']').expect("a closing bracket")];
            let index = if index.parse::<u32>().is_ok() {
                index
            } else {
                "i"
            };
            found.insert(format!("{table}[{index}]"));
        }
        // Walking over a whole table reads all of it.
        if text.contains(&format!("ipairs({table})")) {
            found.insert(format!("{table}[i]"));
        }
    }
    found
}

fn file(name: &str) -> String {
    let path = format!("{}/lua/{name}.lua", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_header_names_what_its_body_reads() {
    for (name, script) in catalog::ALL {
        let (header, body) = header_and_body(script.text);
        assert!(
            header.contains(&format!("\n  {name}: ")),
            "{name}: its name"
        );
        assert!(header.contains("\n  Reply "), "{name}: its reply");
        assert_eq!(places(header), places(body), "{name}: said and read");
    }
}

#[test]
fn every_file_is_in_the_catalog_with_the_pieces_it_calls() {
    let folder = |path: &str| -> BTreeSet<String> {
        std::fs::read_dir(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")))
            .unwrap()
            .filter_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                name.strip_suffix(".lua").map(str::to_owned)
            })
            .collect()
    };
    let listed: BTreeSet<_> = catalog::ALL
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(folder("lua"), listed);
    for (name, script) in catalog::ALL {
        assert!(script.text.ends_with(&file(name)), "{name}");
        for piece in folder("lua/includes") {
            let spliced = script
                .text
                .matches(&file(&format!("includes/{piece}")))
                .count();
            let named = mentions(script.text, &piece);
            // Where it is spliced, once for its definition.
            let called = named > spliced;
            assert_eq!(spliced, usize::from(called), "{name} and {piece}");
        }
    }
}

/// How often a function is defined, called or handed to another in a text.
fn mentions(text: &str, function: &str) -> usize {
    let found = text.match_indices(function).map(|(at, _)| at);
    found
        .filter(|at| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .filter(|at| {
            let rest = &text[at + function.len()..];
            rest.starts_with('(') || (text[..*at].ends_with('(') && rest.starts_with(','))
        })
        .count()
}

/// A server, and a script run on it as the engine does.
struct Bench {
    server: Server,
    connection: MultiplexedConnection,
}

impl Bench {
    async fn new() -> Self {
        let server = Server::start();
        let connection = server.admin().await;
        Self { server, connection }
    }

    async fn run(&mut self, name: &str, keys: &[&str], args: &[&str]) -> Value {
        let (_, script) = catalog::ALL
            .iter()
            .find(|(listed, _)| *listed == name)
            .unwrap();
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text).arg(keys.len()).arg(keys).arg(args);
        eval.query_async(&mut self.connection).await.unwrap()
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection).await.unwrap()
    }

    async fn acquire(&mut self, holder: &str, count: &str, lease: &str) -> Value {
        self.run("reentrant_acquire", &["L"], &[holder, count, lease, "0"])
            .await
    }

    async fn fenced(&mut self, holder: &str) -> u64 {
        let keys = ["L", "redisson_lock_token:{L}"];
        let reply = self
            .run("reentrant_acquire", &keys, &[holder, "1", "30000", "1"])
            .await;
        match super::reply::acquired(&reply).unwrap() {
            super::reply::Acquired::Held { token: Some(token) } => token.get(),
            other => panic!("{other:?}"),
        }
    }

    async fn release(&mut self, holder: &str, count: &str) -> Value {
        let args = [holder, count, "1", "redisson_lock__channel:{L}", "PUBLISH"];
        self.run("reentrant_release", &["L"], &args).await
    }

    async fn holds(&mut self) -> Vec<String> {
        self.ask(&["HGETALL", "L"]).await
    }

    async fn pttl(&mut self) -> i64 {
        self.ask(&["PTTL", "L"]).await
    }
}

fn list(items: &[i64]) -> Value {
    Value::Array(items.iter().map(|item| Value::Int(*item)).collect())
}

const HELD: Value = Value::Nil;
const NO_SUCH_HOLD: Value = Value::Int(-3);
const DONE: Value = Value::Int(0);
const NOT_HELD: Value = Value::Int(-1);

fn near(actual: i64, expected: i64) -> bool {
    (expected - 2_000..=expected).contains(&actual)
}

/// The trace of Redisson's `RLock`, step by step, with our own replies and without its defects.
#[tokio::test]
async fn the_reentrant_trace() {
    let mut bench = Bench::new().await;
    assert_eq!(bench.acquire("u:1", "1", "30000").await, HELD);
    assert_eq!(bench.holds().await, ["u:1", "1"]);
    assert!(near(bench.pttl().await, 30_000));
    match bench.acquire("u:2", "1", "30000").await {
        Value::Int(rest) => assert!(near(rest, 30_000), "{rest}"),
        other => panic!("{other:?}"),
    }
    // A shorter lease of a re-entry does not shorten the one that runs.
    assert_eq!(bench.acquire("u:1", "2", "1000").await, HELD);
    assert_eq!(bench.holds().await, ["u:1", "2"]);
    assert!(near(bench.pttl().await, 30_000));
    // A longer one lengthens it, and a repeat changes nothing.
    for _ in 0..2 {
        assert_eq!(bench.acquire("u:1", "3", "60000").await, HELD);
        assert_eq!(bench.holds().await, ["u:1", "3"]);
        assert!(near(bench.pttl().await, 60_000));
    }
    for _ in 0..2 {
        assert_eq!(bench.release("u:1", "1").await, DONE);
        assert_eq!(bench.holds().await, ["u:1", "1"]);
    }
    assert_eq!(bench.release("u:2", "0").await, NOT_HELD, "a stranger");
    let client = redis::Client::open(bench.server.url()).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener
        .subscribe("redisson_lock__channel:{L}")
        .await
        .unwrap();
    assert_eq!(
        bench.release("u:1", "0").await,
        Value::Int(1),
        "one was told"
    );
    assert_eq!(bench.release("u:1", "0").await, NOT_HELD, "and not twice");
    assert_eq!(bench.holds().await, [""; 0]);
    assert_eq!(bench.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_re_entry_never_creates_a_hold() {
    let mut bench = Bench::new().await;
    assert_eq!(bench.acquire("u:1", "2", "30000").await, NO_SUCH_HOLD);
    assert_eq!(bench.server.keys().await, [""; 0]);
    bench.acquire("u:2", "1", "30000").await;
    assert_eq!(bench.acquire("u:1", "2", "30000").await, NO_SUCH_HOLD);
    assert_eq!(bench.holds().await, ["u:2", "1"]);
}

/// Somebody took the lease away: nothing of ours deletes the key over that.
#[tokio::test]
async fn a_key_without_a_lease_gets_one_back() {
    let mut bench = Bench::new().await;
    for (verb, lease) in [("acquire", 30_000), ("release", 1), ("renew", 30_000)] {
        bench.acquire("u:1", "1", "30000").await;
        let _: i64 = bench.ask(&["PERSIST", "L"]).await;
        assert_eq!(bench.acquire("u:2", "1", "30000").await, Value::Int(-1));
        match verb {
            "acquire" => drop(bench.acquire("u:1", "2", "30000").await),
            "release" => drop(bench.release("u:1", "1").await),
            _ => drop(bench.run("renew", &["L"], &["u:1", "30000"]).await),
        }
        assert!(near(bench.pttl().await, lease), "{verb}");
        bench.release("u:1", "0").await;
    }
}

#[tokio::test]
async fn tokens_grow_with_every_answer() {
    let mut bench = Bench::new().await;
    let first = bench.fenced("u:1").await;
    let now = bench.fenced("u:1").await;
    assert!(now > first, "a repeated grant has the token of its answer");
    bench.release("u:1", "0").await;
    let next = bench.fenced("u:2").await;
    assert!(next > now);
    assert!(next < 1 << 53);
    let kept: String = bench.ask(&["GET", "redisson_lock_token:{L}"]).await;
    assert_eq!(kept, next.to_string(), "exact, and plain digits");
}

#[tokio::test]
async fn renewal_inspection_and_force() {
    let mut bench = Bench::new().await;
    assert_eq!(bench.run("reentrant_inspect", &["L"], &[]).await, list(&[]));
    bench.acquire("u:1", "1", "1000").await;
    let _: Value = bench.ask(&["RPUSH", "foreign", "x"]).await;
    let args = [
        "u:1", "60000", "u:1", "60000", "u:1", "60000", "u:9", "60000",
    ];
    let keys = ["L", "absent", "foreign", "L"];
    let renewed = bench.run("renew", &keys, &args).await;
    assert_eq!(renewed, list(&[1, 0, 0, 0]));
    let _: Value = bench.ask(&["DEL", "foreign"]).await;
    assert!(near(bench.pttl().await, 60_000));
    // A late renewal for a shorter lease shortens nothing.
    bench.run("renew", &["L"], &["u:1", "1000"]).await;
    assert!(near(bench.pttl().await, 60_000));
    let seen = bench.run("reentrant_inspect", &["L"], &[]).await;
    let seen = super::reply::inspected(&seen).unwrap().unwrap();
    assert_eq!((&*seen.holder, seen.hold_count), ("u:1", 1));
    let args = ["redisson_lock__channel:{L}", "PUBLISH"];
    let forced = bench.run("reentrant_force_unlock", &["L"], &args).await;
    assert_eq!(forced, Value::Int(1));
    let again = bench.run("reentrant_force_unlock", &["L"], &args).await;
    assert_eq!(again, Value::Int(0));
    assert_eq!(bench.server.keys().await, [""; 0]);
}

/// A foreign counter is found before anything is written.
#[tokio::test]
async fn a_foreign_token_key_costs_nobody_the_lock() {
    let mut bench = Bench::new().await;
    let token = "redisson_lock_token:{L}";
    for make in [["RPUSH", token, "x"], ["SET", token, "not a number"]] {
        let _: Value = bench.ask(&make).await;
        let (_, script) = catalog::ALL[0];
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text)
            .arg(2)
            .arg(&["L", token, "u:1", "1", "30000", "1"]);
        let reply: redis::RedisResult<Value> = eval.query_async(&mut bench.connection).await;
        let error = reply.unwrap_err();
        assert_eq!(
            crate::conn::answer::code(&error),
            Some("WRONGTYPE"),
            "{error}"
        );
        assert_eq!(bench.server.keys().await, [token]);
        let _: i64 = bench.ask(&["DEL", token]).await;
    }
}

/// A user who may write but not expire: no hold without a lease is left.
#[tokio::test]
async fn a_lease_that_is_refused_leaves_no_hold() {
    let mut bench = Bench::new().await;
    let _: () = bench
        .ask(&[
            "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-pexpire",
        ])
        .await;
    let url = format!("redis://u:p@{}", bench.server.addr());
    let client = redis::Client::open(url).unwrap();
    let mut user = client.get_multiplexed_async_connection().await.unwrap();
    let (_, script) = catalog::ALL[0];
    let mut eval = redis::cmd("EVAL");
    eval.arg(script.text)
        .arg(1)
        .arg(&["L", "u:1", "1", "30000", "0"]);
    let reply: redis::RedisResult<Value> = eval.query_async(&mut user).await;
    let error = reply.unwrap_err();
    assert_eq!(
        crate::conn::answer::advice(&error).0,
        crate::error::Kind::Denied,
        "{error}"
    );
    assert_eq!(bench.server.keys().await, [""; 0]);
}
