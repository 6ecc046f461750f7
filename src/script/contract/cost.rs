//! What each verb asks of the server: the table in `lua/README.md` is counted here, by `MONITOR`.

use std::time::Duration;

use futures_util::StreamExt;
use lockset_testkit::within;
use redis::aio::Monitor;

use super::bench::{Bench, U1, U2, U3, U4};
use super::file;

/// Watches a server, and notes what each script calls.
struct Till {
    bench: Bench,
    monitor: Monitor,
    rows: Vec<String>,
}

impl Till {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let client = redis::Client::open(bench.server.url()).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        Self {
            bench,
            monitor,
            rows: Vec::new(),
        }
    }

    /// Runs a script that makes the scene for the next.
    async fn stage(&mut self, script: &str, keys: &[&str], args: &[&str]) {
        self.bench.run(script, keys, args).await;
    }

    /// Runs a script and notes what it called, in order, as a row of the table.
    async fn row(&mut self, verb: &str, script: &str, keys: &[&str], args: &[&str]) {
        self.until("before").await;
        self.bench.run(script, keys, args).await;
        let mut calls: Vec<(String, usize)> = Vec::new();
        for name in self.until("after").await {
            match calls.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => calls.push((name, 1)),
            }
        }
        let calls = calls.iter().map(|(name, count)| match count {
            1 => name.clone(),
            _ => format!("{name} ({count})"),
        });
        let calls = calls.collect::<Vec<_>>().join(", ");
        self.rows.push(format!("| {verb} | {calls} |"));
    }

    /// What scripts have called up to here.
    async fn until(&mut self, mark: &str) -> Vec<String> {
        self.bench.make(&["ECHO", mark]).await;
        let mut called = Vec::new();
        let mut lines = self.monitor.on_message::<String>();
        loop {
            let line = within(Duration::from_secs(5), lines.next()).await;
            let line = line.expect("a connection that stays");
            let (from, words) = line.split_once("] ").expect("who called what");
            let name = words.split('"').nth(1).expect("a command").to_lowercase();
            // A client has an address, a script has none.
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

#[tokio::test]
async fn the_table_of_calls_is_true() {
    let mut till = Till::new().await;
    let take = |holder, place| [holder, "1", "30000", "0", place, "C", "PUBLISH"];
    let leave = |holder| [holder, "0", "0", "C", "PUBLISH"];
    let (acquire, release) = ("fair_acquire", "fair_release");
    till.row("fair acquire", acquire, &FAIR, &take(U1, "0"))
        .await;
    till.row(
        "fair acquire, held elsewhere, the first to wait",
        acquire,
        &FAIR,
        &take(U2, "3000"),
    )
    .await;
    till.row(
        "fair acquire, held elsewhere, behind others",
        acquire,
        &FAIR,
        &take(U3, "3000"),
    )
    .await;
    till.row(
        "fair acquire, in the queue already",
        acquire,
        &FAIR,
        &take(U2, "3000"),
    )
    .await;
    till.row(
        "fair acquire, held elsewhere, takes no place",
        acquire,
        &FAIR,
        &take(U4, "0"),
    )
    .await;
    till.row(
        "fair release, the next one does not hear of it",
        release,
        &FAIR,
        &leave(U1),
    )
    .await;
    till.row(
        "fair acquire, free, not its turn",
        acquire,
        &FAIR,
        &take(U4, "0"),
    )
    .await;
    till.row(
        "fair acquire, first in the queue",
        acquire,
        &FAIR,
        &take(U2, "3000"),
    )
    .await;
    till.row("fair, gives up its place", release, &FAIR, &leave(U3))
        .await;
    till.row("fair release, nobody waits", release, &FAIR, &leave(U2))
        .await;
    for (holder, place) in [(U1, "0"), (U2, "3000.25"), (U3, "3000")] {
        till.stage(acquire, &FAIR, &take(holder, place)).await;
    }
    let ear = till.bench.ear().await;
    till.row(
        "fair release, the next one asks by itself",
        release,
        &FAIR,
        &leave(U1),
    )
    .await;
    till.row(
        "fair, the head gives up, the next one is handed it",
        release,
        &FAIR,
        &leave(U2),
    )
    .await;
    till.stage(acquire, &FAIR, &take(U4, "3000")).await;
    till.row(
        "fair release, the next one is handed it",
        release,
        &FAIR,
        &leave(U3),
    )
    .await;
    drop(ear);

    // Leases far apart, so that the milliseconds that pass decide nothing.
    let read = |holder, count, lease, is_new| [holder, count, lease, "0", is_new, "0", "0"];
    let write = |holder, count, is_new, place| [holder, count, "15000", "0", is_new, place];
    let settle = |holder, writes, reads| [holder, writes, reads, "10000", "C", "PUBLISH"];
    till.row("read", "read_acquire", &RW, &read(U1, "1", "90000", "1"))
        .await;
    till.row(
        "read, others read",
        "read_acquire",
        &RW,
        &read(U2, "1", "60000", "1"),
    )
    .await;
    till.row(
        "read again",
        "read_acquire",
        &RW,
        &read(U2, "2", "70000", "0"),
    )
    .await;
    till.row(
        "read release, reads on",
        "rw_release",
        &RW,
        &settle(U2, "0", "1"),
    )
    .await;
    till.row("renew a reader", "rw_renew", &RW[..1], &[U2, "80000"])
        .await;
    till.row(
        "write, others read",
        "write_acquire",
        &RW,
        &write(U3, "1", "1", "0"),
    )
    .await;
    till.row(
        "write, others read, waits",
        "write_acquire",
        &RW,
        &write(U3, "1", "1", "3000"),
    )
    .await;
    till.row(
        "read, a writer waits",
        "read_acquire",
        &RW,
        &read(U4, "1", "30000", "1"),
    )
    .await;
    till.row(
        "write, gives up waiting",
        "rw_release",
        &RW,
        &settle(U3, "0", "0"),
    )
    .await;
    // Its own lease is the longest, whatever time passes between two calls of a script.
    till.stage("rw_renew", &RW[..1], &[U1, "95000"]).await;
    till.row(
        "read release, others read on",
        "rw_release",
        &RW,
        &settle(U1, "0", "0"),
    )
    .await;
    till.row(
        "read release, the last",
        "rw_release",
        &RW,
        &settle(U2, "0", "0"),
    )
    .await;
    till.row("write", "write_acquire", &RW, &write(U1, "1", "1", "3000"))
        .await;
    till.row(
        "write again",
        "write_acquire",
        &RW,
        &write(U1, "2", "0", "0"),
    )
    .await;
    till.row(
        "read, held by a writer",
        "read_acquire",
        &RW,
        &read(U2, "1", "30000", "1"),
    )
    .await;
    till.row(
        "write release, writes on",
        "rw_release",
        &RW,
        &settle(U1, "1", "0"),
    )
    .await;
    till.row("renew a writer", "rw_renew", &RW[..1], &[U1, "15000"])
        .await;
    till.row("downgrade", "rw_release", &RW, &settle(U1, "0", "1"))
        .await;
    till.stage("rw_release", &RW, &settle(U1, "0", "0")).await;
    till.stage("write_acquire", &RW, &write(U1, "1", "1", "0"))
        .await;
    till.row("write release", "rw_release", &RW, &settle(U1, "0", "0"))
        .await;

    let two = [
        "PUBLISH",
        "0",
        "0",
        "reentrant",
        U1,
        "30000",
        "0",
        "0",
        "0",
        "C",
    ];
    let two = [&two[..], &two[3..]].concat();
    till.row(
        "multi, two reentrant locks",
        "multi_acquire",
        &["A", "TA", "B", "TB"],
        &two,
    )
    .await;
    let two = ["PUBLISH", "reentrant", U1, "0", "0", "0", "C"];
    let two = [&two[..], &two[1..]].concat();
    till.row(
        "multi release, two reentrant locks",
        "multi_release",
        &["A", "B"],
        &two,
    )
    .await;
    till.row("raise a token", "raise_token", &["T"], &["7"])
        .await;
    till.row("raise a token, it is larger", "raise_token", &["T"], &["6"])
        .await;

    let readme = file("README.md");
    let rows = till.rows.join("\n");
    assert!(readme.contains(&rows), "the table should read\n{rows}");
}
