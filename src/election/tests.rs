//! The time that calls take at a server that becomes silent.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;
use tokio::time::Instant;

use super::*;
use crate::testing::{Answer, Scripted, done};

const LEASE: Duration = Duration::from_secs(30);
const REPLY: Duration = Duration::from_secs(1);
const GIVE_UP: Duration = Duration::from_secs(10);

/// A server that grants locks, and is silent from the first call of `script` on.
fn silent_at(script: &'static str) -> Arc<Scripted> {
    let is_silent = AtomicBool::new(false);
    Scripted::new(move |sent| {
        let word = sent.words.get(1).map(String::as_str);
        if word == Some(script) {
            is_silent.store(true, Ordering::Relaxed);
        }
        match word {
            _ if is_silent.load(Ordering::Relaxed) => Answer::Silence,
            Some(word) if word == catalog::REENTRANT_ACQUIRE.sha() => {
                Answer::Value(Value::BulkString(b"78".to_vec()))
            }
            Some(word) if word == catalog::LEADER_PROCLAIM.sha() => Answer::Value(Value::Int(1)),
            _ => Answer::Value(done()),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_campaign_ends_soon_after_its_limit() {
    for wait in [None, Some(REPLY * 3)] {
        let server = silent_at(catalog::LEADER_PROCLAIM.sha());
        let election = Client::over(&server, LEASE).election("x");
        let began = Instant::now();
        let led = match wait {
            None => election.try_campaign().await,
            Some(wait) => election.campaign_for(wait).await,
        };
        let error = led.unwrap_err();
        assert!(error.is_io(), "{error}");
        let took = began.elapsed();
        assert!(took <= wait.unwrap_or_default() + REPLY, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resignation_at_a_silent_server_has_one_bound() {
    let server = silent_at(catalog::LEADER_RESIGN.sha());
    let client = Client::over(&server, LEASE);
    let leadership = client.election("x").campaign().await.unwrap();
    let began = Instant::now();
    let error = leadership.resign().await.unwrap_err();
    assert!(error.is_io(), "{error}");
    assert!(began.elapsed() <= GIVE_UP, "{:?}", began.elapsed());
    assert!(client.stats().background > 0, "it goes on");
}

/// Its lease ends while the server does not answer the resignation.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_lost_while_it_resigns_is_told_so() {
    let server = silent_at(catalog::LEADER_RESIGN.sha());
    let client = Client::over(&server, LEASE);
    let election = client.election("x").lease(GIVE_UP / 2);
    let leadership = election.campaign().await.unwrap();
    let error = leadership.resign().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
}

/// The second of two equal errors is not reported.
#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_an_error_once() {
    let server = Scripted::new(|sent| match sent.at {
        at if at < REPLY => Answer::Value(Value::Okay),
        at if at < REPLY * 2 => Answer::Value(Value::Array(Vec::new())),
        _ => Answer::Value(Value::Okay),
    });
    let election = Client::over(&server, LEASE).election("x");
    let mut seen = election.polled(REPLY / 10).observe();
    let mut items = Vec::new();
    let ended = tokio::time::timeout(REPLY * 5, async {
        while let Some(leader) = seen.next().await {
            items.push(leader.is_err());
            if items.len() > 3 {
                break;
            }
        }
    })
    .await;
    assert_eq!(items, [true, false, true]);
    assert!(ended.is_err(), "an observer goes on");
}
