//! The guide's replacement for `once` on a `Redlock`: a key that is claimed once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockset_testkit::{unique_name, within};
use tokio::sync::Barrier;

use super::{LONG, Nodes};
use crate::support::SOON;

/// Longer than the test, so that each key can be claimed only once.
const WINDOW: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(500);

/// Five processes claim a key at the same time, several times. Split votes are released.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_concurrent_claims_wins() {
    let nodes = Nodes::start(5).await;
    let keys: Arc<[String]> = (0..8).map(|_| unique_name("claim")).collect();
    let start = Arc::new(Barrier::new(5));
    let mut processes = Vec::new();
    for _ in 0..5 {
        let redlock = nodes.stranger(LONG).await;
        let (start, keys) = (Arc::clone(&start), Arc::clone(&keys));
        processes.push(lockset_testkit::spawn(async move {
            let mut claimed = Vec::new();
            for key in &*keys {
                start.wait().await;
                let claim = redlock.lock(key).fixed_lease(WINDOW);
                let claim = claim.try_lock_for(WAIT).await.unwrap();
                claimed.push(claim.map(|guard| guard.forget()).is_some());
            }
            claimed
        }));
    }
    let claimed = within(SOON * 4, join_all(processes)).await;
    let claimed: Vec<Vec<bool>> = claimed.into_iter().map(Result::unwrap).collect();
    for key in 0..keys.len() {
        let by = claimed.iter().filter(|claimed| claimed[key]).count();
        assert_eq!(by, 1, "key {key}: {claimed:?}");
    }
    // The claims last although no guard exists.
    for key in &*keys {
        let again = nodes.redlock.lock(key).try_lock().await;
        assert!(again.unwrap().is_none(), "{key}");
    }
}
