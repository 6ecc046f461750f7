//! Messages that wake the waiters of a semaphore.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockset_testkit::{Server, unique_name, within};

use crate::support::{BY_MESSAGE, SOON, listening, patient_client, took_less};

/// Enough for a few commands of a server on this machine.
const MOMENT: Duration = Duration::from_millis(20);

/// The message of the release overtakes the refusal: the client is still subscribed, from the wait before, but no call
/// listens yet.
#[tokio::test]
async fn a_message_that_comes_before_the_refusal_is_not_missed() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let theirs = patient_client(&server.url()).await;
    let name = unique_name("semaphore");
    let semaphores = [&ours, &theirs].map(|client| client.semaphore(&name).permits(1));
    let url = redis::Client::open(server.url()).unwrap();
    let mut blocking = url.get_connection().unwrap();
    for hops in 1..8 {
        let held = semaphores[1].acquire().await.unwrap();
        let waiter = semaphores[0].clone();
        let waiting = lockset_testkit::spawn(async move { waiter.acquire().await });
        listening(&server).await;
        held.release().await.unwrap();
        let guard = within(SOON, waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
        let held = semaphores[1].acquire().await.unwrap();
        let permit = held.holder_ids().next().unwrap().to_owned();
        let mut next = Box::pin(semaphores[0].acquire());
        assert!((&mut next).now_or_never().is_none());
        for _ in 0..hops {
            tokio::task::yield_now().await;
        }
        // The runtime stands still while the server refuses, and while another client releases.
        std::thread::sleep(MOMENT);
        let () = redis::pipe()
            .cmd("ZREM")
            .arg(format!("{{{name}}}:timeout"))
            .arg(permit)
            .cmd("INCRBY")
            .arg(&name)
            .arg(1)
            .cmd("PUBLISH")
            .arg(format!("redisson_sc:{{{name}}}"))
            .arg(1)
            .exec(&mut blocking)
            .unwrap();
        std::thread::sleep(MOMENT);
        let since = Instant::now();
        let guard = within(SOON, next).await.unwrap();
        took_less(since, BY_MESSAGE);
        guard.release().await.unwrap();
        drop(held);
    }
}
