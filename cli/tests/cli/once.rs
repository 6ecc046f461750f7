//! `once`: one run per key and window.

use std::time::Duration;

use lockset_testkit::{Server, eventually, within};
use rustix::process::Signal;

use crate::support::{BOUND, Running, ended, is_alive, is_stopped, lockset, send};

#[tokio::test]
async fn a_key_is_claimed_until_its_window_ends() {
    let server = Server::start();
    let once = ["once", "mail:7", "--for", "1m", "--", "echo", "sent"];
    let first = ended(&mut lockset(&server.url(), &once)).await;
    assert_eq!((first.status, &*first.out, &*first.err), (0, "sent\n", ""));
    let second = ended(&mut lockset(&server.url(), &once)).await;
    assert_eq!((second.status, &*second.out), (75, ""), "{second:?}");
    assert!(second.err.contains("is claimed for 59."), "{second:?}");
    let json = [&["--json"], &once[..]].concat();
    let said: serde_json::Value =
        serde_json::from_str(&ended(&mut lockset(&server.url(), &json)).await.err).unwrap();
    assert_eq!(said["event"], "duplicate");
    assert!(said["remaining_ms"].as_u64().unwrap() <= 60_000);
}

#[tokio::test]
async fn a_command_that_fails_gives_its_key_back_unless_it_is_kept() {
    let server = Server::start();
    let run = async |more: &[&str], script: &str| {
        let arguments = [
            &["once", "a", "--for", "1m"],
            more,
            &["--", "sh", "-c", script],
        ]
        .concat();
        ended(&mut lockset(&server.url(), &arguments)).await.status
    };
    assert_eq!(run(&[], "exit 3").await, 3);
    assert_eq!(run(&[], "kill -KILL $$").await, 137);
    assert_eq!(run(&["--keep"], "exit 4").await, 4, "was given back twice");
    assert_eq!(run(&[], "true").await, 75, "kept");
}

#[tokio::test]
async fn a_key_is_kept_for_a_command_that_began_alone() {
    let server = Server::start();
    for (command, status) in [
        (&["/no/such/command"][..], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "exit 127"], 127),
        (&["true"], 75),
    ] {
        let arguments = [&["once", "a", "--for", "1m", "--keep", "--"], command].concat();
        let ended = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(ended.status, status, "{command:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_year_is_not_too_long() {
    let server = Server::start();
    for arguments in [
        &["once", "a", "--for", "1y", "--", "true"][..],
        &["run", "b", "--lease", "1y", "--", "true"],
    ] {
        let ended = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!(ended.status, 0, "{ended:?}");
    }
}

/// The supervisor is stopped before it has seen that the command waits, and hears of the signal first.
#[tokio::test]
async fn a_signal_that_continues_the_runner_does_not_begin_the_command() {
    let server = Server::start();
    // Long enough for the supervisor to be found before it has ended.
    let once = ["once", "a", "--for", "1m", "--", "sleep", "1"];
    let running = Running::start(&mut lockset(&server.url(), &once));
    let supervisor = child(running.pid()).await;
    let command = child(supervisor).await;
    send(supervisor, Signal::STOP);
    // It may have been faster, and then the command has ended.
    let waits = async || is_stopped(command) || !is_alive(command);
    eventually(BOUND, "it waits", waits).await;
    running.listens_for(Signal::CONT).await;
    running.signal(Signal::CONT);
    tokio::time::sleep(Duration::from_millis(100)).await;
    send(supervisor, Signal::CONT);
    assert_eq!(running.ended().await.status, 0);
    let again = ended(&mut lockset(&server.url(), &once)).await;
    assert_eq!(again.status, 75, "it is done: {again:?}");
}

/// The child of a process, as soon as it has one.
async fn child(pid: i32) -> i32 {
    let first = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut children = threads.filter_map(|thread| {
            std::fs::read_to_string(thread.unwrap().path().join("children")).ok()
        });
        children.find_map(|pids| pids.split(' ').next()?.parse().ok())
    };
    let looked = async {
        loop {
            if let Some(child) = first() {
                return child;
            }
            tokio::task::yield_now().await;
        }
    };
    within(BOUND, looked).await
}
