//! Clients that outlive their runtime: every call reports it. Calls on another runtime than that of their client.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::task::{Context, Wake};
use std::time::Duration;

use lockset::{Client, Error};
use lockset_testkit::{Server, unique_name, within};
use parking_lot::Mutex;

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, hold_counts, patient_client};

/// Runs `made` on a runtime that ends right after it.
fn on_a_runtime_that_ends<T: Send>(made: impl AsyncFnOnce() -> T + Send) -> T {
    // A runtime cannot end on the thread of another.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
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

/// A caller on another runtime than that of its client leaves just as it begins to listen.
#[test]
fn a_caller_of_another_runtime_leaves_no_subscription() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
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
