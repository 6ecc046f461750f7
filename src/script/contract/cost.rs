//! Counts the redis calls of each verb by `MONITOR`, and compares them with the table in `lua/README.md`.

use std::time::Duration;

use futures_util::StreamExt;
use lockset_testkit::within;
use redis::aio::Monitor;

use super::fair::{CHANNEL, GRANT, NO_PLACE, WAKE, ask_args, leave_args};
use super::file;
use super::fixture::{Fixture, U1, U2, U3, U4, U9};

/// Watches a server and records the redis calls of each script.
struct CallCounter {
    fixture: Fixture,
    monitor: Monitor,
    rows: Vec<String>,
}

impl CallCounter {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let client = redis::Client::open(fixture.server.url()).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        Self {
            fixture,
            monitor,
            rows: Vec::new(),
        }
    }

    /// Runs all steps. Adds a row to the table for each step that has a name.
    async fn run(&mut self, steps: Vec<Step>) {
        for step in steps {
            self.called_until("before").await;
            self.fixture.run(step.script, step.keys, &step.args).await;
            let called = self.called_until("after").await;
            let Some(name) = step.name else {
                continue;
            };
            let mut calls: Vec<(String, usize)> = Vec::new();
            for call in called {
                match calls.iter_mut().find(|(known, _)| *known == call) {
                    Some((_, count)) => *count += 1,
                    None => calls.push((call, 1)),
                }
            }
            let calls = calls.iter().map(|(call, count)| match count {
                1 => call.clone(),
                _ => format!("{call} ({count})"),
            });
            let calls = calls.collect::<Vec<_>>().join(", ");
            self.rows.push(format!("| {name} | {calls} |"));
        }
    }

    /// Returns the redis calls of scripts since the last mark.
    async fn called_until(&mut self, mark: &str) -> Vec<String> {
        self.fixture.make(&["ECHO", mark]).await;
        let mut called = Vec::new();
        let mut lines = self.monitor.on_message::<String>();
        loop {
            let line = within(Duration::from_secs(5), lines.next()).await;
            let line = line.expect("a connection that stays");
            let (from, words) = line.split_once("] ").expect("who called what");
            let name = words.split('"').nth(1).expect("a command").to_lowercase();
            // A command of a client shows its address, a command of a script shows none.
            if !from.contains(':') {
                called.push(name);
            } else if name == "echo" && words.contains(mark) {
                return called;
            }
        }
    }
}

const FAIR: [&str; 4] = [
    "F",
    "redisson_lock_queue:{F}",
    "redisson_lock_timeout:{F}",
    "lockset_fair_alive:{F}",
];
const RW: [&str; 2] = ["W", "lockset_rw_waiting:{W}"];

const READER: &[&str] = &["W"];

/// One script call, with its name in the table. A call without a name prepares the next one.
struct Step {
    name: Option<&'static str>,
    script: &'static str,
    keys: &'static [&'static str],
    args: Vec<&'static str>,
}

impl Step {
    fn called(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }
}

fn step(script: &'static str, keys: &'static [&'static str], args: &[&'static str]) -> Step {
    Step {
        name: None,
        script,
        keys,
        args: args.to_vec(),
    }
}

fn fair(holder: &'static str, on_turn: &'static str) -> Step {
    step("fair_acquire", &FAIR, &ask_args(holder, on_turn))
}

fn fair_ends(holder: &'static str) -> Step {
    step("fair_release", &FAIR, &leave_args(holder))
}

fn read(holder: &'static str, lease: &'static str) -> Step {
    step("read_acquire", &RW, &[holder, lease, "0", "0", "0"])
}

fn write(holder: &'static str, heartbeat: &'static str) -> Step {
    step("write_acquire", &RW, &[holder, "15000", "0", heartbeat])
}

fn rw_ends(holder: &'static str) -> Step {
    step("rw_release", &RW, &[holder, "C", "PUBLISH"])
}

fn rw_renew(holder: &'static str, lease: &'static str) -> Step {
    step("rw_renew", READER, &[holder, lease])
}

/// A fair lock without subscribed waiters.
fn fair_without_listeners() -> Vec<Step> {
    vec![
        fair(U1, NO_PLACE).called("fair acquire"),
        fair(U2, GRANT).called("fair acquire, held elsewhere, the first to wait"),
        fair(U3, GRANT).called("fair acquire, held elsewhere, behind others"),
        fair(U2, GRANT).called("fair acquire, in the queue already"),
        step("fair_place", &FAIR[1..2], &[U3, "1000"]).called("fair, where it stands"),
        step(
            "fair_heartbeat",
            &FAIR,
            &["3000", "C", "PUBLISH", "0", U2, U3],
        )
        .called("fair, the places of two waiters are kept"),
        fair(U4, NO_PLACE).called("fair acquire, held elsewhere, takes no place"),
        fair_ends(U1).called("fair release, the next one does not hear of it"),
        fair(U4, NO_PLACE).called("fair acquire, free, not its turn"),
        fair(U2, GRANT).called("fair acquire, first in the queue"),
        fair_ends(U3).called("fair, gives up its place"),
        fair_ends(U2).called("fair release, nobody waits"),
    ]
}

/// A fair lock with subscribed waiters.
fn fair_with_listeners() -> Vec<Step> {
    vec![
        fair(U1, NO_PLACE),
        fair(U2, WAKE),
        fair(U3, GRANT),
        fair_ends(U1).called("fair release, the next one asks by itself"),
        fair_ends(U2).called("fair, the head gives up, the next one is handed it"),
        fair(U4, GRANT),
        fair_ends(U3).called("fair release, the next one is handed it"),
        fair(U2, GRANT),
        fair(U3, GRANT),
        step(
            "fair_release",
            &FAIR,
            &[U4, CHANNEL, "PUBLISH", "0", U2, U3],
        )
        .called("fair release, two places were used, nobody waits"),
        fair(U4, NO_PLACE),
    ]
}

/// The leases differ widely, so a few milliseconds do not matter.
fn readers_and_writers() -> Vec<Step> {
    vec![
        read(U1, "90000").called("read"),
        read(U2, "60000").called("read, others read"),
        rw_renew(U2, "80000").called("renew a reader"),
        write(U3, "0").called("write, others read"),
        write(U3, "3000").called("write, others read, waits"),
        read(U4, "30000").called("read, a writer waits"),
        rw_ends(U3).called("write, gives up waiting"),
        // This lease must remain the longest, even if time passes between two calls of a script.
        rw_renew(U1, "95000"),
        rw_ends(U1).called("read release, others read on"),
        rw_ends(U2).called("read release, the last"),
        write(U1, "3000").called("write"),
        read(U2, "30000").called("read, held by a writer"),
        // Longer than the lease of `write`, even if none of that has passed yet.
        rw_renew(U1, "30000").called("renew a writer"),
        step("rw_downgrade", &RW, &[U1, "10000", "C", "PUBLISH"]).called("downgrade"),
        rw_ends(U1),
        write(U1, "0"),
        rw_ends(U1).called("write release"),
    ]
}

fn several_locks_and_tokens() -> Vec<Step> {
    let two = ["PUBLISH", "0", "0", "30000", U1, U1];
    let hold = ["plain", U1, "C"];
    let both = [&["PUBLISH"], &hold[..], &hold].concat();
    vec![
        step("multi_acquire", &["A", "B"], &two).called("multi, two reentrant locks"),
        step("multi_release", &["A", "B"], &both).called("multi release, two reentrant locks"),
        step("raise_token", &["T"], &["7"]).called("raise a token"),
        step("raise_token", &["T"], &["6"]).called("raise a token, it is larger"),
        step("reentrant_acquire", &["A"], &[U1, "30000", "0"]),
        step("take_token", &["A", "T"], &[U1, "0"]).called("take a token for a hold"),
    ]
}

/// Holds released before their `at_least` is over, with the notification of their waiters.
fn what_is_kept() -> Vec<Step> {
    let keep = [U9, "1000", "C", "PUBLISH"];
    let kept = |holder| [&[holder], &keep[..]].concat();
    vec![
        step("reentrant_acquire", &["K"], &[U1, "30000", "0"]),
        step("keep", &["K"], &kept(U1)).called("keep until later"),
        // The fair lock is held by the waiter that it was last handed over to.
        fair(U2, GRANT),
        step("keep", &FAIR[..2], &kept(U4)).called("keep a fair lock until later"),
        write(U1, "0"),
        step("rw_keep", READER, &kept(U1)).called("keep a writer until later"),
        rw_ends(U9),
        read(U1, "30000"),
        step("rw_keep", READER, &kept(U1)).called("keep a reader until later"),
    ]
}

fn recalls() -> Vec<Step> {
    let recall = |key| step("recall", key, &["lockset_recall:", "PUBLISH"]);
    vec![
        step("reentrant_acquire", &["R"], &[U1, "30000", "0"]),
        recall(&["R"]).called("recall"),
        recall(READER).called("recall a reader"),
    ]
}

#[tokio::test]
async fn the_table_of_calls_is_true() {
    let mut counter = CallCounter::new().await;
    counter.run(fair_without_listeners()).await;
    let subscriber = counter.fixture.subscriber().await;
    counter.run(fair_with_listeners()).await;
    drop(subscriber);
    counter.run(readers_and_writers()).await;
    counter.run(several_locks_and_tokens()).await;
    counter.run(what_is_kept()).await;
    counter.run(recalls()).await;
    let readme = file("README.md");
    let mut wrong = counter.rows.iter().filter(|row| !readme.contains(*row));
    assert_eq!(wrong.next(), None, "the first row that differs");
    let rows = counter.rows.join("\n");
    assert!(readme.contains(&rows), "the table should be\n{rows}");
}
