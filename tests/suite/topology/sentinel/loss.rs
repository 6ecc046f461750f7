//! Failovers that lose a grant: its holder is notified long before the end of the lease, and the
//! next holder has a larger token.

use std::time::{Duration, Instant};

use lockset::{FairLock, LostReason, ReadSide, ReentrantLock, WriteSide};
use lockset_testkit::{Sentinels, Server, unique_name, within};
use tokio::sync::Barrier;

use super::{SETTLED, client, command};
use crate::primitive::{Guard, Multi, Primitive};

/// How long after the sentinels agree a client may believe in a hold that the new primary lacks.
const NOTICED: Duration = Duration::from_secs(3);

/// Makes a replica keep its data and receive no new data.
async fn cut_off(replica: &Server) {
    command(replica, "REPLICAOF 127.0.0.1 1").await;
}

async fn the_holder_is_notified_and_the_next_token_is_larger<P: Primitive>(
    sentinels: &Sentinels,
    all_hold: &Barrier,
) {
    let (ours, theirs) = (client(sentinels).await, client(sentinels).await);
    let name = unique_name("lock");
    let before = P::of(&ours, &name).fenced().lock().await.unwrap();
    before.release().await.unwrap();
    let held = P::of(&ours, &name).fenced().lock().await.unwrap();
    let old = sentinels.primary().await;
    all_hold.wait().await;
    let lost = tokio::join!(
        async { (within(SETTLED, held.lost()).await, Instant::now()) },
        async { (sentinels.promoted(old).await, Instant::now()) },
    );
    let ((reason, lost_at), (_, promoted_at)) = lost;
    assert_eq!(reason, LostReason::Revoked);
    let after = lost_at.saturating_duration_since(promoted_at);
    let before = promoted_at.saturating_duration_since(lost_at);
    println!("{name}: lost {after:?} after (or {before:?} before) all sentinels agreed");
    assert!(after < NOTICED, "{after:?}");
    let next = within(SETTLED, P::rival(&theirs, &name).fenced().lock()).await;
    let next = next.unwrap();
    assert!(next.fencing_token() > held.fencing_token());
    assert!(held.release().await.unwrap_err().is_not_held());
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

/// The replicas have neither the hold nor its token.
#[tokio::test]
async fn a_grant_that_no_replica_has_is_lost_with_the_primary() {
    let sentinels = Sentinels::start().await;
    let old = sentinels.primary().await;
    for replica in sentinels.servers() {
        if replica.addr() != old.addr() {
            cut_off(replica).await;
        }
    }
    let all_hold = Barrier::new(6);
    let killer = async {
        all_hold.wait().await;
        old.kill();
    };
    tokio::join!(
        killer,
        the_holder_is_notified_and_the_next_token_is_larger::<ReentrantLock>(&sentinels, &all_hold),
        the_holder_is_notified_and_the_next_token_is_larger::<FairLock>(&sentinels, &all_hold),
        the_holder_is_notified_and_the_next_token_is_larger::<ReadSide>(&sentinels, &all_hold),
        the_holder_is_notified_and_the_next_token_is_larger::<WriteSide>(&sentinels, &all_hold),
        the_holder_is_notified_and_the_next_token_is_larger::<Multi>(&sentinels, &all_hold),
    );
}
