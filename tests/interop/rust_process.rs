//! A client of ours in another process, which a test can kill.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use lockset::Client;
use lockset_testkit::Server;

use crate::kind::Kind;
use crate::pair::SHORT;

const URL: &str = "LOCKSET_TEST_URL";
const KIND: &str = "LOCKSET_TEST_KIND";
const NAME: &str = "LOCKSET_TEST_NAME";

/// A process that takes a lock, or waits for it, until it is killed.
#[derive(Debug)]
pub(crate) struct RustProcess {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl RustProcess {
    pub(crate) fn start(server: &Server, kind: Kind, name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "rust_process::holder",
                "--nocapture",
            ])
            .env(URL, server.url())
            .env(KIND, kind.word())
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Waits until it holds the lock.
    pub(crate) fn holds(&mut self) {
        let line = self.lines.find(|line| {
            // The test harness writes to the same line first.
            line.as_ref().is_ok_and(|line| line.ends_with("held"))
        });
        assert!(line.is_some(), "the process has ended");
    }

    /// Kills the process with `SIGKILL`.
    pub(crate) fn kill(self) {}
}

impl Drop for RustProcess {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[tokio::test]
#[ignore = "not a test: the other process of the tests of killed ones"]
async fn holder() {
    let (Ok(url), Ok(name)) = (std::env::var(URL), std::env::var(NAME)) else {
        return;
    };
    let kind = Kind::of(&std::env::var(KIND).unwrap());
    let client = Client::builder(&url).lease(SHORT).build().await.unwrap();
    let guard = kind.rust(&client, &name).lock().await;
    println!("held");
    // The lock is renewed until this process is killed, or until its parent exits.
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    parent.await.unwrap().unwrap();
    drop(guard);
}
