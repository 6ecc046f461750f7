//! Takes a lock, works under it, gives it back.
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

    // Waits for its turn. The watchdog renews the lease until the guard is gone.
    let guard = client.lock("order:7").lock().await?;
    println!(
        "holding {} for {} ms and on",
        guard.name(),
        guard.remaining().as_millis()
    );

    // Whoever cannot wait asks once, or for a limited time.
    let wait = Duration::from_millis(200);
    match client.lock("order:7").try_lock_for(wait).await? {
        Some(_) => unreachable!("the lock is held"),
        None => println!("somebody else has it, as expected"),
    }

    // The work is dropped if the lock is lost before it ends.
    guard.run(async { println!("shipping order 7") }).await?;
    guard.release().await?;

    // A dropped guard is released in the background: this waits until that is done.
    client.shutdown().await?;
    Ok(())
}
