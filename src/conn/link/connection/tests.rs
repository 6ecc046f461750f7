//! Tests of a connection: its silence, its scripts, the settings and the errors of its socket, and the end with its
//! owner.

use std::time::Duration;

use futures_util::FutureExt;
use redis::{IntoConnectionInfo, ProtocolVersion, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use futures_util::future::join;

use super::*;
use crate::conn::link::wire::SharedTick;
use crate::conn::push::PushState;
use crate::conn::transport::{Fault, Replies};
use crate::engine::clock::Clock;

const BOUND: Duration = Duration::from_secs(20);

fn info(url: &str) -> ConnectionInfo {
    url.into_connection_info().unwrap()
}

fn wire(silence: Duration) -> WireParams {
    WireParams {
        clock: Clock::System,
        protocol: ProtocolVersion::RESP2,
        silence,
        last_reply: SharedTick::default(),
        push: Arc::new(PushState::new(None)),
    }
}

async fn connect(info: &ConnectionInfo) -> Result<Socket, RedisError> {
    Socket::connect(info, &Setup::sample(BOUND), BOUND, wire(BOUND)).await
}

#[tokio::test]
async fn it_is_set_up_as_asked_and_closed_with_its_owner() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let info = info(&format!("redis://{address}"));
    let setup = Setup::sample(BOUND);
    let stream = connect_tcp(&setup, "localhost", address.port()).await;
    let stream = stream.unwrap();
    assert!(stream.nodelay().unwrap());
    assert!(SockRef::from(&stream).keepalive().unwrap());
    let (_theirs, _) = listener.accept().await.unwrap();

    let socket = connect(&info).await.unwrap();
    let (mut theirs, _) = listener.accept().await.unwrap();
    let ping = [redis::cmd("PING")];
    let mut asking = Box::pin(socket.wire.ask(&ping, BOUND));
    assert!(asking.as_mut().now_or_never().is_none());
    let mut space = [0; 64];
    let read = tokio::time::timeout(BOUND, theirs.read(&mut space)).await;
    assert!(read.expect("a command comes").unwrap() > 0);
    socket.driver.abort();
    let end = tokio::time::timeout(BOUND, theirs.read(&mut space)).await;
    assert_eq!(end.expect("the end comes").unwrap(), 0);
    let answer = tokio::time::timeout(BOUND, asking).await;
    let error = answer.expect("it ends").unwrap_err();
    assert!(error.is_connection_dropped(), "{error}");
}

#[tokio::test]
async fn who_refuses_is_said_to_refuse() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let refused = connect(&info(&format!("redis://{address}"))).await;
    assert!(refused.unwrap_err().is_connection_refusal());
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_that_is_not_there_refuses() {
    let refused = connect(&info("redis+unix:///nowhere/at.all")).await;
    assert!(refused.unwrap_err().is_connection_refusal());
}

/// A connection, and the time of its last reply.
async fn connected(listener: &TcpListener) -> (Connection, SharedTick) {
    let limit = Duration::from_secs(5);
    let wire = wire(limit);
    let last_reply = wire.last_reply.clone();
    let info = info(&format!("redis://{}", listener.local_addr().unwrap()));
    let socket = Socket::connect(&info, &Setup::sample(limit), limit, wire).await;
    let script = |sha: &[u8]| match sha {
        b"known" => Some((3, "return 1")),
        b"second" => Some((4, "return 2")),
        _ => None,
    };
    let connection = Connection::new(socket.unwrap(), 0, script);
    (connection, last_reply)
}

/// Passes the ends on to the test.
#[derive(Debug)]
struct Told(mpsc::UnboundedSender<Result<Replies, Fault>>);

impl Recipient for Told {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        self.0.send(outcome).unwrap();
    }
}

/// Takes every reply for what it is.
#[derive(Debug)]
struct Uses;

impl Carrier for Uses {
    fn outcome(self: Arc<Self>, commands: usize, exchanged: Exchanged) -> Result<Replies, Fault> {
        assert!(commands == 1 || commands == 2, "with its script");
        let exchanged = exchanged.ok_or_else(|| Fault::Unknown("silent".into()))?;
        exchanged.map_err(|why| Fault::Unknown(why.into()))
    }
}

#[tokio::test]
async fn the_end_of_a_request_is_told_once_whatever_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (connection, _) = connected(&listener).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let (ping, limit) = (redis::cmd("PING"), Duration::from_secs(5));
    let [known, second] = ["known", "second"].map(|sha| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(sha).arg(0);
        call
    });
    let (told, mut ends) = mpsc::unbounded_channel();
    let told = Arc::new(Told(told));
    let submit = |command: &Cmd, limit| {
        let to = Arc::clone(&told) as Arc<dyn Recipient>;
        connection.submit(&[command], limit, Arc::new(Uses), to)
    };
    assert!(!submit(&ping, limit / 2), "needs a timer");

    let mut next = async || {
        let next = tokio::time::timeout(BOUND, ends.recv()).await;
        next.expect("an end").expect("a sender")
    };
    assert!(submit(&known, limit), "behind its script");
    server.write_all(b"$5\r\nknown\r\n:7\r\n").await.unwrap();
    assert_eq!(next().await.unwrap().as_slice(), [Value::Int(7)]);
    assert!(submit(&second, limit), "behind another script");
    server.write_all(b":1\r\n:7\r\n").await.unwrap();
    assert!(
        matches!(next().await, Err(Fault::Unknown(_))),
        "no script is loaded"
    );
    assert!(submit(&ping, limit) && submit(&ping, limit));
    server.write_all(b"+FIRST\r\n+NEXT\r\n").await.unwrap();
    for word in ["FIRST", "NEXT"] {
        let replies = next().await.unwrap();
        assert_eq!(replies.as_slice(), [Value::SimpleString(word.into())]);
    }
    assert!(submit(&ping, limit));
    drop(server);
    assert!(matches!(next().await, Err(Fault::Unknown(_))));
    assert!(!submit(&ping, limit), "the connection has ended");
    drop((connection, told));
    assert!(ends.recv().await.is_none(), "nothing is told twice");
}

#[tokio::test]
async fn a_reply_that_nobody_waits_for_any_more_says_that_the_server_is_alive() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (connection, _) = connected(&listener).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let ping = redis::cmd("PING");
    let limit = Duration::from_millis(10);
    assert!(connection.exchange(&[&ping], limit).await.is_none());
    let gave_up = Clock::System.now();
    assert!(connection.last_reply_at() < gave_up);
    server.write_all(b"+PONG\r\n").await.unwrap();
    let is_noted = async {
        while connection.last_reply_at() < gave_up {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let noted = tokio::time::timeout(Duration::from_secs(10), is_noted).await;
    noted.expect("it is noted");
}

#[tokio::test]
async fn a_script_is_loaded_in_the_write_of_its_first_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (connection, _) = connected(&listener).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let [known, other] = ["known", "other"].map(|sha| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(sha).arg(0);
        call
    });
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg("return 1");
    let limit = Duration::from_secs(10);
    for (asked, loads) in [
        (&[&other][..], false),
        (&[&known, &known], true),
        (&[&known], false),
    ] {
        let mut expected = Vec::new();
        for command in loads.then_some(&load).iter().chain(asked) {
            expected.extend(command.get_packed_command());
        }
        let replies = b"+x\r\n".repeat(asked.len() + usize::from(loads));
        let served = async {
            let mut received = vec![0; expected.len()];
            server.read_exact(&mut received).await.unwrap();
            assert_eq!(received, expected);
            server.write_all(&replies).await.unwrap();
        };
        let (answered, ()) = join(connection.exchange(asked, limit), served).await;
        assert_eq!(answered.unwrap().unwrap().len(), asked.len());
    }
}

#[tokio::test]
async fn of_those_who_gave_up_the_one_that_was_sent_first_tells_of_a_silence() {
    const SILENCE: Duration = Duration::from_secs(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (connection, last_reply) = connected(&listener).await;
    last_reply.set(Tick::ZERO);
    let at = |millis| Tick::ZERO.after(Duration::from_millis(millis));
    let is_silent = |sent, now| connection.is_silent(at(sent), at(now), SILENCE);
    assert!(!is_silent(1_900, 1_950), "for 50 ms");
    assert!(is_silent(1_000, 2_000), "this call was sent first");
    assert!(is_silent(2_100, 2_150), "there was no reply since");
    last_reply.set(at(2_160));
    assert!(!is_silent(2_155, 2_900), "there was a reply since");
    assert!(!is_silent(2_200, 3_150), "for 950 ms");
    assert!(is_silent(3_190, 3_200), "for a second, over two calls");
}
