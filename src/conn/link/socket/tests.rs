//! Tests of the socket: its settings, its errors, and its end with its owner.

use std::time::Duration;

use futures_util::FutureExt;
use redis::{IntoConnectionInfo, ProtocolVersion};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::conn::link::wire::{FirstBytes, SharedTick};
use crate::conn::push::PushState;
use crate::engine::clock::Clock;

const BOUND: Duration = Duration::from_secs(20);

fn info(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().unwrap();
    info.set_tcp_settings(crate::conn::setup::tcp_settings())
}

async fn connect(info: &ConnectionInfo) -> Result<Socket, RedisError> {
    let wire = WireParams {
        clock: Clock::System,
        protocol: ProtocolVersion::RESP2,
        silence: BOUND,
        last_reply: SharedTick::default(),
        push: Arc::new(PushState::new(None)),
        first_bytes: FirstBytes::default(),
    };
    let terms = DialParams {
        info,
        security: &Security::default(),
        limit: BOUND,
        wire: &wire,
        disconnected: &Arc::default(),
        network: &Network::System,
    };
    Socket::connect(terms).await
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
