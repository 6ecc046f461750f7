//! Transfers between accounts with one lock each: both locks, or neither.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example transfer
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use lockset::{Client, MultiLock, Result};

type Accounts = Arc<[AtomicI64; 3]>;

/// The order does not matter, because a multi-lock never holds one member while it waits for
/// another.
async fn transfer(client: Client, accounts: Accounts, from: usize, to: usize) -> Result<()> {
    let both = MultiLock::new([from, to].map(|id| client.lock(format!("account:{id}"))))?;
    let guard = both.lock().await?; // one round trip, all or none
    let balance = accounts[from].load(Relaxed);
    tokio::task::yield_now().await; // without the locks, others would get in between
    accounts[from].store(balance - 1, Relaxed);
    accounts[to].store(accounts[to].load(Relaxed) + 1, Relaxed);
    guard.release().await
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::builder(&url).key_prefix("bank:").build().await?;
    let accounts: Accounts = Arc::new([const { AtomicI64::new(100) }; 3]);

    let transfers = (0..90).map(|i| (i % 3, (i + 1 + i / 3 % 2) % 3));
    let tasks = transfers.map(|(from, to)| transfer(client.clone(), accounts.clone(), from, to));
    for task in tasks.map(tokio::spawn).collect::<Vec<_>>() {
        task.await??;
    }
    let total: i64 = accounts.iter().map(|account| account.load(Relaxed)).sum();
    assert_eq!(total, 300);
    println!("90 transfers, nothing lost: {accounts:?}");
    Ok(())
}
