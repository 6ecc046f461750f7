//! Tests of the connections to one server that is slow.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::IntoConnectionInfo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::conn::tests::{BOUND, FakeServer, at_once};
use crate::conn::transport::errors_in;
use crate::engine::clock::Clock;

const REPLY: Duration = Duration::from_secs(1);

/// Refuses each command, the first `PING` after 0.6 s and the next after 0.9 s more.
async fn serve(mut stream: TcpStream) {
    let mut space = vec![0; 4096];
    let mut pause = REPLY * 3 / 5;
    while let Ok(read @ 1..) = stream.read(&mut space).await {
        let text = String::from_utf8_lossy(&space[..read]).into_owned();
        for command in text.split('*').skip(1) {
            if command.contains("PING") {
                tokio::time::sleep(pause).await;
                pause = REPLY * 9 / 10;
            }
            if stream.write_all(b"-ERR no\r\n").await.is_err() {
                return;
            }
        }
    }
}

/// A renewal whose reply is late does not end a connection that has answered another renewal in the meantime.
#[tokio::test]
async fn a_renewal_behind_a_slow_one_does_not_end_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let setup = Setup::sample(REPLY);
    let server = SingleServer::new(url.into_connection_info().unwrap(), &setup);
    server.open().await.unwrap();
    let ping = redis::cmd("PING");
    let pings = [&ping];
    let renew = || server.link(Lane::Renewal).exchange(&pings, REPLY);
    let (first, second) = join(renew(), renew()).await;
    first.expect("in time");
    let late = format!("{:?}", second.unwrap_err());
    assert!(late.contains("no reply within 1s"), "{late}");
    assert!(server.link(Lane::Renewal).is_open());
}

/// Refuses each command of these many connections, one after the other, and ends each when `next` says so.
async fn serve_some(listener: TcpListener, mut next: tokio::sync::mpsc::Receiver<()>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::select! {
            () = serve(stream) => {}
            _ = next.recv() => {}
        }
    }
}

/// What was not sent is not in doubt: a release that is in doubt hides the loss of its hold.
#[tokio::test]
async fn nothing_is_sent_over_a_connection_that_has_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (end, next) = tokio::sync::mpsc::channel(1);
    tokio::spawn(serve_some(listener, next));
    let setup = Setup::sample(REPLY * 2);
    let server = SingleServer::new(url.into_connection_info().unwrap(), &setup);
    let link = server.link(Lane::Command);
    link.open().await.unwrap();
    let ended = setup.disconnected.mark();
    end.send(()).await.unwrap();
    setup.disconnected.changed_since(ended).await;
    let ping = redis::cmd("PING");
    let replies = link.exchange(&[&ping], REPLY * 2).await;
    let replies = replies.expect("over another connection");
    assert_eq!(errors_in(&replies).count(), 1);
}

/// A proxy may log a connection out after a time, and leave it open.
#[tokio::test]
async fn a_connection_that_is_no_longer_logged_in_is_replaced() {
    let asked = AtomicUsize::new(0);
    let server = FakeServer::start(move |words| match words {
        "PING" if asked.fetch_add(1, Ordering::SeqCst) == 1 => at_once("-NOAUTH log in again"),
        "PING" => at_once("+PONG"),
        _ => at_once("-ERR no"),
    });
    let server = server.await;
    let url = format!("redis://{}", server.address);
    let setup = Setup::sample(BOUND);
    let one = SingleServer::new(url.into_connection_info().unwrap(), &setup);
    let link = one.link(Lane::Command);
    let ping = redis::cmd("PING");
    let pinged = async || link.send(&ping, BOUND).await;
    pinged().await.expect("a reply");
    let out = pinged().await.unwrap_err();
    assert!(
        matches!(out, Fault::Unsent(_)),
        "it may be sent again: {out:?}"
    );
    assert!(!link.is_open());
    pinged().await.expect("a reply");
    assert_eq!(server.connections(), 2);
}

/// For example, nodes that come back have other addresses in Kubernetes.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_used_for_long_is_forgotten() {
    let model = "redis://h".into_connection_info().unwrap();
    let setup = Setup {
        clock: Clock::of_runtime(),
        ..Setup::sample(REPLY)
    };
    let nodes = Nodes::new(model, setup);
    let at = |port| nodes.at(&Address::new("h", port));
    let stays = at(1);
    for port in 2..100 {
        at(port);
        tokio::time::sleep(UNUSED_MAX / 10).await;
        nodes.known();
    }
    assert!(Arc::ptr_eq(&at(1), &stays), "it is in use");
    assert!(nodes.known().len() <= 12, "{}", nodes.known().len());
    drop(stays);
    tokio::time::sleep(UNUSED_MAX * 9 / 10).await;
    let address = Address::new("h", 1);
    assert!(nodes.known().contains_key(&address), "it was a while ago");
    tokio::time::sleep(UNUSED_MAX).await;
    assert!(nodes.known().is_empty());
}
