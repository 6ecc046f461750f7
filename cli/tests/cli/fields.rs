//! The names of the fields of `--json`: `docs/public-cli.txt` lists them, so that a review shows every change.

use std::collections::BTreeSet;
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Server, eventually, spawn};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::place::Place;
use crate::support::BOUND;

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/public-cli.txt");

const HEAD: &str = "\
# The fields of what lockset prints with --json, by verb; not `trouble` of top. Renew with
# LOCKSET_WRITE_CLI=1 cargo test -p lockset-cli --test cli fields
";

/// Adds the fields of a value: `verb.field`, and `verb.field[].field` in lists.
fn add(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                add(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(values) => {
            let path = format!("{path}[]");
            values.iter().for_each(|value| add(value, &path, found));
        }
        _ => {}
    }
}

/// Adds the fields of all objects that a verb prints on either output.
async fn said(place: &Place, found: &mut BTreeSet<String>, status: i32, arguments: &[&str]) {
    let ended = place.ended(&[&["--json"], arguments].concat()).await;
    assert_eq!(ended.status, status, "{arguments:?}: {ended:?}");
    let lines = ended.out.lines().chain(ended.err.lines());
    let objects: Vec<Value> = lines
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert!(!objects.is_empty(), "{arguments:?}: {ended:?}");
    for object in objects {
        add(&object, arguments[0], found);
    }
}

/// Adds the fields of `top`, which has no end, with a lock that is held.
async fn said_by_top(place: &Place, found: &mut BTreeSet<String>) {
    let mut top = place.start(&["--json", "top", "--budget", "50"]);
    loop {
        let second: Value = serde_json::from_str(&top.line().await).unwrap();
        add(&second, "top", found);
        if !second["top"][0].is_null() {
            return;
        }
    }
}

/// A counter of tokens that was not used since 2001.
async fn leave_token(server: &Server) {
    let counter = "redisson_lock_token:{ledger}";
    let mut set = redis::cmd("SET");
    set.arg(counter).arg(1_000_000_000_000_000_u64);
    let () = set.query_async(&mut server.admin().await).await.unwrap();
}

async fn announcing(url: &str) -> Client {
    let builder = Client::builder(url).announce_every(Duration::from_millis(200));
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_json_are_those_of_the_list() {
    let server = Server::start();
    let place = Place::new(server.url());
    let (client, other) = (announcing(&place.url).await, announcing(&place.url).await);
    let desk = client.fair_lock("desk").fenced().lock().await.unwrap();
    let _seat = client
        .semaphore("seats")
        .permits(3)
        .acquire()
        .await
        .unwrap();
    let leader = client.election("leader").value("x");
    let _leader = leader.campaign().await.unwrap();
    let latch = client.latch("gate");
    assert!(latch.init(2).await.unwrap());
    let step = client.barrier("step", 2);
    leave_token(&server).await;
    let _plain = client.lock("plain").lock().await.unwrap();
    let (fair, plain) = (other.fair_lock("desk"), other.lock("plain"));
    let waits = [
        spawn(async move { fair.lock().await.map(drop) }),
        spawn(async move { plain.lock().await.map(drop) }),
        spawn(async move { latch.wait().await }),
        spawn(async move { step.wait().await.map(drop) }),
    ];
    for (name, list) in [
        ("desk", "queue"),
        ("plain", "channels"),
        ("plain", "announced_waits"),
    ] {
        eventually(BOUND, list, async || {
            let shown = place.objects(&["show", name], 0).await.remove(0);
            !shown[list][0].is_null()
        })
        .await;
    }
    for name in ["gate", "step"] {
        eventually(BOUND, name, async || {
            let listed = place.objects(&["list", "--contended"], 0).await;
            listed.iter().any(|lock| lock["name"] == name)
        })
        .await;
    }
    let once = ["once", "a", "--for", "1m", "--", "true"];
    assert_eq!(place.status(&once).await, 0);
    let mut found = BTreeSet::new();
    let holder = desk.holder_id();
    let release = ["release", "desk", "--holder", holder];
    for (status, arguments) in [
        (0, &["list", "--budget", "50"][..]),
        (0, &["list", "--contended"]),
        (0, &["show", "desk"]),
        (0, &["show", "plain"]),
        (0, &["show", "seats"]),
        (0, &["show", "leader"]),
        (0, &["show", "step"]),
        (0, &["tokens"]),
        (0, &["purge", "old", "--permits", "3"]),
        (1, &["show", "free"]),
        (75, &["run", "desk", "--try", "--", "true"]),
        (75, &["wait", "desk", "--timeout", "1ms"]),
        (75, &once),
        (0, &["doctor"]),
        (0, &["free", "leader", "--yes", "--reason", "test"]),
        (0, &release),
    ] {
        said(&place, &mut found, status, arguments).await;
    }
    said_by_top(&place, &mut found).await;
    let gone = Server::start();
    let nowhere = Place::new(gone.url());
    gone.kill();
    let wait = ["run", "desk", "--wait", "300ms", "--", "true"];
    said(&nowhere, &mut found, 69, &wait).await;
    waits.iter().for_each(JoinHandle::abort);
    let list = found.iter().map(|field| format!("{field}\n"));
    let list = format!("{HEAD}{}", list.collect::<String>());
    if std::env::var_os("LOCKSET_WRITE_CLI").is_some() {
        std::fs::write(LIST, &list).unwrap();
    }
    let listed = std::fs::read_to_string(LIST).unwrap_or_default();
    assert_eq!(list, listed, "scripts go by these names");
}
