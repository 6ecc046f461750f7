//! Members named more than once: the same lock counts once, and different locks of one name are
//! refused.

use std::time::Duration;

use lockset::{Client, MULTI_LOCK_MEMBERS_MAX, Member, MultiLock, Owner};
use lockset_testkit::Server;

use super::{KINDS, Kind, held};
use crate::support::{idle, nothing_left, patient_client};

/// An order with two lines for one item.
#[tokio::test]
async fn the_same_lock_twice_is_one_member() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let names = ["item:1", "item:2"].map(str::to_owned);
    for kind in KINDS {
        let lines = ["item:2", "item:1", "item:2", "item:1", "item:2"];
        let lock = MultiLock::new(lines.map(|item| kind.member(&client, item))).unwrap();
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.names(), names, "{kind:?}");
        assert_eq!((guard.hold_count(), guard.fencing_tokens().len()), (1, 2));
        assert_eq!(held(&server, &names).await, names);
        guard.release().await.unwrap();
        nothing_left(&server).await;
        idle(&client).await;
    }
}

/// The limit counts locks, not lines.
#[tokio::test]
async fn repeated_members_count_once_for_the_most_there_may_be() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lines =
        (0..MULTI_LOCK_MEMBERS_MAX * 3).map(|line| client.lock(format!("item:{}", line % 7)));
    let guard = MultiLock::new(lines).unwrap().lock().await.unwrap();
    assert_eq!(guard.names().len(), 7);
}

#[tokio::test]
async fn the_same_options_are_the_same_member() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let owner = Owner::new();
    let item = || {
        let lock = client.lock("item").owner(&owner).fenced();
        lock.lease(Duration::from_secs(7))
            .replicated(1, Duration::from_secs(1))
    };
    assert!(MultiLock::new([item(), item()]).is_ok());
    let others = [
        item().owner(&Owner::new()),
        item().lease(Duration::from_secs(8)),
        item().fixed_lease(Duration::from_secs(7)),
        item().replicated(2, Duration::from_secs(1)),
        client.lock("item"),
    ];
    for other in others {
        let error = MultiLock::new([item(), other]).unwrap_err();
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some("item"));
        assert!(error.to_string().contains("options"), "{error}");
    }
}

#[tokio::test]
async fn different_kinds_of_one_name_are_refused() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for one in KINDS {
        for two in KINDS {
            let twice = || {
                [
                    one.member(&client, "x"),
                    Kind::Fair.member(&client, "between"),
                    two.member(&client, "x"),
                ]
            };
            if one == two {
                assert!(MultiLock::new(twice()).is_ok());
                continue;
            }
            let error = MultiLock::new(twice()).unwrap_err();
            assert!(error.is_invalid(), "{one:?} {two:?}: {error}");
            assert_eq!(error.lock_name(), Some("x"));
            assert!(error.to_string().contains("kind"), "{error}");
        }
    }
}

/// Over two connections, the call would wait for itself.
#[tokio::test]
async fn the_same_lock_of_two_clients_is_refused() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let twice = MultiLock::new([ours.lock("x"), theirs.lock("x")]).unwrap_err();
    assert!(twice.is_invalid() && twice.lock_name() == Some("x"));
    assert!(twice.to_string().contains("clients"), "{twice}");
    // A clone is the same client.
    assert!(MultiLock::new([ours.lock("x"), ours.clone().lock("x")]).is_ok());
}

#[tokio::test]
async fn a_member_reports_its_name() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("shop:");
    let client = client.build().await.unwrap();
    for kind in KINDS {
        let member: Member = kind.member(&client, "item:1");
        assert_eq!(member.name(), "item:1");
        // This includes invalid names, which the call reports.
        assert_eq!(kind.member(&client, "a{b").name(), "a{b");
    }
}
