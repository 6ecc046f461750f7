//! From nothing to the first grant: round trips and bytes of a cold client.
//!
//! Round trips by time: a proxy delays replies by much more than all else takes. The TCP handshake, which it does not
//! delay, is one more for each connection.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Proxy, Server, unique_name};

use crate::support::command;

/// Long beside the time of the commands.
const FAR: Duration = Duration::from_millis(300);

/// The numbers of bytes that the server has received and sent.
async fn bytes(server: &Server) -> [u64; 2] {
    let stats = command(server, &["INFO", "stats"]).await;
    let stats: String = redis::from_redis_value(stats).unwrap();
    ["total_net_input_bytes:", "total_net_output_bytes:"].map(|field| {
        let line = stats.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap().trim().parse().unwrap()
    })
}

/// Connects, takes a free lock, and returns the round trips until each of the two was done.
async fn cold(server: &Server, what: &str) -> [u64; 2] {
    let proxy = Proxy::start(server.addr()).await;
    proxy.delay_replies(FAR);
    let before = bytes(server).await;
    let asking = bytes(server).await;
    let started = Instant::now();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let connected = started.elapsed();
    let guard = client.lock(unique_name("first")).lock().await.unwrap();
    let granted = started.elapsed();
    let after = bytes(server).await;
    // Without what asking takes.
    let [sent, received] = [0, 1].map(|way| after[way] + before[way] - 2 * asking[way]);
    let trips = [connected, granted].map(|time| (time.as_millis() / FAR.as_millis()) as u64);
    let connections = proxy.asked_for();
    println!(
        "{what}: {} round trips to connect, {} to the first grant, {connections} connections; \
         {sent} bytes sent, {received} received",
        trips[0], trips[1]
    );
    guard.release().await.unwrap();
    client.shutdown().await.unwrap();
    trips
}

/// The least of some runs, up to one that is as expected: a delay may look like a round trip, and hides none.
async fn least(expected: [u64; 2], mut run: impl AsyncFnMut() -> [u64; 2]) -> [u64; 2] {
    let mut least = [u64::MAX; 2];
    for _ in 0..5 {
        let trips = run().await;
        least = [0, 1].map(|at| least[at].min(trips[at]));
        if least == expected {
            break;
        }
    }
    least
}

#[tokio::test]
async fn the_first_grant_takes_few_round_trips() {
    const FEW: [u64; 2] = [2, 3];
    let server = Server::start();
    let strange = least(FEW, async || {
        command(&server, &["SCRIPT", "FLUSH"]).await;
        cold(&server, "a server that knows no scripts").await
    });
    let strange = strange.await;
    let known = least(FEW, async || {
        cold(&server, "a server that knows the scripts").await
    });
    assert_eq!((strange, known.await), (FEW, FEW));
}
