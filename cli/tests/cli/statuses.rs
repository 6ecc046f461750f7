//! Statuses, environment, input and output of `run`, without faults.

use std::process::Stdio;
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Server, eventually, within};
use tokio::io::AsyncWriteExt;

use crate::support::{BOUND, Running, arguments, ended, lockset, parent};

#[tokio::test]
async fn the_status_of_the_command_is_that_of_lockset() {
    let server = Server::start();
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["/no/such/command"], 127),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let arguments = [&["run", "a", "--"], command].concat();
        let ended = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(ended.status, status, "{command:?}: {ended:?}");
        let is_silent = ended.err.is_empty();
        assert_eq!(is_silent, ![126, 127].contains(&status), "{ended:?}");
    }
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(!client.lock("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn a_lock_that_is_held_is_busy() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    for patience in [&["--try"][..], &["--wait", "50ms"]] {
        let arguments = [&["run", "a"], patience, &["--", "echo", "ran"]].concat();
        let ended = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!((ended.status, &*ended.out), (75, ""), "{ended:?}");
        assert!(
            ended
                .err
                .starts_with("lockset: busy: lock \"a\" is held by "),
            "{ended:?}"
        );
        assert!(ended.err.contains(guard.holder_id()), "{ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    }
    let arguments = ["run", "a", "b", "--try", "--json", "--", "true"];
    let ended = ended(&mut lockset(&server.url(), &arguments)).await;
    let said: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(ended.status, 75);
    assert_eq!(
        (&said["event"], &said["name"]),
        (&"busy".into(), &"a".into())
    );
    assert_eq!(said["holder"], guard.holder_id());
}

#[tokio::test]
async fn a_lock_that_becomes_free_is_waited_for() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.fair_lock("a").lock().await.unwrap();
    let arguments = ["run", "a", "--fair", "--wait", "10s", "--", "echo", "ran"];
    let waiting = Running::start(&mut lockset(&server.url(), &arguments));
    let waits = async || client.fair_lock("a").waiters().await.unwrap().len() == 1;
    eventually(BOUND, "it waits", waits).await;
    guard.release().await.unwrap();
    let ended = waiting.ended().await;
    assert_eq!((ended.status, &*ended.out), (0, "ran\n"), "{ended:?}");
}

#[tokio::test]
async fn wrong_arguments_are_wrong_usage() {
    let server = Server::start();
    let url = &*server.url();
    for (url, arguments) in [
        ("", &["run", "a", "--", "true"][..]),
        ("http://localhost", &["run", "a", "--", "true"]),
        (url, &[]),
        (url, &["run", "a"]),
        (url, &["run", "--", "true"]),
        (url, &["run", "", "--", "true"]),
        (url, &["run", "a", "--nonsense", "--", "true"]),
        (url, &["run", "a", "--try", "--wait", "1s", "--", "true"]),
        (url, &["run", "a", "--read", "--write", "--", "true"]),
        (url, &["run", "a", "--wait", "soon", "--", "true"]),
        (
            url,
            &["run", "a", "--lease", "9s", "--grace", "5s", "--", "true"],
        ),
        (url, &["run", "a", "--lease", "1ms", "--", "true"]),
        (
            url,
            &["run", "a", "--tls-ca", "/no/such/file", "--", "true"],
        ),
        (url, &["nonsense"]),
    ] {
        let ended = ended(&mut lockset(url, arguments)).await;
        assert_eq!(ended.status, 64, "{arguments:?}: {ended:?}");
        assert!(!ended.err.is_empty(), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = ended(&mut lockset("", arguments)).await;
        assert_eq!((ended.status, &*ended.err), (0, ""), "{ended:?}");
    }
}

async fn ask(server: &Server, words: &[&str]) {
    let client = redis::Client::open(server.admin_url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let command = words[1..]
        .iter()
        .fold(redis::cmd(words[0]), |mut command, word| {
            command.arg(word);
            command
        });
    within(BOUND, command.exec_async(&mut connection))
        .await
        .unwrap();
}

#[tokio::test]
async fn denied_users_get_advice_and_no_password_is_shown() {
    let server = Server::start();
    const USER: [&str; 9] = [
        "ACL",
        "SETUSER",
        "weak",
        "on",
        ">s3cret-word",
        "~*",
        "&*",
        "+@connection",
        "+info",
    ];
    ask(&server, &USER).await;
    let address = server.addr();
    for login in ["weak:s3cret-word", "weak:s3cret-wrong", "nobody:s3cret"] {
        let url = format!("redis://{login}@{address}");
        for more in [&[][..], &["--json"]] {
            let arguments = [&["run", "a"], more, &["--", "true"]].concat();
            let ended = ended(&mut lockset(&url, &arguments)).await;
            assert_eq!(ended.status, 77, "{login}: {ended:?}");
            assert!(!ended.err.contains("s3cret"), "{ended:?}");
            // It lists no rights of a user that cannot log in.
            let is_logged_in = login == "weak:s3cret-word";
            assert_eq!(
                ended.err.contains("`lockset doctor`"),
                is_logged_in,
                "{ended:?}"
            );
            assert_eq!(
                ended.err.contains("check user and password"),
                !is_logged_in,
                "{ended:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_not_touched() {
    let server = Server::start();
    ask(&server, &["SET", "a", "data"]).await;
    for arguments in [
        &["run", "a", "--", "true"][..],
        &["run", "a", "--read", "--try", "--", "true"],
        &["wait", "a"],
        &["wait", "a", "--timeout", "0"],
        &["show", "a"],
        &["once", "a", "--for", "1m", "--", "true"],
    ] {
        let ended = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!(ended.status, 65, "{ended:?}");
        // The message names the mistake, not the place in a script.
        assert!(ended.err.starts_with("lockset: lock \"a\": "), "{ended:?}");
        assert!(!ended.err.contains("script"), "{ended:?}");
    }
}

#[tokio::test]
async fn the_command_finds_its_lock_in_the_environment() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let show = "echo \"$LOCKSET_NAME|$LOCKSET_HOLDER|$LOCKSET_TOKEN|$LOCKSET_DEADLINE\"; read x";
    let arguments = [
        "run", "order:7", "--fenced", "--lease", "10s", "--", "sh", "-c", show,
    ];
    let mut command = lockset(&server.url(), &arguments);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let line = running.line().await;
    let [name, holder, token, deadline] = &*line.split('|').collect::<Vec<_>>() else {
        panic!("{line}");
    };
    let seen = client.lock("order:7").holder().await.unwrap().unwrap();
    assert_eq!((*name, *holder), ("order:7", &*seen.id));
    assert!(token.parse::<u64>().unwrap() > 0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let left = Duration::from_millis(deadline.parse().unwrap()).checked_sub(now);
    assert!(
        left.is_none_or(|left| left <= Duration::from_secs(10)),
        "{line}"
    );
    running.close_input();
    assert_eq!(
        running.ended().await.status,
        1,
        "`read` saw the end of its input"
    );
}

/// A token of another lock would fence nothing.
#[tokio::test]
async fn a_command_under_two_locks_finds_the_inner_one_alone() {
    let server = Server::start();
    let show = "echo \"$LOCKSET_NAME|$LOCKSET_HOLDER|$LOCKSET_TOKEN|$LOCKSET_DEADLINE\"";
    let program = env!("CARGO_BIN_EXE_lockset");
    let outer = ["run", "outer", "--fenced", "--", program];
    let run = [&outer[..], &["run", "inner", "--", "sh", "-c", show]].concat();
    let shown = ended(&mut lockset(&server.url(), &run)).await;
    let [name, holder, token, _] = &*shown.out.trim().split('|').collect::<Vec<_>>() else {
        panic!("{shown:?}");
    };
    assert_eq!((*name, holder.is_empty(), *token), ("inner", false, ""));
    let once = ["once", "key", "--for", "1m", "--", "sh", "-c", show];
    let shown = ended(&mut lockset(&server.url(), &[&outer[..], &once].concat())).await;
    assert_eq!(shown.out.trim(), "key|||", "{shown:?}");
}

#[tokio::test]
async fn several_locks_of_several_kinds_are_held_together() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let show = "echo $LOCKSET_NAME; echo $LOCKSET_TOKEN | wc -w; read x";
    let arguments = [
        "run",
        "a",
        "b",
        "--with-read",
        "c",
        "--with-fair",
        "d",
        "--fenced",
        "--",
        "sh",
        "-c",
        show,
    ];
    let mut command = lockset(&server.url(), &arguments);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    assert_eq!(running.line().await, "a b c d");
    assert_eq!(running.line().await.trim(), "4");
    assert!(client.lock("a").try_lock().await.unwrap().is_none());
    assert!(client.lock("b").try_lock().await.unwrap().is_none());
    assert!(client.fair_lock("d").try_lock().await.unwrap().is_none());
    let shared = client.rw_lock("c");
    assert!(shared.try_write().await.unwrap().is_none());
    shared
        .try_read()
        .await
        .unwrap()
        .expect("readers share")
        .release()
        .await
        .unwrap();
    running.close_input();
    running.ended().await;
    for name in ["a", "b", "d"] {
        assert!(!client.lock(name).is_locked().await.unwrap(), "{name}");
    }
    assert!(shared.try_write().await.unwrap().is_some());
}

#[tokio::test]
async fn one_lock_of_several_servers_is_a_quorum() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(" ");
    servers[2].kill();
    let two = ended(&mut lockset(&urls, &["run", "a", "b", "--", "true"])).await;
    assert_eq!(two.status, 64, "{two:?}");
    // A server that was just started has no vote until the leases that it may have forgotten are over.
    let lease = ["run", "a", "--quorum-lease-max", "1s", "--lease", "1s"];
    let arguments = [&lease[..], &["--", "sh", "-c", "exit 4"]].concat();
    let is_granted = async || ended(&mut lockset(&urls, &arguments)).await.status == 4;
    eventually(BOUND, "a majority is enough", is_granted).await;
}

#[tokio::test]
async fn input_and_output_are_those_of_the_command() {
    let server = Server::start();
    let mut command = lockset(&server.url(), &["run", "a", "--", "tr", "a-z", "A-Z"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"what goes in\n")
        .await
        .unwrap();
    let output = within(BOUND, child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "WHAT GOES IN\n");
    assert!(output.stderr.is_empty() && output.status.success());
}

#[tokio::test]
async fn no_process_shows_the_url() {
    let server = Server::start();
    ask(
        &server,
        &[
            "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all",
        ],
    )
    .await;
    let url = format!("redis://app:s3cret@{}", server.addr());
    let mut command = lockset(&url, &["run", "a", "--", "sh", "-c", "echo $$; read x"]);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let shell = running.pids().await[0];
    let supervisor = parent(shell);
    assert_eq!(parent(supervisor), running.pid());
    for pid in [shell, supervisor, running.pid()] {
        assert!(!arguments(pid).contains("s3cret"), "{}", arguments(pid));
    }
    running.close_input();
    assert_eq!(running.ended().await.err, "");
}

#[tokio::test]
async fn wait_ends_when_the_lock_is_free_and_does_not_take_it() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.rw_lock("a").read().await.unwrap();
    let busy = ended(&mut lockset(
        &server.url(),
        &["wait", "a", "--timeout", "30ms"],
    ))
    .await;
    assert_eq!(busy.status, 75, "{busy:?}");
    // A look is answered, however little time there is.
    for (name, status) in [("a", 75), ("free", 0)] {
        let arguments = ["wait", name, "--timeout", "0"];
        let ended = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(ended.status, status, "{ended:?}");
    }
    let waiting = Running::start(&mut lockset(&server.url(), &["wait", "a", "--json"]));
    guard.release().await.unwrap();
    let ended = waiting.ended().await;
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.status, &said["free"]), (0, &true.into()));
    assert!(client.rw_lock("a").try_write().await.unwrap().is_some());
}
