//! `with`: lock, body and release in one call, with every way it can end, for each kind of lock.

use std::convert::Infallible;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset::{
    Client, FairLock, Guard, Lock, LostReason, MultiLock, ReadSide, Redlock, RedlockLock,
    ReentrantLock, Wait, WithError, WriteSide,
};
use lockset_testkit::{Server, eventually, within};

use crate::support::{
    LEASE, SOON, client, client_with_lease, command, idle, nothing_left, patient_client, took_less,
    waiting,
};

/// How to create a lock of a kind, and its rival.
trait Kind: Lock {
    fn of(client: &Client) -> Self;

    /// Acquires the rival.
    async fn rival(client: &Client) -> Box<dyn Guard> {
        Box::new(Self::of(client).lock().await.unwrap())
    }
}

impl Kind for ReentrantLock {
    fn of(client: &Client) -> Self {
        client.lock("x")
    }
}

impl Kind for FairLock {
    fn of(client: &Client) -> Self {
        client.fair_lock("x")
    }
}

impl Kind for ReadSide {
    fn of(client: &Client) -> Self {
        client.rw_lock("x").read_side()
    }

    async fn rival(client: &Client) -> Box<dyn Guard> {
        Box::new(client.rw_lock("x").write().await.unwrap())
    }
}

impl Kind for WriteSide {
    fn of(client: &Client) -> Self {
        client.rw_lock("x").write_side()
    }
}

impl Kind for MultiLock {
    fn of(client: &Client) -> Self {
        Self::new([client.lock("x"), client.lock("y")]).unwrap()
    }
}

impl Kind for RedlockLock {
    fn of(client: &Client) -> Self {
        let redlock = Redlock::builder([client.clone()]).persistent_nodes();
        redlock.build().unwrap().lock("x")
    }
}

/// Records that a body has ended or was dropped.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The server is in its original state: the lock is free.
async fn released<L: Kind>(server: &Server, lock: &L) {
    nothing_left(server).await;
    let free = lock.with(Wait::Try, async |_| Ok::<_, Infallible>(true));
    assert!(free.await.unwrap());
}

async fn the_value_of_the_body<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client).fenced();
    let other = patient_client(&server.url()).await;
    let (mut seen, borrowed) = (0, String::from("borrowed"));
    let done = lock.with(Duration::ZERO, async |guard| {
        assert!(!guard.is_lost() && guard.fencing_token().is_some());
        seen += 1;
        // The lock is exclusive while the body runs.
        let second = L::rival_is_refused(&other).await;
        Ok::<_, Infallible>((borrowed.len(), second))
    });
    assert_eq!(done.await.unwrap(), (8, true));
    assert_eq!(seen, 1);
    released(&server, &lock).await;
    let done = lock.with_completed(SOON, async |_| Ok::<_, Infallible>(7));
    let done = done.await.unwrap();
    assert!(done.value == 7 && done.released.is_ok() && !done.is_lost());
}

/// The error names the holder, and the body does not start.
async fn a_lock_that_others_hold<L: Kind>() {
    let server = Server::start();
    let (holder, client) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let guard = L::rival(&holder).await;
    let lock = L::of(&client);
    for wait in [Wait::Try, Wait::For(Duration::from_millis(30))] {
        let refused = lock.with(wait, async |_| -> Result<(), Infallible> {
            unreachable!("the lock is held")
        });
        let error = refused.await.unwrap_err();
        assert!(error.is_busy() && !error.is_lost() && !error.is_work() && !error.is_lock());
        let WithError::Busy(busy) = error else {
            panic!("{error:?}")
        };
        assert_eq!(busy.lock, "x");
        assert_eq!(busy.holder.as_deref(), Some(guard.holder_id()));
        assert!(busy.remaining.unwrap() > SOON);
    }
    // A waiter is granted the lock once it is free.
    let waits = lock.with(Wait::Forever, async |_| Ok::<_, Infallible>(Instant::now()));
    let freeing = async {
        waiting(&client, 1).await;
        let freed = Instant::now();
        guard.release().await.unwrap();
        freed
    };
    let (granted, freed) = within(SOON, async { tokio::join!(waits, freeing) }).await;
    assert!(granted.unwrap() >= freed);
    released(&server, &lock).await;
}

/// The body is dropped at once and does not complete.
async fn a_lock_that_is_lost<L: Kind>() {
    let server = Server::start();
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    let lock = L::of(&client);
    let over = Arc::new(AtomicBool::new(false));
    let stopped = lock.with(SOON, async |guard| {
        let _over = Over(Arc::clone(&over));
        let loss = guard.loss();
        command(&server, &["FLUSHALL"]).await;
        loss.wait().await;
        // The body is here when the lock is lost.
        pending::<Result<(), Infallible>>().await
    });
    let error = within(SOON, stopped).await.unwrap_err();
    assert!(over.load(Ordering::SeqCst));
    assert!(error.is_lost(), "{error}");
    let WithError::Lost {
        lock: name, reason, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(*reason, LostReason::Revoked);
    assert!(["x", "y"].contains(&name.as_str()), "{name}");
    assert!(error.to_string().contains("stopped"), "{error}");
    released(&server, &lock).await;
}

async fn an_error_of_the_body<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client);
    let failed = lock.with(SOON, async |_| {
        Err::<(), _>(std::io::Error::other("disk full"))
    });
    let error = failed.await.unwrap_err();
    assert!(error.is_work() && error.to_string() == "disk full");
    // The release is confirmed when the call returns.
    let free = lock.try_lock().await.unwrap().expect("it was released");
    free.release().await.unwrap();
    // The body may return an error of this library too.
    let failed = lock.with(SOON, async |_| client.lock("").lock().await.map(drop));
    let error = failed.await.unwrap_err();
    assert!(error.is_work());
    assert!(error.flatten().is_invalid());
}

async fn a_lock_that_cannot_be_acquired<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client).lease(Duration::ZERO);
    let failed = lock.with(SOON, async |_| -> lockset::Result<()> {
        unreachable!("such a lease cannot work")
    });
    let error = failed.await.unwrap_err();
    assert!(error.is_lock(), "{error}");
    assert!(error.flatten().is_invalid());
}

/// The body's result stands, and the release continues in the background.
async fn a_server_that_is_gone_after_the_body<L: Kind>() {
    for completed in [false, true] {
        let server = Server::start();
        let client = client(&server.url()).await;
        let lock = L::of(&client);
        let body = async |_: &L::Guard| {
            server.kill();
            Ok::<_, Infallible>(7)
        };
        let began = Instant::now();
        if completed {
            let done = lock.with_completed(SOON, body).await.unwrap();
            assert_eq!(done.value, 7);
            let error = done.released.unwrap_err();
            assert!(error.is_io() || error.is_not_held(), "{error}");
        } else {
            assert_eq!(lock.with(SOON, body).await.unwrap(), 7);
        }
        took_less(began, SOON / 2);
    }
}

/// Only the release finds the loss. The value is returned with it.
async fn a_lock_that_was_lost_unnoticed<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client);
    for completed in [false, true] {
        let body = async |_: &L::Guard| {
            command(&server, &["FLUSHALL"]).await;
            Ok::<_, Infallible>(7)
        };
        if completed {
            let done = lock.with_completed(SOON, body).await.unwrap();
            assert!(done.value == 7 && done.is_lost());
        } else {
            assert_eq!(lock.with(SOON, body).await.unwrap(), 7);
        }
    }
}

/// The body's last step blocked the thread past the end of the lease, and completed.
async fn a_body_that_blocks_for_too_long<L: Kind>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let lock = L::of(&client).fixed_lease(LEASE);
    let done = lock.with_completed(SOON, async |guard| {
        std::thread::sleep(LEASE + Duration::from_millis(50));
        Ok::<_, Infallible>(guard.is_lost())
    });
    let done = done.await.unwrap();
    assert!(done.value && done.is_lost());
}

async fn a_body_that_panics<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client);
    let panics = lock.with(SOON, async |_| -> Result<(), Infallible> {
        tokio::task::yield_now().await;
        panic!("on purpose")
    });
    assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    released(&server, &lock).await;
}

async fn a_call_that_is_dropped<L: Kind>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = L::of(&client);
    let (over, began) = (Arc::new(AtomicBool::new(false)), tokio::sync::Notify::new());
    let held = lock.with(SOON, async |_| {
        let _over = Over(Arc::clone(&over));
        began.notify_one();
        pending::<Result<(), Infallible>>().await
    });
    tokio::select! {
        _ = held => unreachable!("it does not end"),
        () = began.notified() => {}
    }
    assert!(over.load(Ordering::SeqCst));
    idle(&client).await;
    released(&server, &lock).await;
}

/// The extra requirements of these tests on a kind.
trait Refused: Kind {
    /// Whether the rival's attempt is refused.
    async fn rival_is_refused(client: &Client) -> bool;
}

impl<L: Kind> Refused for L {
    async fn rival_is_refused(client: &Client) -> bool {
        let rival = Self::rival(client);
        tokio::time::timeout(Duration::from_millis(50), rival)
            .await
            .is_err()
    }
}

macro_rules! for_every_kind {
    ($($kind:ident: $lock:ty,)* => $tests:tt) => {
        $(for_every_kind!(@one $kind, $lock, $tests);)*
    };
    (@one $kind:ident, $lock:ty, { $($test:ident)* }) => {
        mod $kind {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test::<$lock>().await;
                }
            )*
        }
    };
}

for_every_kind! {
    reentrant: lockset::ReentrantLock,
    fair: lockset::FairLock,
    read: lockset::ReadSide,
    write: lockset::WriteSide,
    multi: lockset::MultiLock,
    redlock: lockset::RedlockLock,
    => {
        the_value_of_the_body
        a_lock_that_others_hold
        a_lock_that_is_lost
        an_error_of_the_body
        a_lock_that_cannot_be_acquired
        a_server_that_is_gone_after_the_body
        a_lock_that_was_lost_unnoticed
        a_body_that_blocks_for_too_long
        a_body_that_panics
        a_call_that_is_dropped
    }
}

/// A service with state that its handlers borrow, on a multi-threaded runtime.
struct Service {
    locks: Client,
    sold: tokio::sync::Mutex<Vec<u32>>,
}

impl Service {
    async fn sell(&self, names: &[String], seat: u32) -> Result<usize, WithError<String>> {
        let mut written = 0;
        let all = MultiLock::new(names.iter().map(|name| self.locks.lock(name)))?;
        let count = all.with(SOON, async |guard| {
            for name in guard.names() {
                let mut sold = self.sold.lock().await;
                tokio::task::yield_now().await;
                sold.push(seat);
                written += name.len();
            }
            Ok(names.len())
        });
        let count = count.await?;
        assert!(written > 0);
        Ok(count)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_tasks_of_their_own() {
    let server = Server::start();
    let locks = client(&server.url()).await;
    let sold = tokio::sync::Mutex::default();
    let service = Arc::new(Service { locks, sold });
    let tasks = (0..8).map(|seat| {
        let service = Arc::clone(&service);
        lockset_testkit::spawn(async move { service.sell(&["a".into(), "b".into()], seat).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(within(SOON * 2, task).await.unwrap().unwrap(), 2);
    }
    let sold = service.sold.lock().await;
    // Handlers ran one after another: each wrote both values before the next started.
    assert!(sold.chunks(2).all(|pair| pair[0] == pair[1]), "{sold:?}");
    assert_eq!(sold.len(), 16);
    drop(sold);
    eventually(SOON, "nothing is held", async || {
        service.locks.stats().holds == 0
    })
    .await;
}
