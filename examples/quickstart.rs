//! Acquires a lock, works under it, and releases it.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart
//! ```

use std::time::Duration;

use lockset::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::builder(&url).key_prefix("shop:").build().await?;

    // Waits for its turn. The watchdog renews the lease until the guard is dropped.
    let guard = client.lock("order:7").lock().await?;
    println!("{} is held for {:?} more", guard.name(), guard.remaining());

    // To avoid waiting, try once or for a limited time.
    let wait = Duration::from_millis(200);
    match client.lock("order:7").try_lock_for(wait).await? {
        Some(_) => unreachable!("the lock is held"),
        None => println!("still held, as expected"),
    }

    // `run` drops the work if the lock is lost before it ends.
    guard.run(async { println!("shipping order 7") }).await?;
    guard.release().await?;

    // Waits for the background releases of dropped guards. Here there are none.
    client.shutdown().await?;
    Ok(())
}
