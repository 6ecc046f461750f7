//! Tests of commands to a primary that is replaced meanwhile.

use redis::IntoConnectionInfo;
use tokio::net::TcpListener;

use super::*;
use crate::conn::setup::Setup;

/// A release that may have been executed hides the loss of its hold at the next primary.
#[tokio::test]
async fn what_waits_for_a_connection_to_the_old_primary_was_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = Setup::sample(Duration::from_secs(20));
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = || {
        let info = url.as_str().into_connection_info().unwrap();
        Arc::new(SingleServer::new(info, &setup))
    };
    let current = CurrentPrimary::unknown(Arc::clone(&setup.events));
    current.switch_to(&server());
    let ping = redis::cmd("PING");
    let pings = [&ping];
    let exchange = current.exchange(Lane::Command, &pings, Duration::from_secs(20));
    let switch = async {
        // It never answers.
        let _connected = listener.accept().await.unwrap();
        current.switch_to(&server());
    };
    let (exchanged, ()) = tokio::join!(exchange, switch);
    let fault = exchanged.unwrap_err();
    assert!(matches!(fault, Fault::Unsent(_)), "{fault:?}");
}
