//! Holds that are left at the server until the time is over that their handle asks for.

use std::time::Duration;

use super::{LEASE, MS};
use crate::client::Client;
use crate::conn::Lane;
use crate::testing::{Answer, Scripted, done, granted};

/// A server that has no room, or cannot write to its disk, for a while.
#[tokio::test(start_paused = true)]
async fn a_hold_is_left_as_soon_as_the_server_no_longer_refuses() {
    let (refused_until, at_least) = (MS * 2_500, MS * 5_000);
    let server = Scripted::new(move |sent| match sent.lane {
        Lane::Renewal if sent.at < refused_until => Answer::Error("MISCONF no disk"),
        Lane::Renewal => Answer::Value(done()),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").at_least(at_least);
    drop(lock.lock().await.unwrap());
    tokio::time::sleep(at_least).await;
    let left = server.sent().pop().unwrap();
    assert_eq!(left.lane, Lane::Renewal);
    let late = left.at.checked_sub(refused_until).expect("a later attempt");
    assert!(late <= MS * 200, "the longest pause: {late:?}");
    let lease: u64 = left.script_args()[2].parse().unwrap();
    let remaining = at_least - left.at;
    let lease = Duration::from_millis(lease);
    // What is repeated while an answer is waited for is the same.
    let most = remaining + MS * 1_001;
    assert!(lease >= remaining && lease <= most, "{lease:?}");
}
