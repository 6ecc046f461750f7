//! Signals: passed on to the command, or the end of a wait.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually};
use rustix::process::Signal;

use crate::support::{
    BOUND, LOCKSET, Running, ended, is_alive, is_stopped, lockset, program, try_send,
};

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

/// How this program ends by a signal. A shell that sees any other end by Ctrl-C goes on with its script.
fn status_by(signal: Signal) -> i32 {
    if signal == Signal::INT {
        -signal.as_raw()
    } else {
        128 + signal.as_raw()
    }
}

/// Its status may be the one that a shell has for the signal.
#[tokio::test]
async fn a_command_that_handles_sigint_gives_its_status() {
    let server = Server::start();
    for verb in [&["run", "a"][..], &["once", "a", "--for", "1m"]] {
        let arguments = [verb, &["--", "sh", "-c", "exit 130"]].concat();
        let found = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(found.status, 130, "{found:?}");
    }
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
        assert_eq!(ended.status, status_by(signal), "{ended:?}");
    }
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(!client.lock("a").is_locked().await.unwrap());
}

/// A signal that comes when the command is over and its lock is being released is none that it died of: the release
/// has half a second, and what is said of it is true.
#[tokio::test]
async fn a_signal_leaves_a_release_the_time_for_a_round_trip() {
    for is_answered in [true, false] {
        let server = Server::start();
        let proxy = Proxy::start(server.addr()).await;
        let mut command = lockset(
            &proxy.url(),
            &["run", "a", "--", "sh", "-c", "echo on; read x"],
        );
        let mut running = Running::start(command.stdin(Stdio::piped()));
        assert_eq!(running.line().await, "on");
        proxy.hold_request_containing(b"redisson_lock__channel:{a}");
        running.close_input();
        eventually(BOUND, "it is released", async || proxy.held() == 1).await;
        if is_answered {
            // The answer is on its way when the signals come.
            proxy.delay_replies(Duration::from_millis(100));
            proxy.release_held();
        } else {
            // Nor is there another way to the server.
            proxy.refuse(true);
        }
        running.signal(Signal::TERM);
        if is_answered {
            // A signal that comes again was not seen as the end.
            running.signal(Signal::TERM);
        }
        let ended = running.ended().await;
        assert_eq!(ended.status, 1, "{ended:?}");
        assert_eq!(
            ended.err.contains("not released in time"),
            !is_answered,
            "{ended:?}"
        );
        let client = Client::connect(&server.url()).await.unwrap();
        assert_eq!(client.lock("a").is_locked().await.unwrap(), !is_answered);
    }
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
        assert_eq!(ended.status, status_by(signal), "{ended:?}");
        assert_eq!(ended.out, "");
        assert_eq!(lock.waiters().await.unwrap(), Vec::<String>::new());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn ignored_signals_stay_ignored() {
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

/// Whatever it waits for: nothing of it is left at the server.
#[tokio::test]
async fn a_wait_that_is_ended_leaves_nothing() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let _held = [
        client.rw_lock("rw").write().await.unwrap(),
        client.rw_lock("rw2").write().await.unwrap(),
    ];
    let _plain = client.lock("plain").lock().await.unwrap();
    let before = server.keys().await;
    for what in [
        &["plain"][..],
        &["rw", "--read"],
        &["rw", "--write"],
        &["free", "plain"],
        &["free", "--with-read", "rw", "--with-write", "rw2"],
    ] {
        let arguments = [&["run"], what, &["--", "echo", "ran"]].concat();
        let waiting = Running::start(&mut lockset(&server.url(), &arguments));
        let mut admin = server.admin().await;
        let waits = async || {
            let mut channels = redis::cmd("PUBSUB");
            channels.arg("CHANNELS").arg("redisson*");
            let found: Vec<String> = channels.query_async(&mut admin).await.unwrap();
            !found.is_empty()
        };
        eventually(BOUND, "it waits", waits).await;
        waiting.signal(Signal::INT);
        let ended = waiting.ended().await;
        assert_eq!(ended.status, status_by(Signal::INT), "{ended:?}");
        assert_eq!(ended.out, "");
        let is_gone = async || server.keys().await == before;
        eventually(BOUND, "nothing is left", is_gone).await;
    }
}

/// Without a terminal: a supervisor of services, a script.
#[tokio::test]
async fn the_runner_stops_and_continues_with_its_command() {
    let server = Server::start();
    let arguments = ["run", "a", "--", "sh", "-c", "echo $$; read x; exit 6"];
    let mut command = lockset(&server.url(), &arguments);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let pid = running.pids().await[0];
    for _ in 0..2 {
        running.signal(Signal::TSTP);
        let stop = async || is_stopped(pid) && is_stopped(running.pid());
        eventually(BOUND, "both are stopped", stop).await;
        running.signal(Signal::CONT);
        let go_on = async || !is_stopped(pid) && !is_stopped(running.pid());
        eventually(BOUND, "both go on", go_on).await;
    }
    running.close_input();
    assert_eq!(running.ended().await.status, 6);
}

/// The command has ended, and its status is known; the lock ends by itself.
#[tokio::test]
async fn a_server_that_is_away_at_the_release_is_not_waited_for_after_ctrl_c() {
    let server = Server::start();
    let arguments = [
        "run",
        "a",
        "--lease",
        "60s",
        "--",
        "sh",
        "-c",
        "echo $$; read x; exit 3",
    ];
    let mut command = lockset(&server.url(), &arguments);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let pid = running.pids().await[0];
    server.stop();
    running.close_input();
    eventually(BOUND, "the command has ended", async || !is_alive(pid)).await;
    let (began, runner) = (Instant::now(), running.pid());
    let mut ending = std::pin::pin!(running.ended());
    // A signal before the runner knows of the command's end is for the command.
    let ended = loop {
        let _ = try_send(runner, Signal::INT);
        tokio::select! {
            ended = &mut ending => break ended,
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    };
    assert_eq!(ended.status, 3, "{ended:?}");
    // It would have tried for a third of the lease.
    assert!(began.elapsed() < Duration::from_secs(10), "{ended:?}");
    assert!(ended.err.contains("ends with its lease"), "{ended:?}");
}
