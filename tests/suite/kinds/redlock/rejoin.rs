//! Restarted servers have no vote for a lease, and then rejoin existing holds.
//!
//! Restarting a server blocks the test's thread, which must not be the thread that renews.

use std::time::Instant;

use lockset::{LostReason, Redlock};
use lockset_testkit::{Server, eventually, unique_name, within};

use super::{LONG, Nodes, held_on, held_on_exactly};
use crate::support::{LEASE, SOON};

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_no_vote_for_a_lease() {
    // Two restarts are over long before the lease ends.
    let lease = LEASE * 4;
    let nodes = Nodes::seasoned_for(3, lease).await;
    let name = unique_name("redlock");
    let stranger = Redlock::new(super::clients(&nodes.servers, lease).await).unwrap();
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    nodes.all_joined().await;
    // The first server forgets its vote. With the second server, which the holder does not need,
    // another client would have a majority.
    nodes.servers[0].restart();
    nodes.servers[1].kill();
    let error = stranger.lock(&name).try_lock().await.unwrap_err();
    assert!(error.is_quorum(), "{error}");
    assert!(
        error.to_string().contains("may have forgotten a vote"),
        "{error}"
    );
    nodes.servers[1].restart();
    for _ in 0..20 {
        let got = stranger.lock(&name).try_lock().await;
        assert!(
            !matches!(got, Ok(Some(_))) || guard.is_lost(),
            "two have it"
        );
    }
    // The holder is below a majority, and learns of it from the servers.
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert!(guard.release().await.unwrap_err().is_not_held());
    let next = within(SOON * 2, async {
        loop {
            match stranger.lock(&name).lock().await {
                Ok(guard) => return guard,
                // For longer than a third of a lease.
                Err(error) => assert!(error.is_quorum(), "{error}"),
            }
        }
    });
    next.await.release().await.unwrap();
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_say_how_long_it_is_up_has_no_vote() {
    let nodes = Nodes::start(1).await;
    let mut admin = nodes.servers[0].admin().await;
    let mut user = redis::cmd("ACL");
    user.arg(&[
        "SETUSER", "u", "reset", "on", ">s3cret", "~*", "&*", "+@all", "-info",
    ]);
    let () = user.query_async(&mut admin).await.unwrap();
    let url = nodes.servers[0]
        .url()
        .replace("redis://", "redis://u:s3cret@");
    let client = super::client(url, LONG).await;
    let lock = Redlock::new([client.clone()]).unwrap();
    let lock = lock.lock(unique_name("redlock"));
    // At once, because waiting would not help.
    let error = within(SOON, lock.lock()).await.unwrap_err();
    assert!(
        error.is_quorum() && error.to_string().contains("+info"),
        "{error}"
    );
    assert!(!format!("{error} {error:?}").contains("s3cret"));
    let trusted = Redlock::builder([client])
        .persistent_nodes()
        .build()
        .unwrap();
    drop(trusted.lock(unique_name("redlock")).lock().await.unwrap());
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_the_restart_of_every_server() {
    let nodes = Nodes::seasoned(5).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).fenced().lock().await.unwrap();
    let token = guard.fencing_token().unwrap();
    nodes.all_joined().await;
    let stranger = nodes.stranger(LONG).await;
    for server in &nodes.servers {
        server.restart();
        let one = std::slice::from_ref(server);
        eventually(SOON * 2, "it is won back", async || {
            held_on(one, &name).await == 1
        })
        .await;
        assert!(!guard.is_lost());
        assert!(stranger.lock(&name).try_lock().await.unwrap().is_none());
    }
    assert_eq!(guard.fencing_token(), Some(token));
    guard.release().await.unwrap();
    drop(stranger);
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_forgets_ends_the_hold() {
    let nodes = Nodes::seasoned(5).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    nodes.all_joined().await;
    let work = guard.run(std::future::pending::<()>());
    let faults = async {
        // All at once: on a slow machine the first would have a vote again before the last is restarted.
        let forgetful = &nodes.servers[..3];
        forgetful.iter().for_each(Server::kill);
        forgetful.iter().for_each(Server::restart);
    };
    let (lost, ()) = within(SOON, async { tokio::join!(work, faults) }).await;
    assert_eq!(lost.unwrap_err().lock_name(), name);
    assert!(guard.is_lost() && guard.remaining().is_zero());
    // The remaining votes are released at once, not at the end of their leases or with the guard.
    held_on_exactly(0, &nodes.servers, &name).await;
    assert!(guard.reenter().await.unwrap_err().is_not_held());
    assert!(guard.release().await.unwrap_err().is_not_held());
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_out_of_reach_end_the_hold_by_the_clock() {
    let nodes = Nodes::seasoned(3).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    nodes.servers[0].stop();
    nodes.servers[1].stop();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    nodes.servers[0].cont();
    nodes.servers[1].cont();
    assert!(guard.release().await.unwrap_err().is_not_held());
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_lease_ends_and_is_not_prolonged() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let lease = LEASE * 2;
    let lock = nodes.redlock.lock(&name).fixed_lease(lease);
    nodes.servers[2].kill();
    let guard = lock.lock().await.unwrap();
    let until = Instant::now() + guard.remaining();
    let loss = guard.loss();
    let lost = lockset_testkit::spawn(async move { (loss.wait().await, Instant::now()) });
    nodes.servers[2].restart();
    let (reason, at) = within(SOON, lost).await.unwrap();
    assert_eq!(reason, LostReason::Expired);
    let late = at - until;
    assert!(late < lease / 2, "{late:?} late");
    drop(guard);
    nodes.nothing_left().await;
}
