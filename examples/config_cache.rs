//! A configuration that many tasks read and one task reloads, under a read-write lock.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example config_cache
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::future::try_join_all;
use lockset::{Client, Result};

/// Two values that belong together: without the lock, a read during a reload would mix old and new.
type Config = (AtomicU64, AtomicU64);

async fn read(client: &Client, config: &Config) -> Result<()> {
    let guard = client.rw_lock("shop:config").read().await?;
    let first = config.0.load(Relaxed);
    assert_eq!(first, config.1.load(Relaxed), "a torn read");
    guard.release().await
}

async fn reload(client: &Client, config: &Config) -> Result<()> {
    let writing = client.rw_lock("shop:config").write().await?;
    config.0.fetch_add(1, Relaxed);
    tokio::task::yield_now().await; // without the lock, readers would get in between
    config.1.fetch_add(1, Relaxed);
    let reading = writing.downgrade().await?; // others may read now; nobody wrote in between
    println!("reloaded: version {}", config.0.load(Relaxed));
    reading.release().await
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::connect(&url).await?;
    let config = Config::default();
    let readers = try_join_all((0..50).map(|_| read(&client, &config)));
    tokio::try_join!(readers, reload(&client, &config))?;
    Ok(())
}
