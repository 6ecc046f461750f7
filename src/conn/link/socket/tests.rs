//! Tests of the socket: its settings, its errors, and its end with its owner.

use std::time::Duration;

use redis::IntoConnectionInfo;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

const BOUND: Duration = Duration::from_secs(20);

fn info(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    info.set_redis_settings(settings)
        .set_tcp_settings(crate::conn::setup::tcp_settings())
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None)
}

async fn connect(info: &ConnectionInfo) -> Result<Socket, RedisError> {
    let step = Step {
        clock: Clock::System,
        limit: BOUND,
    };
    let terms = Terms {
        info,
        security: &Security::default(),
        step,
        first_bytes: &FirstBytes::default(),
        last_reply: &SharedTick::default(),
        push: &Arc::new(PushState::new(None)),
        disconnected: &Arc::default(),
        network: &Network::System,
    };
    Socket::connect(terms, config()).await
}

#[tokio::test]
async fn it_is_set_up_as_asked_and_closed_with_its_owner() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let info = info(&format!("redis://{address}"));
    let stream = connect_tcp("localhost", address.port(), info.tcp_settings()).await;
    let stream = stream.unwrap();
    assert!(stream.nodelay().unwrap());
    assert!(SockRef::from(&stream).keepalive().unwrap());
    let (_theirs, _) = listener.accept().await.unwrap();

    let socket = connect(&info).await.unwrap();
    let (mut theirs, _) = listener.accept().await.unwrap();
    let End::Library { connection, .. } = &socket.end else {
        panic!("the library introduces it");
    };
    let mut asking = connection.clone();
    let asking = tokio::spawn(async move {
        let ping = redis::cmd("PING");
        asking.send_packed_command(&ping).await
    });
    let mut space = [0; 64];
    let read = tokio::time::timeout(BOUND, theirs.read(&mut space)).await;
    assert!(read.expect("a command comes").unwrap() > 0);
    drop(socket);
    let end = tokio::time::timeout(BOUND, theirs.read(&mut space)).await;
    assert_eq!(end.expect("the end comes").unwrap(), 0);
    let answer = tokio::time::timeout(BOUND, asking).await;
    let error = answer.expect("it ends").unwrap().unwrap_err();
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
