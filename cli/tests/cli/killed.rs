//! Whatever is killed, the command does not outlive the one who holds its lock.

use lockset::Client;
use lockset_testkit::{Server, eventually, within};
use rustix::process::Signal;

use crate::support::{BOUND, Running, all_gone, is_alive, is_stopped, lockset, parent, send};

/// A shell that ignores requests to end, and what it has started.
const STUBBORN: &str = "trap '' TERM HUP INT; sleep 1000 & echo $$ $!; wait; wait";

async fn start(server: &Server, lease: &str) -> (Running, Vec<i32>) {
    let arguments = ["run", "a", "--lease", lease, "--", "sh", "-c", STUBBORN];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    let pids = running.pids().await;
    (running, pids)
}

#[tokio::test]
async fn the_command_and_its_group_die_with_the_runner() {
    let server = Server::start();
    let (running, pids) = start(&server, "30s").await;
    let supervisor = parent(pids[0]);
    running.signal(Signal::KILL);
    all_gone(&[&*pids, &[supervisor]].concat()).await;
    assert_eq!(running.ended().await.status, -9);
}

/// As a service manager sends it to all processes of a service. A command may have a use for it.
#[tokio::test]
async fn a_signal_that_ends_nothing_does_not_end_the_supervisor() {
    let server = Server::start();
    let waits = "trap 'exit 4' USR1; echo $$; while :; do sleep 0.01; done";
    let arguments = ["run", "a", "--", "sh", "-c", waits];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    let pids = running.pids().await;
    let supervisor = parent(pids[0]);
    send(supervisor, Signal::USR1);
    send(pids[0], Signal::USR1);
    let ended = running.ended().await;
    assert_eq!(ended.status, 4, "{ended:?}");
}

#[tokio::test]
async fn the_command_and_its_group_die_with_the_supervisor() {
    let server = Server::start();
    let (running, pids) = start(&server, "30s").await;
    send(parent(pids[0]), Signal::KILL);
    let ended = running.ended().await;
    assert!(
        !pids.iter().any(|pid| is_alive(*pid)),
        "dead before the release"
    );
    assert_eq!(ended.status, 70, "{ended:?}");
    assert!(ended.err.contains("supervisor"), "{ended:?}");
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(!client.lock("a").is_locked().await.unwrap(), "released");
}

#[tokio::test]
async fn the_command_dies_with_both() {
    let server = Server::start();
    let arguments = [
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo $$; exec sleep 1000",
    ];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    let pids = running.pids().await;
    let supervisor = parent(pids[0]);
    // Stopped, neither can do anything about the end of the other.
    running.signal(Signal::STOP);
    send(supervisor, Signal::STOP);
    send(supervisor, Signal::KILL);
    running.signal(Signal::KILL);
    all_gone(&pids).await;
}

#[tokio::test]
async fn a_stopped_supervisor_goes_on_when_the_runner_dies() {
    let server = Server::start();
    let (running, pids) = start(&server, "30s").await;
    let supervisor = parent(pids[0]);
    send(supervisor, Signal::STOP);
    eventually(BOUND, "it stops", async || is_stopped(supervisor)).await;
    running.signal(Signal::KILL);
    all_gone(&[&*pids, &[supervisor]].concat()).await;
}

/// There is no renewal, and only the supervisor can notice.
#[tokio::test]
async fn a_stopped_runner_does_not_keep_its_command_beyond_the_lease() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start(&server, "10s").await;
    running.signal(Signal::STOP);
    let guard = within(BOUND, client.lock("a").lock()).await.unwrap();
    assert!(
        !pids.iter().any(|pid| is_alive(*pid)),
        "dead before the grant"
    );
    running.signal(Signal::CONT);
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(!guard.is_lost(), "the late runner takes nothing away");
}

/// A name that says whose it is: who kills `lockset` by name leaves the supervisor to clean up.
#[tokio::test]
async fn the_supervisor_has_a_name_of_its_own() {
    let server = Server::start();
    let (running, pids) = start(&server, "30s").await;
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name(running.pid()).trim(), "lockset");
    assert_eq!(name(parent(pids[0])).trim(), "lock-supervisor");
    running.signal(Signal::KILL);
    all_gone(&pids).await;
}
