//! Failovers without data loss: locks stay held, and waiters continue.

use std::time::Instant;

use lockset::Client;
use lockset_testkit::{Proxy, Sentinels, eventually, within};

use super::{AllContended, SETTLED, client, connections, replicated};
use crate::support::SOON;

#[tokio::test]
async fn holds_and_waits_survive_a_manual_failover() {
    let sentinels = Sentinels::start().await;
    let all = AllContended::begin(&sentinels).await;
    replicated(sentinels.primary().await, 2).await;
    let old = sentinels.fail_over().await;
    all.go_on().await;
    // Before the old primary is demoted, which also closes its connections.
    eventually(
        SOON,
        "no client is connected to the old primary",
        async || connections(old).await == 0,
    )
    .await;
}

#[tokio::test]
async fn holds_and_waits_survive_the_death_of_the_primary() {
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

/// So does connecting.
#[tokio::test]
async fn a_client_connects_during_a_failover() {
    let sentinels = Sentinels::start().await;
    let primary = sentinels.primary().await;
    primary.kill();
    // The client searches for a primary for three seconds. An election on a busy machine may take
    // longer.
    eventually(SETTLED, "a client connects", async || {
        Client::connect(&sentinels.url()).await.is_ok()
    })
    .await;
}

/// The frozen primary has unread commands in its sockets, and acts as a primary until a sentinel
/// demotes it.
#[tokio::test]
async fn a_formerly_frozen_primary_is_not_used() {
    let sentinels = Sentinels::start().await;
    let ours = client(&sentinels).await;
    let held = ours.lock("held").lock().await.unwrap();
    let old = sentinels.primary().await;
    replicated(old, 2).await;
    old.stop();
    // This caller waits at the old primary, and is granted the lock by the new one.
    let asked = lockset_testkit::spawn({
        let lock = ours.lock("asked");
        async move { lock.lock().await }
    });
    sentinels.promoted(old).await;
    let promoted = Instant::now();
    let asked = within(SETTLED, asked).await.unwrap().unwrap();
    println!("a lock {:?} after all sentinels agreed", promoted.elapsed());
    within(SETTLED, held.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    old.cont();
    eventually(
        SETTLED,
        "no client is connected to the old primary",
        async || connections(old).await == 0,
    )
    .await;
    old.reset_stats().await;
    for _ in 0..50 {
        let guard = ours.lock("another").lock().await.unwrap();
        guard.release().await.unwrap();
    }
    let ran = old.commandstats().await;
    assert!(
        !ran.contains_key("evalsha") && !ran.contains_key("eval"),
        "{ran:?}"
    );
    assert!(!held.is_lost() && !asked.is_lost());
    for guard in [held, asked] {
        within(SETTLED, guard.release()).await.unwrap();
    }
    // The commands in the sockets of the old primary were discarded at its demotion.
    sentinels.is_well().await;
    for server in sentinels.servers() {
        eventually(SETTLED, "nothing is held", async || {
            let keys = server.keys().await;
            !keys
                .iter()
                .any(|key| ["held", "asked", "another"].contains(&&**key))
        })
        .await;
    }
}

/// The old primary continues and can be reached, while this client cannot reach the new one.
#[tokio::test]
async fn a_former_primary_is_not_used_while_the_new_one_is_unreachable() {
    let sentinels = Sentinels::builder().replicas(1).start().await;
    let old = sentinels.primary().await;
    let next = sentinels.servers().iter();
    let mut next = next.filter(|server| server.addr() != old.addr());
    let next = next.next().expect("a replica");
    let proxy = Proxy::start(next.addr()).await;
    proxy.refuse(true);
    let (inner, outer) = (next.port(), proxy.addr());
    let mapped = Client::builder(&sentinels.url()).address_map(move |_, port| {
        (port == inner).then(|| (outer.ip().to_string(), outer.port()))
    });
    let ours = within(SOON, mapped.build()).await.unwrap();
    let held = ours.lock("held").lock().await.unwrap();
    replicated(old, 1).await;
    old.stop();
    sentinels.promoted(old).await;
    let asked = proxy.asked_for();
    eventually(SETTLED, "it hears of the next one", async || {
        // Two connections per attempt.
        proxy.asked_for() > asked + 3
    })
    .await;
    old.cont();
    let theirs = client(&sentinels).await;
    let first = theirs.lock("wanted").lock().await.unwrap();
    let second = ours.lock("wanted").give_up_after(SOON / 5);
    let second = second.try_lock().await;
    assert!(second.is_err_and(|error| error.is_io()), "two hold it");
    proxy.refuse(false);
    eventually(SETTLED, "the holder is reported", async || {
        matches!(ours.lock("wanted").try_lock().await, Ok(None))
    })
    .await;
    for guard in [first, held] {
        assert!(!guard.is_lost());
        within(SETTLED, guard.release()).await.unwrap();
    }
}

/// Failing back: the same server is the primary again, with new connections.
#[tokio::test]
async fn a_primary_that_comes_back_is_used_again() {
    let sentinels = Sentinels::builder().replicas(1).hurried().start().await;
    let ours = client(&sentinels).await;
    let held = ours.lock("held").lock().await.unwrap();
    let mut primaries = Vec::new();
    for _ in 0..3 {
        let primary = sentinels.primary().await;
        primaries.push(primary.port());
        within(SETTLED, held.reenter())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        replicated(primary, 1).await;
        sentinels.fail_over().await;
        sentinels.is_well().await;
    }
    assert_eq!(primaries[0], primaries[2]);
    eventually(SETTLED, "it is at home at the last primary", async || {
        within(SETTLED, held.reenter())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        connections(sentinels.primary().await).await == 2
    })
    .await;
    assert!(!held.is_lost());
    held.release().await.unwrap();
}
