//! `run --permits`: at most so many commands at once.

use lockset_testkit::{Server, unique_name};
use rustix::process::Signal;

use crate::support::{Running, ended, lockset};

#[tokio::test]
async fn at_most_as_many_commands_run_as_there_are_permits() {
    let server = Server::start();
    let (url, name) = (server.url(), unique_name("permits"));
    let start = |more: &[&str]| {
        let words = [&["run", &name, "--permits", "2"], more].concat();
        lockset(&url, &words)
    };
    let command = ["--", "sh", "-c", "echo $LOCKSET_HOLDER; sleep 60"];
    let mut first = Running::start(&mut start(&command));
    let mut second = Running::start(&mut start(&command));
    let holders = [first.line().await, second.line().await];
    assert!(holders[0] != holders[1], "{holders:?}");
    let busy = ended(&mut start(&["--try", "--", "echo", "ran"])).await;
    assert_eq!((busy.status, &*busy.out), (75, ""), "{busy:?}");
    assert!(busy.err.contains(&name), "{busy:?}");
    // Another number is an error that names both.
    let words = ["run", &name, "--permits", "3", "--", "true"];
    let other = ended(&mut lockset(&url, &words)).await;
    assert_ne!(other.status, 0, "{other:?}");
    assert!(other.err.contains("2 permits, not with 3"), "{other:?}");
    // A command that ends makes room, in the order of asking, too.
    let waiting = tokio::spawn({
        let mut waiting = start(&["--fair", "--", "echo", "ran"]);
        async move { ended(&mut waiting).await }
    });
    first.signal(Signal::TERM);
    assert_eq!(first.ended().await.status, 128 + 15);
    let ran = waiting.await.unwrap();
    assert_eq!((ran.status, &*ran.out), (0, "ran\n"), "{ran:?}");
    second.signal(Signal::TERM);
    second.ended().await;
}

#[tokio::test]
async fn permits_go_with_no_lock() {
    let server = Server::start();
    for words in [
        &["run", "a", "--permits", "2", "--read", "--", "true"][..],
        &["run", "a", "--permits", "2", "--with", "b", "--", "true"],
        &["run", "a", "--permits", "2", "--fenced", "--", "true"],
        &["run", "a", "--permits", "0", "--", "true"],
        &["run", "a", "b", "--permits", "2", "--", "true"],
    ] {
        let refused = ended(&mut lockset(&server.url(), words)).await;
        assert_eq!(refused.status, 64, "{words:?}: {refused:?}");
    }
    assert!(server.keys().await.is_empty());
}
