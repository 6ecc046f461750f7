//! A job that every instance starts at the same time of day and one instance runs.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example job
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockset::{Client, Result};

/// Returns whether this instance ran the job. The lock stays held for a minute even if the job ends
/// sooner, so that an instance with a late clock does not run it again.
async fn report(client: &Client, scheduled: u64) -> Result<bool> {
    let lock = client.lock(format!("job:report:{scheduled}"));
    let Some(guard) = lock.fixed_lease(Duration::from_secs(60)).try_lock().await? else {
        return Ok(false);
    };
    if let Err(lost) = guard.run(async { println!("writing the report") }).await {
        println!("stopped: {lost}"); // the lease ended: another instance may have begun
    }
    guard.forget();
    Ok(true)
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let scheduled = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // In production, each of the three is a separate process.
    let mut ran = 0;
    for _ in 0..3 {
        let client = Client::builder(&url).key_prefix("shop:").build().await?;
        ran += u32::from(report(&client, scheduled).await?);
        client.shutdown().await?;
    }
    assert_eq!(ran, 1);
    Ok(())
}
