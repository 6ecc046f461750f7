//! Tests of the servers that have a vote, and of the leases that count.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::redlock::Redlock;
use crate::script::catalog::REENTRANT_ACQUIRE;
use crate::testing::{Answer, Scripted, granted};

#[test]
fn two_majorities_have_a_server_in_common() {
    for (servers, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
        assert_eq!(quorum(servers), majority, "of {servers}");
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn at(hours: u32) -> Tick {
    Tick::ZERO.after(HOUR * hours)
}

#[test]
fn a_lease_counts_until_it_is_over_and_for_as_long_again_or_ten_minutes() {
    let mut seen = Sightings::default();
    assert_eq!(seen.longest(at(1)), Duration::ZERO);
    let minute = HOUR / 60;
    for (lease, again) in [(12 * HOUR, 10 * minute), (minute, minute)] {
        seen.note(lease, HOUR, at(1));
        let over = at(1).after(lease + again);
        assert_eq!(
            seen.longest(at(1).after(lease + again - minute / 60)),
            lease
        );
        assert_eq!(seen.longest(over), Duration::ZERO);
        seen = Sightings::default();
    }
}

#[test]
fn a_longer_one_that_was_seen_before_counts_beside_a_shorter_one() {
    let mut seen = Sightings::default();
    seen.note(12 * HOUR, HOUR, at(1));
    seen.note(HOUR, HOUR, at(2));
    for hour in [2, 13] {
        assert_eq!(seen.longest(at(hour)), 12 * HOUR);
    }
    assert_eq!(seen.longest(at(14)), Duration::ZERO);
}

#[test]
fn a_shorter_one_that_is_seen_later_does_not_make_a_longer_one_count_for_longer() {
    let mut seen = Sightings::default();
    seen.note(12 * HOUR, HOUR, at(1));
    seen.note(2 * HOUR, HOUR, at(13));
    assert_eq!(seen.longest(at(13)), 12 * HOUR);
    assert_eq!(seen.longest(at(15)), 2 * HOUR);
}

#[test]
fn only_a_lease_longer_than_all_known_ones_has_an_unknown_length() {
    let mut seen = Sightings::default();
    seen.note(HOUR, HOUR, at(1));
    assert_eq!(seen.unknown_until, Tick::ZERO);
    seen.note(2 * HOUR, HOUR, at(1));
    let over = at(3).after(2 * HOUR / 100);
    assert_eq!(seen.unknown_until, over);
    // The rest of the same lease, and another of its length.
    seen.note(HOUR + HOUR / 2, HOUR, at(2));
    seen.note(2 * HOUR, HOUR, at(2));
    assert_eq!(seen.unknown_until, over);
    seen.note(3 * HOUR, HOUR, at(2));
    assert_eq!(seen.unknown_until, at(5).after(3 * HOUR / 100));
}

#[test]
fn what_is_seen_for_years_takes_no_more_room() {
    let mut seen = Sightings::default();
    for hour in 0..1_000 {
        seen.note(HOUR * (hour % 100), HOUR, at(hour));
    }
    assert!(seen.leases.len() < 10, "{}", seen.leases.len());
    assert_eq!(seen.longest(at(1_000)), 99 * HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_redlock_is_shown_by_its_addresses() {
    let clients = ["a:1", "b:2"].map(|address| {
        let server = Scripted::at(address, |_| Answer::Silence);
        Client::over(&server, HOUR)
    });
    let redlock = Redlock::builder(clients).persistent_nodes();
    let shown = format!("{:?}", redlock.build().unwrap());
    assert_eq!(shown, r#"Redlock(["a:1", "b:2"])"#);
}

/// A key may look like the address of one more server.
#[tokio::test(start_paused = true)]
async fn a_place_is_of_one_key_on_the_same_servers() {
    let clients = ["a:1", "b:2"].map(|address| {
        let server = Scripted::at(address, |_| Answer::Silence);
        Client::over(&server, HOUR)
    });
    let place_of = |at: &[usize], keys: &[&str]| {
        let clients = at.iter().map(|at| clients[*at].clone()).collect();
        let servers = Servers::of(clients, Duration::ZERO, true).unwrap();
        servers.place_of(keys.iter().copied())
    };
    let place = |at: &[usize], key: &str| place_of(at, &vec![key; at.len()]);
    assert_eq!(place(&[0, 1], "x"), place(&[1, 0], "x"));
    assert_ne!(place(&[0, 1], "x"), place(&[0, 1], "y"));
    assert_ne!(place(&[0, 1], "x"), place(&[0], "b:2 x"));
    // The clients have a `key_prefix` each.
    assert_ne!(place_of(&[0, 1], &["x", "p:x"]), place(&[0, 1], "x"));
    let swapped = place_of(&[1, 0], &["p:x", "x"]);
    assert_eq!(place_of(&[0, 1], &["x", "p:x"]), swapped);
}

/// A server that is busy, or refuses the question, may have replicas.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_say_whether_it_has_replicas_is_asked_again() {
    let asked = AtomicU32::new(0);
    let server = Scripted::at("a:1", move |_| {
        match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Error("BUSY Redis is busy running a script."),
            1 => Answer::Value(value("connected_slaves:1")),
            _ => Answer::Value(value("connected_slaves:0")),
        }
    });
    let client = Client::over(&server, HOUR);
    let servers = Servers::of(vec![client], Duration::ZERO, false).unwrap();
    let limit = Duration::from_secs(1);
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(servers.has_replicas(0, limit).await);
    }
    assert_eq!(answers, [false, true, false, false]);
    assert_eq!(server.sent().len(), 3, "once for this run");
}

/// No call asks it for a lock. A hold without it asks as soon as one task has found that it is up.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_left_alone_until_it_answers_again() {
    const MS: Duration = Duration::from_millis(1);
    let back_at = MS * 20_000;
    let nodes = ["a:1", "b:2", "c:3"].map(|address| {
        Scripted::at(address, move |sent| match sent.is_release() {
            _ if address == "c:3" && sent.at < back_at => Answer::Silence,
            true => Answer::Value(redis::Value::Int(1)),
            false => Answer::Value(granted()),
        })
    });
    let clients = nodes.each_ref();
    let clients = clients.map(|node| Client::over(node, MS * 300_000));
    let redlock = Redlock::builder(clients).persistent_nodes();
    let redlock = redlock.build().unwrap();
    let (lock, servers, silent) = (redlock.lock("x"), &redlock.0, &nodes[2]);
    let count = |script: &str| {
        let sent = silent.sent();
        sent.iter().filter(|sent| sent.words[1] == script).count()
    };
    let (attempts, probes) = (|| count(REENTRANT_ACQUIRE.sha()), || count("return 1"));
    for _ in 0..20 {
        drop(lock.lock().await.unwrap());
        tokio::time::sleep(MS * 100).await;
    }
    assert!(servers.is_down(2) && attempts() > 0);
    servers.mark_down(1);
    assert!(!servers.is_down(1), "the others would be no majority");
    let (asked, probed) = (attempts(), probes());
    let guard = lock.lock().await.unwrap();
    let mut back = std::pin::pin!(servers.wait_while_down(2, Tick::ZERO));
    let waited = tokio::time::timeout(back_at - MS * 3_000, &mut back).await;
    assert!(waited.is_err(), "it is down, though the end has come");
    assert_eq!(attempts(), asked);
    assert!(probes() > probed, "it is asked whether it is up");
    assert_eq!(guard.holder_ids().len(), 2);
    tokio::time::timeout(MS * 10_000, back)
        .await
        .expect("it is up");
    assert!(!servers.is_down(2) && silent.clock().now() >= Tick::ZERO.after(back_at));
    let last = probes();
    tokio::time::sleep(MS * 1_000).await;
    assert_eq!(guard.holder_ids().len(), 3, "it has joined");
    assert_eq!(probes(), last, "one answer is enough");
}

fn value(line: &str) -> redis::Value {
    redis::Value::BulkString(line.into())
}
