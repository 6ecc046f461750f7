//! `once`: one run per key and window.

use lockset_testkit::Server;

use crate::support::{ended, lockset};

#[tokio::test]
async fn a_key_is_claimed_until_its_window_ends() {
    let server = Server::start();
    let once = ["once", "mail:7", "--for", "1m", "--", "echo", "sent"];
    let first = ended(&mut lockset(&server.url(), &once)).await;
    assert_eq!((first.status, &*first.out, &*first.err), (0, "sent\n", ""));
    let second = ended(&mut lockset(&server.url(), &once)).await;
    assert_eq!((second.status, &*second.out), (75, ""), "{second:?}");
    assert!(second.err.contains("is claimed for 59."), "{second:?}");
    let json = [&["--json"], &once[..]].concat();
    let said: serde_json::Value =
        serde_json::from_str(&ended(&mut lockset(&server.url(), &json)).await.err).unwrap();
    assert_eq!(said["event"], "duplicate");
    assert!(said["remaining_ms"].as_u64().unwrap() <= 60_000);
}

#[tokio::test]
async fn a_command_that_fails_gives_its_key_back_unless_it_is_kept() {
    let server = Server::start();
    let run = async |more: &[&str], script: &str| {
        let arguments = [
            &["once", "a", "--for", "1m"],
            more,
            &["--", "sh", "-c", script],
        ]
        .concat();
        ended(&mut lockset(&server.url(), &arguments)).await.status
    };
    assert_eq!(run(&[], "exit 3").await, 3);
    assert_eq!(run(&[], "kill -KILL $$").await, 137);
    assert_eq!(run(&["--keep"], "exit 4").await, 4, "was given back twice");
    assert_eq!(run(&[], "true").await, 75, "kept");
}

#[tokio::test]
async fn a_key_is_kept_for_a_command_that_began_alone() {
    let server = Server::start();
    for (command, status) in [
        (&["/no/such/command"][..], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "exit 127"], 127),
        (&["true"], 75),
    ] {
        let arguments = [&["once", "a", "--for", "1m", "--keep", "--"], command].concat();
        let ended = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(ended.status, status, "{command:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_year_is_not_too_long() {
    let server = Server::start();
    for arguments in [
        &["once", "a", "--for", "1y", "--", "true"][..],
        &["run", "b", "--lease", "1y", "--", "true"],
    ] {
        let ended = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!(ended.status, 0, "{ended:?}");
    }
}
