//! Clients that outlive their runtime: every call reports it. Calls on another runtime than that of their client.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::task::{Context, Wake};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, StreamExt};
use lockset::{Client, Error, Owner};
use lockset_testkit::{Server, unique_name, within};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, client, hold_counts, listening, patient_client};

const SECOND: Duration = Duration::from_secs(1);

/// Runs `made` on a runtime that ends right after it.
fn on_a_runtime_that_ends<T: Send>(made: impl AsyncFnOnce() -> T + Send) -> T {
    // A runtime cannot end on the thread of another.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = Runtime::new().unwrap();
            runtime.block_on(made())
        });
        thread.join().unwrap()
    })
}

#[track_caller]
fn says_so(error: Option<Error>) {
    let error = error.expect("an error");
    assert!(error.is_closed(), "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
}

async fn every_call_says_that_the_runtime_has_ended<P: Primitive>() {
    let server = Server::start();
    let url = server.url();
    let name = unique_name("ended");
    let (client, guards) = on_a_runtime_that_ends(async || {
        let client: Client = patient_client(&url).await;
        let guard = P::of(&client, &name).lock().await.unwrap();
        let again = guard.reenter().await.unwrap();
        let last = guard.reenter().await.unwrap();
        (client, [guard, again, last])
    });
    let [guard, again, last] = guards;
    let all = async {
        for lock in [
            P::of(&client, "other"),
            P::of(&client, "fixed").fixed_lease(SOON),
        ] {
            says_so(lock.lock().await.err());
            says_so(lock.try_lock().await.err());
            says_so(lock.try_lock_for(Duration::from_secs(1)).await.err());
            says_so(lock.is_locked().await.err());
            says_so(lock.force_unlock().await.err());
        }
        // Existing holds last for their lease, by both clocks.
        assert!(!guard.is_lost());
        says_so(guard.reenter().await.err());
        says_so(again.release().await.err());
        drop(last);
        says_so(client.clone().shutdown().await.err());
        says_so(client.shutdown().await.err());
        assert!(guard.is_lost());
    };
    within(SOON, all).await;
    let names = P::names(&name);
    assert!(hold_counts(&server, &P::names("other")).await.is_empty());
    assert_eq!(hold_counts(&server, &names).await.len(), names.len());
}

for_every_primitive! {"current_thread":
    every_call_says_that_the_runtime_has_ended
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    every_call_says_that_the_runtime_has_ended
}

/// Stops the thread that wakes a task, once, until the task has done what it then does.
struct Stops {
    woken: SyncSender<()>,
    goes_on: Mutex<Option<Receiver<()>>>,
}

impl Wake for Stops {
    fn wake(self: Arc<Self>) {
        let goes_on = self.goes_on.lock().take();
        if let Some(goes_on) = goes_on {
            self.woken.send(()).unwrap();
            let _ = goes_on.recv_timeout(SOON);
        }
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A caller on another runtime than that of its client leaves just as it begins to listen.
#[test]
fn a_caller_of_another_runtime_leaves_no_subscription() {
    let (sender, receiver) = mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let server = Server::start();
    let url = server.url();
    let home = std::thread::spawn(move || {
        runtime().block_on(async {
            sender.send(patient_client(&url).await).unwrap();
            let _ = ended.await;
        });
    });
    let client: Client = receiver.recv().unwrap();
    runtime().block_on(async {
        let latch = client.latch("x");
        latch.init(1).await.unwrap();
        let (woken, is_woken) = mpsc::sync_channel(1);
        let (go_on, goes_on) = mpsc::channel();
        let goes_on = Mutex::new(Some(goes_on));
        let waker = Arc::new(Stops { woken, goes_on }).into();
        let mut context = Context::from_waker(&waker);
        let mut waiting = Box::pin(latch.wait());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        // The first look is answered, and the runtime of the client stands still.
        is_woken.recv().unwrap();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(waiting);
        go_on.send(()).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left = server.pubsub_channels().await;
        assert!(left.is_empty(), "{left:?}");
    });
    drop(client);
    let _ = end.send(());
    home.join().unwrap();
}

/// What is wrong with the end of a call that has no answer.
async fn is_wrong<T>(what: &str, call: impl Future<Output = lockset::Result<T>>) -> Option<String> {
    match tokio::time::timeout(SOON, call).await {
        Ok(Err(error)) if error.is_io() => None,
        Ok(Err(error)) => Some(format!("{what}: {error}")),
        Ok(Ok(_)) => Some(format!("{what} has an answer")),
        Err(_) => Some(format!("{what} has no end")),
    }
}

/// Nothing that the client's own runtime would do is done, but its callers are on another one.
#[test]
fn calls_end_though_the_runtime_of_their_client_stands_still() {
    let server = Server::start();
    let url = server.url();
    let (sender, receiver) = mpsc::channel();
    let (stand_still, stands_still) = tokio::sync::oneshot::channel::<()>();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (is_still, still) = mpsc::channel();
    let home = std::thread::spawn(move || {
        runtime().block_on(async {
            sender.send(client(&url).await).unwrap();
            stands_still.await.unwrap();
            is_still.send(()).unwrap();
            let _ = goes_on.recv();
        });
    });
    let ours: Client = receiver.recv().unwrap();
    runtime().block_on(async {
        let other = patient_client(&server.url()).await;
        let held = other.semaphore("held").permits(1).acquire().await.unwrap();
        let latch = ours.latch("latch");
        latch.init(2).await.unwrap();
        let owner = Owner::new();
        let guard = ours.lock("lock").owner(&owner).lock().await.unwrap();
        let permits = ours.semaphore("permits").permits(1);
        let permits = permits.acquire().await.unwrap();
        let plain = ours.plain_semaphore("plain").permits(1);
        let plain_permits = plain.acquire().await.unwrap();
        let leader = ours.election("leads").campaign().await.unwrap();
        let waits = ours.semaphore("held").permits(1);
        let waiter = lockset_testkit::spawn(async move { waits.acquire().await });
        listening(&server).await;
        stand_still.send(()).unwrap();
        still.recv().unwrap();

        let (semaphore, election) = (ours.semaphore("s").permits(1), ours.election("e"));
        let (barrier, fenced) = (
            ours.barrier("b", 2),
            ours.lock("lock").owner(&owner).fenced(),
        );
        let mut leaders = election.observe();
        let calls: [BoxFuture<'_, Option<String>>; 16] = [
            is_wrong("a re-entry with a token", fenced.lock()).boxed(),
            is_wrong("a release of permits", permits.release()).boxed(),
            is_wrong("a release of plain permits", plain_permits.release()).boxed(),
            is_wrong("a resignation", leader.resign()).boxed(),
            is_wrong("a wait for permits", async { waiter.await.unwrap() }).boxed(),
            is_wrong("acquire", semaphore.acquire()).boxed(),
            is_wrong("try_acquire", semaphore.try_acquire()).boxed(),
            is_wrong("try_acquire_for", semaphore.try_acquire_for(SECOND)).boxed(),
            is_wrong("plain acquire", plain.acquire()).boxed(),
            is_wrong("plain try_acquire", plain.try_acquire()).boxed(),
            is_wrong("plain try_acquire_for", plain.try_acquire_for(SECOND)).boxed(),
            is_wrong("a wait for a latch", latch.wait()).boxed(),
            is_wrong("arrive_and_wait", latch.arrive_and_wait()).boxed(),
            is_wrong("a barrier", barrier.wait()).boxed(),
            is_wrong("observe", async { leaders.next().await.unwrap() }).boxed(),
            is_wrong("campaign", election.campaign()).boxed(),
        ];
        let wrong: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        drop((guard, held));
    });
    drop(ours);
    drop(go_on);
    home.join().unwrap();
}
