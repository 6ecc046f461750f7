//! In a pipe: a line a second.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Redisson, Server, within};
use serde_json::Value;

use crate::terminal::{Running, SOON, ended};

/// Lines as they are written.
fn lines(url: &str) -> (Running, tokio::sync::mpsc::UnboundedReceiver<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockset"));
    command
        .arg("top")
        .env("LOCKSET_URL", url)
        .stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (Running(child), receiver)
}

/// One lease is renewed, the other is not: its holder has died.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_pipe_it_writes_a_line_a_second_and_a_dying_holder_is_told_from_a_live_one() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).lease(Duration::from_secs(6));
    let client = builder.build().await.unwrap();
    let guard = client.lock("alive").lock().await.unwrap();
    let peer = Redisson::connect(&server).await;
    assert_eq!(
        peer.lock_acquire("dying", 1, Duration::from_secs(6)).await,
        None
    );
    let (mut child, mut lines) = lines(&server.url());
    let mut states: Vec<String> = Vec::new();
    let mut is_alive_shown = false;
    let began = Instant::now();
    while states.last().is_none_or(|state| state != "expired") {
        let line = within(SOON, lines.recv()).await.expect("a line");
        let top = line["top"].as_array().unwrap();
        let state = |name: &str| {
            let lock = top.iter().find(|lock| lock["name"] == name);
            lock.map(|lock| lock["state"].as_str().unwrap().to_owned())
        };
        if let Some(alive) = state("alive") {
            assert_eq!(alive, "held", "{line}");
            is_alive_shown = true;
        }
        states.extend(state("dying").filter(|state| states.last() != Some(state)));
        assert!(began.elapsed() < SOON, "{states:?}");
    }
    assert_eq!(states, ["held", "late", "expired"]);
    assert!(is_alive_shown);
    // Nobody reads on.
    drop(lines);
    let status = ended(&mut child).await;
    assert_eq!(status, 0);
    drop(guard);
}
