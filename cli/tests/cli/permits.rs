//! `run --permits`: at most so many commands at once.

use lockset_testkit::{Server, eventually, unique_name};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BOUND, Running, ended, lockset};

#[tokio::test]
async fn at_most_as_many_commands_run_as_there_are_permits() {
    let server = Server::start();
    let (url, name) = (server.url(), unique_name("permits"));
    let start = |more: &[&str]| {
        let words = [&["run", &name, "--permits", "2"], more].concat();
        lockset(&url, &words)
    };
    let command = ["--", "sh", "-c", "echo $LOCKSET_HOLDER; sleep 60"];
    let mut first = Running::start(&mut start(&command));
    let mut second = Running::start(&mut start(&command));
    let holders = [first.line().await, second.line().await];
    assert!(holders[0] != holders[1], "{holders:?}");
    let busy = ended(&mut start(&["--try", "--", "echo", "ran"])).await;
    assert_eq!((busy.status, &*busy.out), (75, ""), "{busy:?}");
    let says = format!("busy: semaphore {name:?} is held by ");
    assert!(busy.err.contains(&says), "{busy:?}");
    // Another number is an error that names both.
    let words = ["run", &name, "--permits", "3", "--", "true"];
    let other = ended(&mut lockset(&url, &words)).await;
    assert_eq!(other.status, 64, "{other:?}");
    assert!(other.err.contains("2 permits, not with 3"), "{other:?}");
    assert!(!other.err.contains("resize"), "no verb does: {other:?}");
    // A command that ends makes room, in the order of asking, too.
    let places = async |count: i64| {
        eventually(BOUND, "so many wait", async || {
            let queue = format!("lockset_sem_queue:{{{name}}}");
            let asked = redis::cmd("ZCARD").arg(queue).clone();
            let asked = asked.query_async::<i64>(&mut server.admin().await).await;
            asked.unwrap() == count
        })
        .await;
    };
    let mut waiting = Vec::new();
    for asked in 1..=3 {
        let command = format!("echo {asked}; sleep 60");
        let fair = ["--fair", "--", "sh", "-c", &command];
        waiting.push(Running::start(&mut start(&fair)));
        places(asked).await;
    }
    let mut last = first;
    for (mut next, asked) in waiting.into_iter().zip(1..) {
        last.signal(Signal::TERM);
        assert_eq!(last.ended().await.status, 128 + 15);
        assert_eq!(next.line().await, asked.to_string());
        places(3 - asked).await;
        last = next;
    }
    for last in [last, second] {
        last.signal(Signal::TERM);
        last.ended().await;
    }
}

/// A client that has nothing but a permit.
#[tokio::test]
async fn operators_see_which_command_has_a_permit() {
    let server = Server::start();
    let start = ["run", "a", "--permits", "2", "--label", "night", "--"];
    let command = ["sh", "-c", "echo; exec sleep 60"];
    let arguments = [&start[..], &command].concat();
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    running.line().await;
    eventually(BOUND, "the command is shown", async || {
        let shown = ended(&mut lockset(&server.url(), &["show", "a", "--json"])).await;
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        shown["holders"][0]["label"] == "night"
    })
    .await;
    running.signal(Signal::TERM);
    running.ended().await;
    // The last one out takes the announcement with it.
    let left = server.keys().await;
    assert_eq!(left, ["a"], "the number of permits");
}

/// A semaphore with all its permits looks like any number, but this one was seen before.
#[tokio::test]
async fn permits_that_become_free_are_waited_for() {
    let server = Server::start();
    let client = lockset::Client::connect(&server.url()).await.unwrap();
    // Not renewed within the test.
    let semaphore = client.semaphore("a").permits(2).lease(BOUND * 10);
    let permit = semaphore.acquire().await.unwrap();
    let scripts = async || server.commandstats().await["evalsha"];
    let before = scripts().await;
    let look = ["wait", "a", "--timeout", "0"];
    let held = ended(&mut lockset(&server.url(), &look)).await;
    assert_eq!(held.status, 75, "{held:?}");
    let looked = scripts().await;
    let arguments = ["wait", "a", "--timeout", "60s"];
    let waiting = Running::start(&mut lockset(&server.url(), &arguments));
    eventually(BOUND, "it has seen the permit, too", async || {
        scripts().await - looked >= looked - before
    })
    .await;
    permit.release().await.unwrap();
    let ended = waiting.ended().await;
    assert_eq!(ended.status, 0, "{ended:?}");
}

#[tokio::test]
async fn permits_go_with_no_lock() {
    let server = Server::start();
    for words in [
        &["run", "a", "--permits", "2", "--read", "--", "true"][..],
        &["run", "a", "--permits", "2", "--with", "b", "--", "true"],
        &["run", "a", "--permits", "2", "--fenced", "--", "true"],
        &["run", "a", "--permits", "0", "--", "true"],
        &["run", "a", "b", "--permits", "2", "--", "true"],
    ] {
        let refused = ended(&mut lockset(&server.url(), words)).await;
        assert_eq!(refused.status, 64, "{words:?}: {refused:?}");
    }
    assert!(server.keys().await.is_empty());
}
