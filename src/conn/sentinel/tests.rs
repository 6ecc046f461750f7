//! Tests of commands to a primary that is replaced before they end, and of a sentinel that hangs.

use redis::IntoConnectionInfo;
use tokio::net::TcpListener;

use super::sentinels::Sentinels;
use super::*;
use crate::conn::setup::Setup;
use crate::conn::tests::{BOUND, FakeServer, at_once, bulk};

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
        // The old primary accepts the connection and never answers.
        let _connected = listener.accept().await.unwrap();
        current.switch_to(&server());
    };
    let (exchanged, ()) = tokio::join!(exchange, switch);
    let fault = exchanged.unwrap_err();
    assert!(matches!(fault, Fault::Unsent(_)), "{fault:?}");
}

/// While the primary is in doubt, the rounds end without that sentinel.
#[tokio::test]
async fn a_sentinel_that_hangs_is_left_and_not_asked_again_and_again() {
    let start = |is_hung: bool| {
        FakeServer::start(move |asked| match asked {
            _ if is_hung && asked.starts_with("SENTINEL") => None,
            "SENTINEL MASTER x" => {
                let epoch = ["config-epoch", "3"].map(bulk).join("\r\n");
                at_once(&format!("*2\r\n{epoch}"))
            }
            "SENTINEL GET-MASTER-ADDR-BY-NAME x" => {
                let address = ["h", "7"].map(bulk).join("\r\n");
                at_once(&format!("*2\r\n{address}"))
            }
            "SENTINEL SENTINELS x" => at_once("*0"),
            "HELLO 3" => at_once("+OK"),
            _ => at_once("-ERR no"),
        })
    };
    let [one, two, hung] = [start(false).await, start(false).await, start(true).await];
    let addresses = [&one, &two, &hung].map(|one| one.address.clone());
    let setup = Setup::sample(Duration::from_millis(200));
    let model = "redis://h".into_connection_info().unwrap();
    let mut sentinels = Sentinels::new(addresses.into(), "x", model, &setup);
    let polls = async {
        while hung.connections() < 2 {
            sentinels.poll(true, None).await;
        }
    };
    let polled = tokio::time::timeout(BOUND, polls).await;
    polled.expect("it gets a new connection");
}
