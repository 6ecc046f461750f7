//! Failovers that lose nothing: what was held stays held, and who waited goes on.

use std::time::Instant;

use lockset_testkit::{Sentinels, within};

use super::{AllContended, SETTLED, client, replicated};

#[tokio::test]
async fn what_is_held_and_waited_for_outlives_a_failover_by_hand() {
    let sentinels = Sentinels::start().await;
    let all = AllContended::begin(&sentinels).await;
    replicated(sentinels.primary().await, 2).await;
    sentinels.fail_over().await;
    all.go_on().await;
}

#[tokio::test]
async fn what_is_held_and_waited_for_outlives_the_death_of_the_primary() {
    let sentinels = Sentinels::start().await;
    let all = AllContended::begin(&sentinels).await;
    replicated(sentinels.primary().await, 2).await;
    sentinels.kill_primary().await;
    all.go_on().await;
}

/// A call made while there is no primary waits for the next one.
#[tokio::test]
async fn a_call_rides_out_a_failover() {
    let sentinels = Sentinels::start().await;
    let ours = client(&sentinels).await;
    let primary = sentinels.primary().await;
    primary.kill();
    let began = Instant::now();
    let guard = within(SETTLED, ours.lock("report").lock()).await.unwrap();
    println!("a lock {:?} after the primary was killed", began.elapsed());
    assert_ne!(sentinels.promoted(primary).await.addr(), primary.addr());
    guard.release().await.unwrap();
}
