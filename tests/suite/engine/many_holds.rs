//! Many holds of one client: renewals are batched, and none is late.

use std::time::{Duration, Instant, SystemTime};

use lockset::Client;
use lockset_testkit::{Server, eventually, unique_name};

use crate::support::nothing_left;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_holds_are_renewed_for_a_minute() {
    const HOLDS: usize = 10_000;
    let server = Server::start();
    // With enough slack for other tests running at the same time.
    let builder = Client::builder(&server.url()).lease(Duration::from_secs(15));
    let client = builder.build().await.unwrap();
    let prefix = unique_name("lock");
    let mut guards = Vec::with_capacity(HOLDS);
    for start in (0..HOLDS).step_by(100) {
        let locks = (start..start + 100).map(|n| client.lock(format!("{prefix}:{n}")));
        let taken = locks.map(|lock| async move { lock.lock().await.unwrap() });
        guards.extend(futures_util::future::join_all(taken).await);
    }
    server.reset_stats().await;
    let (started, wall) = (Instant::now(), SystemTime::now());
    let (mut looked, mut slowest) = (started, Duration::ZERO);
    while started.elapsed() < MINUTE {
        tokio::time::sleep(Duration::from_millis(200)).await;
        slowest = slowest.max(looked.elapsed());
        looked = Instant::now();
        let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).collect();
        if let Some(first) = lost.first() {
            // If the machine stalled, 200 ms took longer too. The server's clock is the wall clock.
            panic!(
                "{} lost after {:?} ({:?} by the wall clock), the first because {:?}; 200 ms took up to {slowest:?}",
                lost.len(),
                started.elapsed(),
                wall.elapsed(),
                first.lost().await,
            );
        }
    }
    // Every hold was due about twelve times, in batches of about a hundred.
    let scripts = server.commandstats().await["evalsha"];
    assert!((800..4_000).contains(&scripts), "{scripts} renewal scripts");
    assert_eq!(client.stats().holds, HOLDS);
    drop(guards);
    // One release per hold, which takes a while beside other tests.
    let idle = async || client.stats().is_idle();
    eventually(MINUTE, "all are released", idle).await;
    nothing_left(&server).await;
}
