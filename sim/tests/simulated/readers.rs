//! Readers beside each other in the last moments of a lease.

use std::time::Duration;

use lockset_sim::Server;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_takes_nothing_from_one_with_no_whole_ms_left() {
    let server = Server::new();
    let [ours, theirs] = [server.client().await, server.client().await];
    let short = ours.rw_lock("a").fixed_lease(SECOND);
    let long = theirs.rw_lock("a").fixed_lease(10 * SECOND);
    let mut last = 0;
    // The server counts in whole ms: one of these is the last.
    for spent in 990..1_010 {
        let stays = short.read().await.unwrap();
        let leaves = long.read().await.unwrap();
        server.advance(MS * spent).await;
        leaves.release().await.unwrap();
        let keys = server.keys();
        let is_leased = keys.iter().any(|key| key.contains("rwlock_timeout"));
        if is_leased {
            last = spent;
            assert!(keys.contains(&"a".to_owned()), "after {spent} ms: {keys:?}");
        }
        stays.forget();
        server.advance(SECOND).await;
        assert_eq!(server.keys(), [""; 0]);
    }
    assert!((999..=1_001).contains(&last), "{last}");
}
