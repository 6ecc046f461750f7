//! A lock that cannot be kept: the command is dead before another client is granted the lock.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually, within};
use rustix::process::Signal;

use crate::support::{
    BOUND, Running, all_gone, ended, is_alive, is_stopped, lockset, parent, send,
};

/// Says that it was asked to end, and does not.
const STUBBORN: &str =
    "trap 'echo asked' TERM; sleep 1000 & echo $$ $!; while :; do wait; sleep 0.01; done";
/// Ends when it is asked to, as does what it has started.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo $$; while :; do sleep 0.01; done";

/// Lease and grace.
type Times = [&'static str; 2];
const SHORT: Times = ["1500ms", "400ms"];
/// With this lease, the kill comes as long before its end as it ever does.
const LONG: Times = ["10s", "2s"];

async fn start(url: &str, [lease, grace]: Times, script: &str) -> (Running, Vec<i32>) {
    let arguments = [
        "run", "a", "--lease", lease, "--grace", grace, "--", "sh", "-c", script,
    ];
    let mut running = Running::start(&mut lockset(url, &arguments));
    let pids = running.pids().await;
    (running, pids)
}

/// Another client, which asks the server directly, gets the lock once its lease has ended there.
pub(crate) async fn granted_only_after(client: &Client, pids: &[i32]) {
    let guard = within(BOUND, client.lock("a").lock()).await.unwrap();
    let alive: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    assert!(alive.is_empty(), "{alive:?} beside the next holder");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_be_reached() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let (mut running, pids) = start(&proxy.url(), LONG, STUBBORN).await;
    proxy.drop_requests();
    granted_only_after(&client, &pids).await;
    assert_eq!(running.line().await, "asked", "before it was killed");
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.err.contains("could not be kept"), "{ended:?}");
}

#[tokio::test]
async fn a_command_that_ends_when_it_is_asked_to() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let (mut running, pids) = start(&proxy.url(), LONG, POLITE).await;
    proxy.blackhole_existing();
    proxy.drop_requests();
    assert_eq!(running.line().await, "asked");
    all_gone(&pids).await;
    assert!(
        client.lock("a").try_lock().await.unwrap().is_none(),
        "held meanwhile"
    );
    assert_eq!(running.ended().await.status, 76);
}

#[tokio::test]
async fn a_server_that_stands_still() {
    let server = Server::start();
    let (running, pids) = start(&server.url(), SHORT, STUBBORN).await;
    server.stop();
    all_gone(&pids).await;
    server.cont();
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    let client = Client::connect(&server.url()).await.unwrap();
    granted_only_after(&client, &pids).await;
}

#[tokio::test]
async fn a_lock_that_was_freed_by_hand() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start(&server.url(), SHORT, STUBBORN).await;
    assert!(client.lock("a").force_unlock().await.unwrap());
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    all_gone(&pids).await;
}

/// Then the runner does the supervisor's work.
#[tokio::test]
async fn a_supervisor_that_stands_still() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start(&proxy.url(), LONG, STUBBORN).await;
    send(parent(pids[0]), Signal::STOP);
    proxy.drop_requests();
    granted_only_after(&client, &pids).await;
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
}

/// More signals than the socket between runner and supervisor has room for. The command ignores them.
const FLOOD: [Signal; 9] = [
    Signal::URG,
    Signal::WINCH,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::XCPU,
    Signal::XFSZ,
];
const IGNORED: &str = "trap '' USR1 USR2 ALRM VTALRM PROF XCPU XFSZ";

/// A command whose supervisor is stopped and reads no messages.
async fn start_with_full_socket(url: &str, lease: &str, script: &str) -> (Running, Vec<i32>) {
    let script = format!("{IGNORED}; {script}");
    let arguments = ["run", "a", "--lease", lease, "--", "sh", "-c", &script];
    let mut running = Running::start(&mut lockset(url, &arguments));
    let pids = running.pids().await;
    let supervisor = parent(pids[0]);
    send(supervisor, Signal::STOP);
    eventually(BOUND, "it stops", async || is_stopped(supervisor)).await;
    for _ in 0..100 {
        for signal in FLOOD {
            running.signal(signal);
        }
        // A signal that is sent twice before it is seen arrives once.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (running, pids)
}

#[tokio::test]
async fn a_supervisor_that_takes_no_more_orders_and_a_server_that_cannot_be_reached() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start_with_full_socket(&proxy.url(), LONG[0], STUBBORN).await;
    proxy.drop_requests();
    granted_only_after(&client, &pids).await;
    assert_eq!(running.ended().await.status, 76);
}

#[tokio::test]
async fn a_supervisor_that_takes_no_more_orders_and_a_lock_that_was_freed_by_hand() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start_with_full_socket(&server.url(), "3s", STUBBORN).await;
    assert!(client.lock("a").force_unlock().await.unwrap());
    all_gone(&pids).await;
    assert_eq!(running.ended().await.status, 76);
}

/// It has to pass the signal on, so it is made to go on.
#[tokio::test]
async fn a_supervisor_that_takes_no_more_orders_and_a_request_to_end() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let (running, pids) = start_with_full_socket(&server.url(), "60s", POLITE).await;
    running.signal(Signal::TERM);
    let ended = running.ended().await;
    assert_eq!(
        (ended.status, &*ended.out),
        (0, "asked\n"),
        "{:?}",
        ended.err
    );
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
    assert!(!client.lock("a").is_locked().await.unwrap(), "released");
}

#[tokio::test]
async fn a_server_that_comes_back_in_time_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let script = "echo $$; read x; exit 5";
    let arguments = [
        "run", "a", "--lease", "3s", "--grace", "500ms", "--", "sh", "-c", script,
    ];
    let mut command = lockset(&proxy.url(), &arguments);
    let mut running = Running::start(command.stdin(std::process::Stdio::piped()));
    running.pids().await;
    let client = Client::connect(&server.url()).await.unwrap();
    let remaining = async || client.lock("a").holder().await.unwrap().unwrap().remaining;
    let before = remaining().await;
    proxy.cut();
    // Renewed over another connection, which takes at least one renewal.
    eventually(BOUND, "renewed", async || remaining().await > before).await;
    running.close_input();
    assert_eq!(running.ended().await.status, 5);
}

#[tokio::test]
async fn a_command_that_takes_longer_than_it_may() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let limits = ["--lease", "10s", "--max-hold", "11s", "--grace", "2s"];
    let arguments = [&["run", "a"], &limits[..], &["--", "sh", "-c", STUBBORN]].concat();
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    let pids = running.pids().await;
    granted_only_after(&client, &pids).await;
    assert_eq!(running.line().await, "asked", "before it was killed");
    let ended = running.ended().await;
    assert_eq!(ended.status, 76);
    assert!(ended.err.contains("--max-hold 11.0s"), "{ended:?}");
}

/// Also where `--max-hold` is far less than the lease, with the default grace.
#[tokio::test]
async fn a_command_with_little_time_is_asked_to_end_too() {
    let server = Server::start();
    let arguments = ["run", "a", "--max-hold", "6s", "--", "sh", "-c", POLITE];
    let ended = ended(&mut lockset(&server.url(), &arguments)).await;
    assert!(ended.out.contains("asked"), "{ended:?}");
    assert_eq!(ended.status, 76, "{ended:?}");
}

#[tokio::test]
async fn a_command_that_is_faster_than_the_lock_is_to_be_held() {
    let server = Server::start();
    let arguments = ["run", "a", "--at-least", "1m", "--", "true"];
    let first = ended(&mut lockset(&server.url(), &arguments)).await;
    let second = ["run", "a", "--no-wait", "--", "true"];
    let second = ended(&mut lockset(&server.url(), &second)).await;
    assert_eq!(
        (first.status, second.status),
        (0, 75),
        "{first:?} {second:?}"
    );
}

/// The lock was renewed all the time. The end that the supervisor knows has passed when it goes on, and the
/// lock is still held.
#[tokio::test]
async fn a_supervisor_that_was_stopped_for_longer_than_a_lease_and_a_request_to_end() {
    let server = Server::start();
    let (running, pids) = start(&server.url(), ["3s", "400ms"], POLITE).await;
    let supervisor = parent(pids[0]);
    send(supervisor, Signal::STOP);
    eventually(BOUND, "it stops", async || is_stopped(supervisor)).await;
    tokio::time::sleep(Duration::from_millis(4500)).await;
    running.signal(Signal::TERM);
    let ended = running.ended().await;
    assert_eq!(
        (ended.status, &*ended.out),
        (0, "asked\n"),
        "{:?}",
        ended.err
    );
    all_gone(&pids).await;
}
