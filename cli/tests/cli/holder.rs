//! The holder that a caller is shown: in `busy`, while it waits on a terminal, and in `free`.

use std::process::Stdio;
use std::time::Duration;

use lockset_testkit::{Server, eventually};
use serde_json::Value;

use crate::support::{BOUND, Running, Terminal, ended, lockset};

/// Holds the lock `deploy` until its input ends.
async fn holding(url: &str, more: &[&str]) -> Running {
    let arguments = [
        &["run", "deploy"],
        more,
        &["--", "sh", "-c", "echo up; read x"],
    ]
    .concat();
    let mut running = Running::start(lockset(url, &arguments).stdin(Stdio::piped()));
    assert_eq!(running.line().await, "up");
    running
}

/// What `run --try --json` says as soon as the holder has announced itself.
async fn busy(url: &str) -> Value {
    let arguments = ["run", "deploy", "--try", "--json", "--", "true"];
    let mut said = Value::Null;
    eventually(BOUND, "the holder is known", async || {
        let refused = ended(&mut lockset(url, &arguments)).await;
        assert_eq!(refused.status, 75, "{refused:?}");
        said = serde_json::from_str(&refused.err).unwrap();
        said["host"].is_string()
    })
    .await;
    said
}

#[tokio::test]
async fn busy_names_the_process_and_the_command_of_the_holder() {
    let server = Server::start();
    let url = server.url();
    for (more, label) in [(&[][..], "sh"), (&["--label", "night run"], "night run")] {
        let mut holder = holding(&url, more).await;
        let said = busy(&url).await;
        assert_eq!(said["event"], "busy");
        assert_eq!(said["pid"], holder.pid());
        assert_eq!(
            (&said["label"], &said["program"]),
            (&label.into(), &"lockset".into())
        );
        // At once, not after the ten seconds of an announcement that nothing asked for.
        assert!(said["held_ms"].as_u64().unwrap() < 5_000, "{said}");
        let refused = ended(&mut lockset(&url, &["run", "deploy", "--try", "true"])).await;
        let who = format!(" {} ({label}) for ", holder.pid());
        for part in [
            r#"busy: lock "deploy" is held by "#,
            &who,
            said["holder"].as_str().unwrap(),
        ] {
            assert!(refused.err.contains(part), "{part}: {refused:?}");
        }
        let free = ["free", "deploy", "--reason", "test"];
        let asked = ended(&mut lockset(&url, &free)).await;
        assert!(asked.err.contains(&who), "{asked:?}");
        holder.close_input();
        holder.ended().await;
    }
}

#[tokio::test]
async fn a_wait_on_a_terminal_names_the_holder() {
    let server = Server::start();
    let url = server.url();
    let mut holder = holding(&url, &["--label", "./deploy.sh"]).await;
    busy(&url).await;
    let mut terminal = Terminal::open(&url).await;
    terminal.enter("$L run deploy echo r''an; echo sta''tus $?");
    terminal
        .shows("lockset: waiting for \"deploy\", held by ")
        .await;
    terminal
        .shows(&format!(" {} (./deploy.sh) for ", holder.pid()))
        .await;
    holder.close_input();
    holder.ended().await;
    terminal.shows("ran").await;
    terminal.shows("status 0").await;
}

#[tokio::test]
async fn a_wait_without_a_terminal_is_silent() {
    let server = Server::start();
    let holder = holding(&server.url(), &[]).await;
    let arguments = ["run", "deploy", "--wait", "1500ms", "true"];
    let began = std::time::Instant::now();
    let refused = ended(&mut lockset(&server.url(), &arguments)).await;
    assert!(began.elapsed() > Duration::from_secs(1), "{refused:?}");
    assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
    drop(holder);
}
