//! Operations that interleave on one hold or lock. Each test reproduces a defect of the past.

use std::time::{Duration, Instant};

use lockset::{Client, LostReason, Member, MultiLock, Owner, RwLock};
use lockset_testkit::{Server, eventually, unique_name, within};

use crate::support::{
    BY_MESSAGE, SOON, idle, listening, nothing_left, patient_client, took_less, waiting,
};

struct Reading {
    server: Server,
    ours: Client,
    theirs: Client,
    name: String,
    lock: RwLock,
}

impl Reading {
    async fn new() -> Self {
        let server = Server::start();
        let ours = patient_client(&server.url()).await;
        let theirs = patient_client(&server.url()).await;
        let name = unique_name("lock");
        let lock = ours.rw_lock(&name).owner(&Owner::new());
        Self {
            server,
            ours,
            theirs,
            name,
            lock,
        }
    }

    /// The write hold is gone at the server: other clients can read.
    async fn others_read(&self) {
        let other = self.theirs.rw_lock(&self.name);
        eventually(SOON, "another client reads", async || {
            other.try_read().await.unwrap().is_some()
        })
        .await;
    }
}

/// The re-entry runs before the release of the dropped guard.
#[tokio::test]
async fn a_re_entry_does_not_hide_a_dropped_writer() {
    let scene = Reading::new().await;
    let writing = scene.lock.write().await.unwrap();
    let reading = scene.lock.read().await.unwrap();
    drop(writing);
    let inner = reading.reenter().await.unwrap();
    scene.others_read().await;
    inner.release().await.unwrap();
    reading.release().await.unwrap();
    idle(&scene.ours).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_re_entry_does_not_hide_a_released_writer() {
    let scene = Reading::new().await;
    let writing = scene.lock.write().await.unwrap();
    let reading = scene.lock.read().await.unwrap();
    let third = reading.reenter().await.unwrap();
    let (third, inner, writing) =
        tokio::join!(third.release(), reading.reenter(), writing.release());
    third.unwrap();
    writing.unwrap();
    scene.others_read().await;
    // No request of the hold is considered in flight forever.
    let started = Instant::now();
    let another = scene.ours.rw_lock(&scene.name).try_read().await.unwrap();
    took_less(started, BY_MESSAGE);
    assert!(another.is_some());
    drop((another, inner, reading));
    idle(&scene.ours).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_re_entry_does_not_hide_a_downgrade() {
    let scene = Reading::new().await;
    let writing = scene.lock.write().await.unwrap();
    let reading = scene.lock.read().await.unwrap();
    let third = reading.reenter().await.unwrap();
    let (third, inner, downgraded) =
        tokio::join!(third.release(), reading.reenter(), writing.downgrade());
    third.unwrap();
    let downgraded = downgraded.unwrap();
    assert!(
        !scene
            .ours
            .rw_lock(&scene.name)
            .write_side()
            .is_locked()
            .await
            .unwrap()
    );
    scene.others_read().await;
    drop((downgraded, inner, reading));
    idle(&scene.ours).await;
    nothing_left(&scene.server).await;
}

/// The first member was released when the second was lost, so its deadline is irrelevant.
#[tokio::test]
async fn the_loss_of_a_bundle_is_reported_at_any_time() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let (a, b) = (unique_name("a"), unique_name("b"));
    let locks = MultiLock::new([
        ours.lock(&a).fixed_lease(Duration::from_millis(300)),
        ours.lock(&b).fixed_lease(Duration::from_millis(100)),
    ]);
    let guard = locks.unwrap().lock().await.unwrap();
    assert_eq!(
        within(SOON, guard.lost_member()).await,
        (&*b, LostReason::Expired)
    );
    eventually(SOON, "the other is released", async || {
        !server.keys().await.contains(&a)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(
        within(SOON, guard.lost_member()).await,
        (&*b, LostReason::Expired)
    );
    assert_eq!(
        within(SOON, guard.run(std::future::pending::<()>()))
            .await
            .unwrap_err()
            .lock_name(),
        b
    );
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.reenter().await.unwrap_err().lock_name(), Some(&*b));
    assert_eq!(guard.release().await.unwrap_err().lock_name(), Some(&*b));
}

/// A waiter arrives while the previous waiter's subscription is being closed.
#[tokio::test]
async fn a_new_waiter_is_not_silenced_by_an_old_one() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    for _ in 0..4 {
        let held = theirs.lock(&name).lock().await.unwrap();
        let lock = ours.lock(&name);
        let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
        listening(&server).await;
        held.release().await.unwrap();
        within(SOON, waiter).await.unwrap().release().await.unwrap();
        let held = theirs.lock(&name).lock().await.unwrap();
        let lock = ours.lock(&name);
        let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
        waiting(&ours, 1).await;
        // Longer than an old subscription lingers.
        tokio::time::sleep(Duration::from_millis(150)).await;
        listening(&server).await;
        let released = Instant::now();
        held.release().await.unwrap();
        within(SOON, waiter).await.unwrap().release().await.unwrap();
        took_less(released, BY_MESSAGE);
    }
}

/// Two guards over the same holds, acquired in different ways, and an operation on one of the
/// holds.
#[tokio::test]
async fn bundles_over_the_same_holds_do_not_wait_for_each_other() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let (a, b) = (unique_name("a"), unique_name("b"));
    let owner = Owner::new();
    let both = MultiLock::new([ours.lock(&a), ours.lock(&b)])
        .unwrap()
        .owner(&owner);
    for _ in 0..20 {
        let alone = ours.lock(&b).owner(&owner).lock().await.unwrap();
        let first = both.lock().await.unwrap();
        let second = both.lock().await.unwrap();
        assert_eq!(first.names(), [&*a, &*b]);
        let began = Instant::now();
        let (inner, first, second) = within(SOON, async {
            tokio::join!(alone.reenter(), second.release(), first.release())
        })
        .await;
        took_less(began, BY_MESSAGE);
        first.unwrap();
        second.unwrap();
        drop((inner, alone));
        idle(&ours).await;
        nothing_left(&server).await;
    }
}

/// A writer that waits behind a reader of its own client does not block other clients at the
/// server.
#[tokio::test]
async fn a_multi_lock_is_no_phantom_writer() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let (a, x) = (unique_name("a"), unique_name("x"));
    let held = theirs.rw_lock(&x).read().await.unwrap();
    let locks = MultiLock::new([
        Member::from(ours.lock(&a)),
        Member::from(ours.rw_lock(&x).write_side()),
    ]);
    let locks = locks.unwrap();
    let reader = ours.rw_lock(&x);
    let work = async {
        let all = async { locks.lock().await.unwrap().release().await.unwrap() };
        let read = async { reader.read().await.unwrap().release().await.unwrap() };
        tokio::join!(all, read)
    };
    let free = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        held.release().await.unwrap();
        Instant::now()
    };
    let (_, released) = within(SOON, async { tokio::join!(work, free) }).await;
    took_less(released, Duration::from_secs(2));
    nothing_left(&server).await;
}

/// Waiters with an owner cause no extra requests.
#[tokio::test]
async fn a_fair_queue_costs_the_same_with_owners() {
    const WAITERS: usize = 16;
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let mut scripts = Vec::new();
    for with_owner in [false, true] {
        let name = unique_name("lock");
        let held = ours.fair_lock(&name).lock().await.unwrap();
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let lock = ours.fair_lock(&name);
                let lock = if with_owner {
                    lock.owner(&Owner::new())
                } else {
                    lock
                };
                lockset_testkit::spawn(async move {
                    lock.lock().await.unwrap().release().await.unwrap()
                })
            })
            .collect();
        waiting(&ours, WAITERS).await;
        eventually(SOON, "all listen", async || {
            server.pubsub_channels().await.len() == WAITERS
        })
        .await;
        server.reset_stats().await;
        held.release().await.unwrap();
        for waiter in waiters {
            within(SOON, waiter).await.unwrap();
        }
        scripts.push(server.commandstats().await["evalsha"]);
        idle(&ours).await;
    }
    // A waiter's poll may fall into either count.
    assert!(scripts[1] <= scripts[0] + 2 * WAITERS as u64, "{scripts:?}");
}
