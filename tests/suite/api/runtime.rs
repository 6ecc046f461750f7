//! Clients that outlive their runtime: every call reports it.

use std::time::Duration;

use lockset::{Client, Error};
use lockset_testkit::{Server, unique_name, within};

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
