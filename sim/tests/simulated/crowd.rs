//! Many waiters of one client for a fair lock: one script keeps the places of all.

use std::time::Duration;

use lockset::Client;
use lockset_sim::Server;

const SECOND: Duration = Duration::from_secs(1);
const WAITERS: u64 = 60;

fn wait(client: &Client) -> tokio::task::JoinHandle<()> {
    let lock = client.fair_lock("desk");
    tokio::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn their_heartbeats_are_one_script() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let held = theirs.fair_lock("desk").lock().await.unwrap();
    let waiters: Vec<_> = (0..WAITERS).map(|_| wait(&ours)).collect();
    // Each asks once or twice by itself.
    server.advance(3 * SECOND).await;
    let before = server.commands();
    server.advance(30 * SECOND).await;
    let commands = server.commands() - before;
    // The heartbeats of all, a poll and a recall of the first, and the renewals of the holder.
    assert!((60..=110).contains(&commands), "{commands}");
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}
