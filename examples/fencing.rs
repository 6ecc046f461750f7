//! A database that refuses the late write of a holder that lost its lock without noticing.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example fencing
//! ```

use lockset::{Client, FencingToken, fence};
use rusqlite::{Connection, TransactionBehavior, params};

const SCHEMA: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT);
                      INSERT INTO orders VALUES (7, 'paid');";

/// Returns `false` if the write was refused because a later holder of the lock has written.
fn set_state(db: &mut Connection, state: &str, token: FencingToken) -> rusqlite::Result<bool> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let admitted = tx.execute(fence::sqlite::ADMIT, params!["order:7", token.as_i64()])?;
    if admitted == 0 {
        return Ok(false); // the transaction is dropped, and rolled back
    }
    tx.execute("UPDATE orders SET state = ?1 WHERE id = 7", [state])?;
    tx.commit()?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::builder(&url).key_prefix("shop:").build().await?;
    let mut db = Connection::open_in_memory()?;
    db.execute_batch(SCHEMA)?;
    db.execute(fence::sqlite::TABLE, [])?;
    let lock = client.lock("order:7").fenced();

    let slow = lock.lock().await?;
    let old = slow.token()?;
    lock.force_unlock().await?; // an operator frees it while the holder is paused
    let next = lock.lock().await?;
    let new = next.token()?;

    assert!(new > old);
    assert!(set_state(&mut db, "shipped", new)?);
    assert!(!set_state(&mut db, "cancelled", old)?, "the late write");
    println!("token {new} wrote, token {old} was refused");
    Ok(next.release().await?)
}
