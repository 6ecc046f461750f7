//! Servers that cannot be reached, or not yet.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockset_testkit::{Proxy, Server, eventually, within};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{BOUND, Running, ended, lockset};

#[tokio::test]
async fn a_server_that_is_away_is_unavailable() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    for arguments in [
        &["run", "a", "--try", "--", "true"][..],
        &["wait", "a", "--timeout=0"],
    ] {
        let ended = ended(&mut lockset(&url, arguments)).await;
        assert_eq!(ended.status, 69, "{ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    }
}

/// It accepts connections, and says nothing.
#[tokio::test]
async fn a_silent_server_is_unavailable_after_the_given_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    for bound in [Duration::from_millis(200), Duration::from_secs(1)] {
        let timeout = format!("{bound:?}");
        let began = Instant::now();
        let arguments = ["list", "--connect-timeout", &timeout];
        let ended = ended(&mut lockset(&url, &arguments)).await;
        assert_eq!(ended.status, 69, "{ended:?}");
        // By default it takes 3 s.
        let took = began.elapsed();
        assert!((bound..Duration::from_secs(3)).contains(&took), "{took:?}");
    }
}

#[tokio::test]
async fn a_wait_covers_a_server_that_comes_later() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    for verb in [
        &["run", "a", "--wait", "1m"][..],
        &["run", "a"],
        &["once", "b", "--for", "1m"],
    ] {
        let arguments = [verb, &["--", "echo", "ran"]].concat();
        let mut child = lockset(&url, &arguments).spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = within(BOUND, messages.next_line()).await.unwrap();
        let first = first.expect("a line, before the server is there");
        assert!(first.contains("trying again"), "{first}");
        server.restart();
        let output = within(BOUND, child.wait_with_output()).await.unwrap();
        assert_eq!(output.stdout, b"ran\n", "{output:?}");
        assert!(output.status.success());
        assert_eq!(messages.next_line().await.unwrap(), None, "one line");
        server.kill();
    }
}

/// How often the server was asked for holders, by scripts or without.
async fn looks(server: &Server) -> u64 {
    let stats = server.commandstats().await;
    let verbs = ["eval", "evalsha", "hrandfield"].map(|verb| stats.get(verb).copied());
    verbs.into_iter().flatten().sum()
}

/// The server is away for longer than one look is repeated. The server comes back without the lock.
#[tokio::test]
async fn a_wait_without_taking_survives_an_outage() {
    let server = Server::start();
    let url = server.url();
    let timeouts = ["--timeout=1m", ""];
    for (timeout, is_away_first) in timeouts
        .into_iter()
        .flat_map(|timeout| [(timeout, false), (timeout, true)])
    {
        let mut lock = redis::pipe();
        lock.cmd("HSET")
            .arg(&["a", "8b2d9a1c-1111-4222-8333-944455556666:1", "1"]);
        lock.cmd("PEXPIRE").arg(&["a", "3600000"]);
        let _: redis::Value = lock.query_async(&mut server.admin().await).await.unwrap();
        if is_away_first {
            server.kill();
        }
        let arguments = ["wait", "a", timeout];
        let some = if timeout.is_empty() { 2 } else { 3 };
        let mut child = lockset(&url, &arguments[..some]).spawn().unwrap();
        if !is_away_first {
            let is_looking = async || looks(&server).await > 5;
            eventually(BOUND, "it looks at the lock", is_looking).await;
            server.kill();
        }
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = within(BOUND, messages.next_line()).await.unwrap();
        let first = first.expect("a line, while the server is away");
        assert!(first.contains("trying again"), "{first}");
        server.restart();
        let output = within(BOUND, child.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(messages.next_line().await.unwrap(), None, "one line");
    }
}

#[tokio::test]
async fn a_wait_for_a_server_ends() {
    let servers = [(); 3].map(|()| Server::start());
    let all = servers.each_ref().map(Server::url);
    // A lock of a quorum retries within its own wait, without a message.
    let urls = [(all[0].clone(), 2), (all.join(" "), 1)];
    servers.iter().for_each(Server::kill);
    for (url, lines) in urls {
        for more in [&[][..], &["--json"]] {
            let begin = ["run", "a", "--wait", "700ms"];
            let arguments = [&begin[..], more, &["--", "true"]].concat();
            let began = Instant::now();
            let gone = ended(&mut lockset(&url, &arguments)).await;
            assert_eq!(gone.status, 69, "{gone:?}");
            assert!(began.elapsed() >= Duration::from_millis(700), "{gone:?}");
            assert_eq!(gone.err.lines().count(), lines, "{gone:?}");
            if !more.is_empty() && lines == 2 {
                let said = gone.err.lines().next().unwrap();
                let said: serde_json::Value = serde_json::from_str(said).unwrap();
                assert_eq!(said["event"], "unreachable", "{said}");
            }
        }
    }
}

#[tokio::test]
async fn a_signal_ends_a_wait_for_a_server() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let mut command = lockset(&url, &["run", "a", "--wait", "1m", "--", "true"]);
    let waiting = Running::start(command.stderr(Stdio::piped()));
    waiting.listens_for(Signal::INT).await;
    waiting.signal(Signal::INT);
    assert_eq!(waiting.ended().await.status, -2);
}

/// The server is out of reach for longer than the claim is waited for, and has made it.
#[tokio::test]
async fn a_claim_without_an_answer_is_given_back_before_once_ends() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    // Long enough for a look at the server.
    proxy.delay_replies(Duration::from_millis(500));
    let arguments = ["once", "mail", "--for", "1h", "--", "true"];
    let running = Running::start(&mut lockset(&proxy.url(), &arguments));
    let is_claimed = async || {
        let asked = redis::cmd("EXISTS").arg("mail").to_owned();
        asked
            .query_async::<bool>(&mut server.admin().await)
            .await
            .unwrap()
    };
    eventually(BOUND, "the key is claimed", is_claimed).await;
    proxy.drop_replies();
    proxy.refuse(true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.pass();
    let ended = running.ended().await;
    assert_eq!(ended.status, 69, "{ended:?}");
    assert!(!is_claimed().await, "another may send it");
}
