//! A program that needs no server: with `REDIS_URL` it connects, without it has a simulated server, in real time.
//!
//! ```sh
//! cargo run -p lockset-sim --example laptop
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p lockset-sim --example laptop
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockset::{Client, Result};

async fn locks() -> Result<Client> {
    match std::env::var("REDIS_URL") {
        Ok(url) => Client::connect(&url).await,
        Err(_) => Ok(lockset_sim::Server::in_real_time().client().await),
    }
}

/// Counts under one lock, in eight tasks.
async fn count(client: &Client) -> Result<u32> {
    let counter = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| tokio::spawn(add_hundred(client.clone(), Arc::clone(&counter))))
        .collect();
    for task in tasks {
        task.await.expect("no task panics")?;
    }
    Ok(counter.load(Ordering::Relaxed))
}

/// Reads, lets others run, and writes: without the lock, counts are lost.
async fn add_hundred(client: Client, counter: Arc<AtomicU32>) -> Result<()> {
    for _ in 0..100 {
        let guard = client.lock("count").lock().await?;
        let seen = counter.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        counter.store(seen + 1, Ordering::Relaxed);
        guard.release().await?;
    }
    Ok(())
}

/// How long the lock of a holder that ended without a release stays taken.
async fn abandoned(client: &Client, lease: Duration) -> Result<Duration> {
    let lock = client.lock("abandoned").fixed_lease(lease);
    let began = Instant::now();
    lock.lock().await?.forget();
    lock.lock().await?.release().await?;
    Ok(began.elapsed())
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = locks().await?;
    let began = Instant::now();
    println!(
        "counted to {} in {:?}",
        count(&client).await?,
        began.elapsed()
    );
    let free_after = abandoned(&client, Duration::from_secs(1)).await?;
    println!("an abandoned lock was free after {free_after:?}");
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    const LEASE: Duration = Duration::from_millis(300);

    /// Time is real, and tasks run on several threads.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_simulated_server_works_in_real_time() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let server = lockset_sim::Server::in_real_time();
        let client = server.client().await;
        let fenced = client.lock("fenced").fenced().lock().await.unwrap();
        // Tokens of the next run are larger: they are the time in µs.
        let token = Duration::from_micros(fenced.token().unwrap().get());
        assert!(token.abs_diff(now) < Duration::from_secs(60), "{token:?}");
        fenced.release().await.unwrap();
        assert_eq!(count(&client).await.unwrap(), 800);

        let free_after = abandoned(&client, LEASE).await.unwrap();
        assert!(free_after >= LEASE, "{free_after:?}");

        // A lease that is renewed outlives its length.
        let settings = |builder: lockset::ClientBuilder| builder.lease(LEASE);
        let short = server.client_with(settings).await.unwrap();
        let guard = short.lock("renewed").lock().await.unwrap();
        tokio::time::sleep(4 * LEASE).await;
        assert!(!guard.is_lost());
        assert!(client.lock("renewed").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}
