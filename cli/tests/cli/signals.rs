//! Signals: passed on to the command, or the end of a wait.

use std::process::Stdio;

use lockset::Client;
use lockset_testkit::{Server, eventually};
use rustix::process::Signal;

use crate::support::{BOUND, LOCKSET, Running, lockset, program};

#[tokio::test]
async fn signals_are_passed_on_to_the_command() {
    const SCRIPT: &str = "
        for signal in HUP INT QUIT USR1 USR2 ALRM WINCH URG; do
            trap \"echo got $signal\" $signal
        done
        trap 'echo got TERM; exit 7' TERM
        echo ready
        while :; do sleep 0.01; done";
    let server = Server::start();
    let arguments = ["run", "a", "--", "sh", "-c", SCRIPT];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    assert_eq!(running.line().await, "ready");
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::WINCH, "WINCH"),
        (Signal::URG, "URG"),
        (Signal::TERM, "TERM"),
    ] {
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
    }
    assert_eq!(running.ended().await.status, 7);
}

#[tokio::test]
async fn a_command_that_a_signal_ends_gives_128_and_its_number() {
    let server = Server::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        // A shell that is just starting another program may miss one, so it waits by itself.
        let arguments = ["run", "a", "--", "sh", "-c", "echo ready; read x"];
        let mut command = lockset(&server.url(), &arguments);
        let mut running = Running::start(command.stdin(Stdio::piped()));
        running.line().await;
        running.signal(signal);
        let ended = running.ended_with_input_open().await;
        assert_eq!(ended.status, 128 + signal.as_raw(), "{ended:?}");
    }
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(!client.lock("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn a_signal_ends_a_wait_and_its_place_in_the_queue() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fair_lock("a");
    let guard = lock.lock().await.unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let arguments = ["run", "a", "--fair", "--", "echo", "ran"];
        let waiting = Running::start(&mut lockset(&server.url(), &arguments));
        let waits = async || lock.waiters().await.unwrap().len() == 1;
        eventually(BOUND, "it waits", waits).await;
        waiting.signal(signal);
        let ended = waiting.ended().await;
        assert_eq!(ended.status, 128 + signal.as_raw(), "{ended:?}");
        assert_eq!(ended.out, "");
        assert_eq!(lock.waiters().await.unwrap(), Vec::<String>::new());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_was_ignored_stays_ignored() {
    let server = Server::start();
    let script = format!(
        "trap '' HUP; exec {} run a -- sh -c 'kill -HUP $$; echo on; read x'",
        LOCKSET
    );
    let mut shell = program("sh", &server.url(), &["-c", &script]);
    let mut running = Running::start(shell.stdin(Stdio::piped()));
    assert_eq!(running.line().await, "on");
    running.signal(Signal::HUP);
    running.close_input();
    assert_eq!(
        running.ended().await.status,
        1,
        "`read` saw the end of its input"
    );
}
