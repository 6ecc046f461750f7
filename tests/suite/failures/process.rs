//! Holders that die or are stopped: separate processes that get signals.
//!
//! The other process is this test binary, which runs one of its ignored tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockset::{Client, LostReason};
use lockset_testkit::{Server, eventually, unique_name, within};
use rustix::process::Signal;

use crate::support::{LEASE, SOON, client, listening, nothing_left, took_less};

const URL: &str = "LOCKSET_TEST_URL";
const NAME: &str = "LOCKSET_TEST_NAME";

/// Another process that does something with a lock and answers questions.
pub(crate) struct Process {
    process: Child,
    questions: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Process {
    /// Runs an ignored test of this binary.
    pub(crate) fn start(test: &str, server: &Server, name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env(URL, server.url())
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let questions = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (send, answers) = mpsc::channel();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The test harness writes to the same line before the first answer.
                if let Some((_, answer)) = line.split_once("answer:") {
                    let _ = send.send(answer.to_owned());
                }
            }
        });
        Self {
            process,
            questions,
            answers,
        }
    }

    pub(crate) fn ask(&mut self, question: &str) {
        writeln!(self.questions, "{question}").unwrap();
    }

    pub(crate) fn answer(&self) -> String {
        self.answers
            .recv_timeout(SOON)
            .expect("the process answers")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the process, and returns once it is stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = rustix::process::Pid::from_child(&self.process);
        let options = rustix::process::WaitOptions::UNTRACED;
        rustix::process::waitpid(Some(pid), options).unwrap();
    }

    /// Kills the process, and returns once it is dead.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Process {
    /// Waits until the process exits by itself.
    async fn ended(&mut self) {
        eventually(SOON, "it has ended", async || {
            self.process.try_wait().unwrap().is_some()
        })
        .await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The test may have killed it already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the other process: the URL of the server and the name of the lock. `None` in the test
/// process.
pub(crate) fn started_for() -> Option<(String, String)> {
    Some((std::env::var(URL).ok()?, std::env::var(NAME).ok()?))
}

fn holder_of(server: &Server, name: &str) -> Process {
    let holder = Process::start("failures::process::holder", server, name);
    assert_eq!(holder.answer(), "held");
    holder
}

#[test]
#[ignore = "not a test: the other process of the tests in this module"]
fn holder() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(async {
        let builder = Client::builder(&url).lease(LEASE);
        let client = builder.build().await.unwrap();
        client.lock(name).fenced().lock().await.unwrap()
    });
    println!("answer:held");
    for question in std::io::stdin().lines() {
        question.unwrap();
        // The first thing this process does after it continues.
        let lost = guard.is_lost();
        let reason = lost.then(|| runtime.block_on(guard.lost()));
        println!("answer:{reason:?}");
    }
}

#[tokio::test]
async fn a_killed_holder_frees_the_lock_with_its_lease() {
    let server = Server::start();
    let name = unique_name("lock");
    let holder = holder_of(&server, &name);
    let ours = client(&server.url()).await;
    let lock = ours.lock(&name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished(), "it is alive and renews");
    holder.signal(Signal::KILL);
    let killed = Instant::now();
    let guard = within(SOON, waiter).await.unwrap();
    took_less(killed, LEASE * 2);
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

// The answers block a thread, which must not be the thread that renews.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_learns_of_its_loss_at_its_first_check() {
    let server = Server::start();
    let name = unique_name("lock");
    let mut holder = holder_of(&server, &name);
    holder.ask("?");
    assert_eq!(holder.answer(), "None");
    let ours = client(&server.url()).await;
    holder.signal(Signal::STOP);
    let guard = within(SOON, ours.lock(&name).fenced().lock())
        .await
        .unwrap();
    // This answer comes after the process continues.
    holder.ask("?");
    holder.signal(Signal::CONT);
    assert_eq!(holder.answer(), format!("{:?}", Some(LostReason::Expired)));
    // Renewals and releases that the process sends after it continues must not affect other
    // holders.
    drop(holder);
    assert!(
        tokio::time::timeout(LEASE + Duration::from_millis(100), guard.lost())
            .await
            .is_err()
    );
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// Takes a lock, drops the guard and exits. If asked to, it waits for the release first.
#[test]
#[ignore = "not a test: the other process of the tests in this module"]
fn ends() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::builder(&url)
            .lease(LEASE * 4)
            .build()
            .await
            .unwrap();
        let guard = client.lock(&name).lock().await.unwrap();
        let waiter = client.lock(&name);
        let waiter = lockset_testkit::spawn(async move { waiter.lock().await.map(drop) });
        println!("answer:held");
        let mut question = String::new();
        std::io::stdin().read_line(&mut question).unwrap();
        drop(guard);
        if question.trim() == "shutdown" {
            client.shutdown().await.unwrap();
        }
        drop(waiter);
        std::process::exit(0);
    });
}

/// In each of twenty runs. A process that just exits mostly leaves the lock held until its lease
/// ends.
#[tokio::test]
async fn a_program_that_ends_with_a_shutdown_leaves_nothing() {
    let server = Server::start();
    for round in 0..21 {
        let name = unique_name("lock");
        let mut process = Process::start("failures::process::ends", &server, &name);
        assert_eq!(process.answer(), "held");
        assert_eq!(server.keys().await, [name.as_str()]);
        process.ask(if round < 20 { "shutdown" } else { "drop" });
        process.ended().await;
        if round < 20 {
            assert_eq!(server.keys().await, Vec::<String>::new())
        } else {
            nothing_left(&server).await
        }
    }
}
