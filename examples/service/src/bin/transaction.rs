//! A lock around a database transaction: commit first, then release.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --bin transaction
//! ```

use lockset::Client;
use sqlx::{Connection, SqliteConnection, query, raw_sql};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Takes one seat of an event, if one is left.
async fn reserve(client: &Client, db: &mut SqliteConnection, event: i64) -> Result<bool> {
    // The lock comes before the transaction, so the transaction sees what the last holder
    // committed.
    let guard = client.lock(format!("hall:event:{event}")).lock().await?;
    // If the lock is lost, `run` drops the transaction, which rolls it back.
    let reserved = guard.run(async {
        let mut tx = db.begin().await?;
        let take = query("UPDATE event SET seats = seats - 1 WHERE id = ? AND seats > 0");
        let taken = take.bind(event).execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok::<_, sqlx::Error>(taken == 1)
    });
    let reserved = reserved.await??;
    // After the commit: the next holder reads what was written. An error of the release does not
    // undo the reservation, and the release goes on in the background.
    _ = guard.release().await;
    Ok(reserved)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let client = Client::connect(&url).await?;
    let mut db = SqliteConnection::connect("sqlite::memory:").await?;
    let schema = "CREATE TABLE event (id, seats); INSERT INTO event VALUES (1, 2)";
    raw_sql(schema).execute(&mut db).await?;
    for seat_left in [true, true, false] {
        assert_eq!(reserve(&client, &mut db, 1).await?, seat_left);
    }
    Ok(client.shutdown().await?)
}
