//! Holds that stay at the server until the time that their handle asks for.

use std::time::Duration;

use lockset::{Client, Member, MultiLock, Owner};
use lockset_sim::Server;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A renewal may be on its way when the guard goes. It must not lengthen what is left.
#[tokio::test(start_paused = true)]
async fn a_renewal_on_its_way_does_not_lengthen_what_is_kept() {
    for kind in ["reentrant", "write"] {
        let server = Server::new();
        let (ours, theirs) = (server.client().await, server.client().await);
        // It is renewed after 1 s.
        let (lease, at_least) = (3_000 * MS, 2_000 * MS);
        let release: std::pin::Pin<Box<dyn Future<Output = ()>>> = if kind == "reentrant" {
            let lock = ours.lock("a").lease(lease).at_least(at_least);
            let guard = lock.lock().await.unwrap();
            Box::pin(async { guard.release().await.unwrap() })
        } else {
            let lock = ours.rw_lock("a").lease(lease).at_least(at_least);
            let guard = lock.write().await.unwrap();
            Box::pin(async { guard.release().await.unwrap() })
        };
        server.advance(900 * MS).await;
        server.delay(300 * MS);
        server.advance(150 * MS).await;
        server.delay(Duration::ZERO);
        release.await;
        server.advance(800 * MS).await;
        let is_free = async || match kind {
            "reentrant" => theirs.lock("a").try_lock().await.unwrap().is_some(),
            _ => theirs.rw_lock("a").try_write().await.unwrap().is_some(),
        };
        assert!(!is_free().await, "{kind}: until its time is over");
        server.advance(200 * MS).await;
        assert!(is_free().await, "{kind}: its time is over");
    }
}

/// A client that was shut down gives nothing back, and does not say that it has.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_undone_after_the_shutdown_stays_and_says_so() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let day = Duration::from_secs(24 * 3600);
    let claim = ours.once("mail").per(day).claim().await.unwrap().unwrap();
    ours.shutdown().await.unwrap();
    let error = claim.undo().await.unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
    assert!(
        theirs
            .once("mail")
            .per(day)
            .claim()
            .await
            .unwrap()
            .is_none()
    );
}

/// One of several locks is entered again by their owner, and its last guard is released after the others are left at
/// the server: its hold must stay like theirs.
#[tokio::test(start_paused = true)]
async fn what_goes_while_others_are_left_is_left_too() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let me = Owner::new();
    let members = [
        Member::from(ours.lock("a")),
        Member::from(ours.rw_lock("b").write_side()),
    ];
    let both = MultiLock::new(members).unwrap().owner(&me);
    let both = both.at_least(300 * MS).lock().await.unwrap();
    let reads = ours.rw_lock("b").owner(&me).read().await.unwrap();
    server.delay(5 * MS);
    let (released, ()) = tokio::join!(both.release(), async {
        tokio::time::sleep(2 * MS).await;
        reads.release().await.unwrap();
    });
    released.unwrap();
    let is_free = async |client: &Client| {
        let a = client.lock("a").try_lock().await.unwrap();
        let b = client.rw_lock("b").try_write().await.unwrap();
        (a.is_some(), b.is_some())
    };
    assert_eq!(is_free(&theirs).await, (false, false), "too early");
    server.advance(300 * MS).await;
    assert_eq!(is_free(&theirs).await, (true, true), "its time is over");
}

/// Of one owner: several locks are lost together, and a guard of one of them alone, which asks for it to be left, is not.
#[tokio::test(start_paused = true)]
async fn what_a_guard_asks_to_be_left_is_left_though_others_of_its_owner_are_lost() {
    let server = Server::new();
    let (client, operator) = (server.client().await, server.client().await);
    let owner = Owner::new();
    let one = client.fair_lock("one").owner(&owner);
    let alone = one.clone().at_least(SECOND * 60).lock().await.unwrap();
    let other = client.lock("other").owner(&owner);
    let both = MultiLock::new([Member::from(one), Member::from(other)]).unwrap();
    let both = both.lock().await.unwrap();
    assert!(operator.lock("other").force_unlock().await.unwrap());
    both.lost().await;
    drop(both);
    alone.release().await.unwrap();
    server.advance(SECOND * 31).await;
    assert!(operator.fair_lock("one").is_locked().await.unwrap());
    server.advance(SECOND * 31).await;
    assert!(!operator.fair_lock("one").is_locked().await.unwrap());
}
