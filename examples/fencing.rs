//! A database that refuses the late write of a holder that lost its lock and does not know it.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example fencing
//! ```

use lockset::{Client, FencingToken};
use rusqlite::{Connection, params};

const SCHEMA: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT, fence INTEGER);
                      INSERT INTO orders VALUES (7, 'paid', 0);";

/// False if the write was refused: somebody was granted the lock after the holder of `token`.
fn set_state(db: &Connection, state: &str, token: FencingToken) -> rusqlite::Result<bool> {
    let fence = i64::try_from(token).expect("tokens are below 2^53");
    let update = "UPDATE orders SET state = ?1, fence = ?2 WHERE id = 7 AND fence <= ?2";
    Ok(db.execute(update, params![state, fence])? == 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::builder(&url).key_prefix("shop:").build().await?;
    let db = Connection::open_in_memory()?;
    db.execute_batch(SCHEMA)?;
    let lock = client.lock("order:7").fenced();

    let slow = lock.lock().await?;
    let old = slow.fencing_token().expect("the lock is fenced");
    lock.force_unlock().await?; // an operator frees it while the holder is paused
    let next = lock.lock().await?;
    let new = next.fencing_token().expect("the lock is fenced");

    assert!(new > old);
    assert!(set_state(&db, "shipped", new)?);
    assert!(!set_state(&db, "cancelled", old)?, "the late write");
    println!("token {new} wrote, token {old} was refused");
    Ok(next.release().await?)
}
