//! A lock whose kind is chosen at run time is the lock of that kind.

use lockset::{AnyGuard, AnyLock, Client, Guard, Lock, LockKind, MultiLock};
use lockset_testkit::{Server, within};

use crate::support::SOON;

const KINDS: [LockKind; 4] = [
    LockKind::Reentrant,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
];

/// The same lock as a handle of its kind says whether it is held.
async fn is_locked(client: &Client, kind: LockKind, name: &str) -> bool {
    let held = match kind {
        LockKind::Reentrant => client.lock(name).is_locked().await,
        LockKind::Fair => client.fair_lock(name).is_locked().await,
        LockKind::Read => client.rw_lock(name).read_side().is_locked().await,
        LockKind::Write => client.rw_lock(name).write_side().is_locked().await,
        other => panic!("{other} is new"),
    };
    held.unwrap()
}

async fn taken(lock: &impl Lock<Guard = AnyGuard>) -> Box<dyn Guard> {
    Box::new(within(SOON, lock.lock()).await.unwrap())
}

#[tokio::test]
async fn it_is_the_lock_of_its_kind() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    for kind in KINDS {
        let name = kind.to_string();
        let lock = client.any_lock(kind, &name).fenced();
        assert_eq!((lock.kind(), lock.name()), (kind, &*name));
        let guard = taken(&lock).await;
        assert!(guard.token().is_ok(), "{kind}");
        assert!(is_locked(&client, kind, &name).await, "{kind}");
        assert!(lock.is_locked().await.unwrap(), "{kind}");
        let holder = lock.holder().await.unwrap().expect("it is held");
        assert_eq!(holder.id, guard.holder_id(), "{kind}");
        within(SOON, guard.release()).await.unwrap();
        assert!(!is_locked(&client, kind, &name).await, "{kind}");
    }
}

#[tokio::test]
async fn it_is_freed_by_force_on_its_side_only() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    for kind in KINDS {
        let lock = client.any_lock(kind, kind.to_string());
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert!(lock.force_unlock().await.unwrap(), "{kind}");
        within(SOON, guard.lost()).await;
        assert!(!lock.force_unlock().await.unwrap(), "{kind}");
    }
    let reading = client.any_lock(LockKind::Read, "x");
    let guard = within(SOON, reading.lock()).await.unwrap();
    let writing = client.any_lock(LockKind::Write, "x");
    assert!(!writing.is_locked().await.unwrap());
    assert!(!writing.force_unlock().await.unwrap());
    assert!(writing.try_lock().await.unwrap().is_none());
    within(SOON, guard.release()).await.unwrap();
}

#[tokio::test]
async fn locks_of_several_kinds_are_one_list_or_one_tuple() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let (a, b) = (client.lock("a"), client.fair_lock("b"));
    let (c, d) = (
        client.rw_lock("c").read_side(),
        client.rw_lock("d").write_side(),
    );
    let list: [AnyLock; 4] = [
        a.clone().into(),
        b.clone().into(),
        c.clone().into(),
        d.into(),
    ];
    let all = MultiLock::new(&list).unwrap();
    let guard = within(SOON, all.lock()).await.unwrap();
    assert_eq!(guard.names(), ["a", "b", "c", "d"]);
    let tuple = MultiLock::new((&a, b, c, client.any_lock(LockKind::Write, "d"))).unwrap();
    assert!(tuple.try_lock().await.unwrap().is_none());
    within(SOON, guard.release()).await.unwrap();
    let guard = within(SOON, tuple.lock()).await.unwrap();
    assert_eq!(guard.names(), ["a", "b", "c", "d"]);
    within(SOON, guard.release()).await.unwrap();
}
