//! The lock is held for the whole group of the command, unless the command ends by itself.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::loss::granted_only_after;
use crate::support::{BOUND, Running, Terminal, is_alive, is_stopped, lockset, parent, send};

/// Two shells: one that leads the group, and one that it has started, which cleans up when it is asked to end. It
/// waits with `read`, because a shell that starts another program at that moment may not stop at a key.
struct Scripts {
    folder: TempDir,
    leader: String,
    /// The worker waits until it can read from this.
    done: File,
}

/// Any signal ends it at once; a shell would wait for its worker after SIGINT. A background process of a shell
/// ignores SIGINT by default.
const MORTAL: &str = "env --default-signal=INT sh $0.worker & exec sleep 1000";
/// It ends with a status of its own when it is asked to.
const POLITE: &str = "trap 'exit 0' TERM; sh $0.worker & while :; do sleep 0.01; done";

impl Scripts {
    fn new(leader: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leader");
        let done = folder.path().join("done");
        let made = std::process::Command::new("mkfifo").arg(&done).status();
        assert!(made.unwrap().success());
        let worker = format!(
            "trap 'echo cle''aning; read x <{}; echo cle''an; exit' INT TERM\n\
             echo $PPID $$ >{1}.new; mv {1}.new {1}; echo $PPID $$\n\
             while :; do sleep 0.01; done\n",
            done.display(),
            folder.path().join("pids").display(),
        );
        std::fs::write(&path, leader).unwrap();
        std::fs::write(folder.path().join("leader.worker"), worker).unwrap();
        let leader = path.to_str().unwrap().to_owned();
        Self {
            folder,
            leader,
            // Open at both ends, so that neither side waits for the other to open it.
            done: File::options().read(true).write(true).open(done).unwrap(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The worker ends now.
    fn is_done(&self) {
        (&self.done).write_all(b"\n").unwrap();
    }

    fn start(&self, url: &str, lease: &str) -> Running {
        let arguments = ["run", "a", "--lease", lease, "--", "sh", &self.leader];
        Running::start(&mut lockset(url, &arguments))
    }
}

async fn reaped(pid: i32) {
    let entry = format!("/proc/{pid}");
    eventually(BOUND, "it is gone", async || !Path::new(&entry).exists()).await;
}

/// Somebody who waits for it does not get it.
async fn is_kept(client: &Client) {
    const WAIT: Duration = Duration::from_millis(300);
    let other = client.lock("a").try_lock_for(WAIT).await.unwrap();
    assert!(other.is_none(), "granted beside a worker that cleans up");
}

#[tokio::test]
async fn a_command_that_is_asked_to_end_has_the_lock_until_it_ends() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    for (leader, signal, status) in [
        (MORTAL, Signal::TERM, 143),
        (MORTAL, Signal::INT, -2),
        (POLITE, Signal::TERM, 0),
    ] {
        let scripts = Scripts::new(leader);
        let mut running = scripts.start(&server.url(), "30s");
        let pids = running.pids().await;
        running.signal(signal);
        assert_eq!(running.line().await, "cleaning");
        reaped(pids[0]).await;
        is_kept(&client).await;
        assert!(is_alive(pids[1]));
        scripts.is_done();
        assert_eq!(running.line().await, "clean");
        let ended = running.ended().await;
        assert_eq!(ended.status, status, "{ended:?}");
        assert!(!is_alive(pids[1]), "it ended before the release");
        assert!(!client.lock("a").is_locked().await.unwrap(), "released");
    }
}

/// As systemd ends a service: the runner, the supervisor and the command get the signal.
#[tokio::test]
async fn a_group_that_is_asked_to_end_has_the_lock_while_it_cleans_up() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let scripts = Scripts::new(MORTAL);
    let mut running = scripts.start(&server.url(), "30s");
    let pids = running.pids().await;
    send(parent(pids[0]), Signal::TERM);
    for pid in &pids {
        send(*pid, Signal::TERM);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "cleaning");
    reaped(pids[0]).await;
    is_kept(&client).await;
    scripts.is_done();
    let ended = running.ended().await;
    assert_eq!(ended.status, 143, "{ended:?}");
    assert!(!client.lock("a").is_locked().await.unwrap(), "released");
}

/// Nobody passed that on: the signal came to the command alone.
#[tokio::test]
async fn the_rest_of_a_killed_command_has_the_lock_until_it_ends() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let scripts = Scripts::new(MORTAL);
    let mut running = scripts.start(&server.url(), "30s");
    let pids = running.pids().await;
    send(pids[0], Signal::KILL);
    reaped(pids[0]).await;
    is_kept(&client).await;
    // It reaches what is left.
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "cleaning");
    scripts.is_done();
    assert_eq!(running.ended().await.status, 137);
}

#[tokio::test]
async fn a_cleanup_does_not_outlive_the_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let scripts = Scripts::new(MORTAL);
    let mut running = scripts.start(&proxy.url(), "10s");
    let pids = running.pids().await;
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "cleaning");
    reaped(pids[0]).await;
    proxy.drop_requests();
    granted_only_after(&client, &pids).await;
    assert_eq!(running.ended().await.status, 76);
}

#[tokio::test]
async fn background_processes_of_a_finished_command_are_left_alone() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3";
    let arguments = ["run", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    let left = running.pids().await[0];
    assert_eq!(running.ended().await.status, 3);
    assert!(!client.lock("a").is_locked().await.unwrap(), "released");
    assert!(is_alive(left));
    send(left, Signal::KILL);
}

/// The key goes to the group alone. The rest of the group has the terminal, and is the job that a key stops.
#[tokio::test]
async fn a_command_has_lock_and_terminal_until_ctrl_c_has_ended_it() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let scripts = Scripts::new(MORTAL);
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter(&format!("$L run a -- sh {}", scripts.leader));
    let pids = async || std::fs::read_to_string(scripts.file("pids"));
    eventually(BOUND, "it begins", async || pids().await.is_ok()).await;
    let pids = pids().await.unwrap();
    let pids: Vec<i32> = pids
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    terminal.press("\x03");
    terminal.shows("cleaning").await;
    reaped(pids[0]).await;
    is_kept(&client).await;
    terminal.stop_job().await;
    eventually(BOUND, "it stops", async || is_stopped(pids[1])).await;
    assert!(client.lock("a").is_locked().await.unwrap(), "by the job");
    terminal.enter("fg; echo sta''tus $?");
    eventually(BOUND, "it goes on", async || !is_stopped(pids[1])).await;
    scripts.is_done();
    terminal.shows("clean").await;
    let is_free = async || !client.lock("a").is_locked().await.unwrap();
    eventually(BOUND, "released", is_free).await;
}
