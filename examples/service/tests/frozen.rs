//! A holder frozen between its fence and its commit, and the next holder of the lock, with
//! PostgreSQL.

mod support;

use std::time::Duration;

use lockset_testkit::{Server, eventually, within};
use sqlx::AnyPool;

use support::shop::{Database, SOON};

const LEASE: Duration = Duration::from_secs(3);
/// A lease for the lock, a third of one for the row, and the rest for a busy machine.
const BOUND: Duration = LEASE.saturating_mul(4);

/// The number of the service's sessions in a state whose statement begins with `statement`.
async fn sessions(db: &AnyPool, state: &str, statement: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $2 || '%' AND \
                 CASE WHEN wait_event_type = 'Lock' THEN 'waits' ELSE state END = $1";
    let count = sqlx::query_scalar(count).bind(state).bind(statement);
    count.fetch_one(db).await.unwrap()
}

async fn reached(db: &AnyPool, state: &str, statement: &str) {
    eventually(SOON, state, async || {
        sessions(db, state, statement).await == 1
    })
    .await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: `make examples` runs it"]
async fn the_next_holder_proceeds_though_the_last_one_is_frozen_before_its_commit() {
    const INSERT: &str = "INSERT INTO seat";
    let redis = Server::start();
    let database = Database::postgres().await;
    let lease = LEASE.as_millis().to_string();
    let settings = [("LEASE_MS", &*lease)];
    let [frozen, next] = [(); 2].map(|()| database.service(&redis, &settings));

    // The table is locked, so the first holder has admitted its token and waits to write.
    let mut table = database.pool.begin().await.unwrap();
    let lock = "LOCK TABLE seat IN SHARE MODE";
    sqlx::query(lock).execute(&mut *table).await.unwrap();
    let freeze = async {
        reached(&database.pool, "waits", INSERT).await;
        frozen.signal("STOP");
        eventually(SOON, "it stands still", async || frozen.is_stopped()).await;
        table.rollback().await.unwrap();
        // It has written, holds the row of the fence, and will not commit.
        reached(&database.pool, "idle in transaction", INSERT).await;
        let reply = within(BOUND, next.post("/shows/1/seats")).await;
        frozen.signal("CONT");
        reply
    };
    let late = frozen.post("/shows/1/seats");
    let (late, reply) = within(SOON, async { tokio::join!(late, freeze) }).await;

    assert_eq!((reply.status, reply.body.as_str()), (200, "90"));
    assert!([500, 503].contains(&late.status), "{}", late.body);
    let sold = database.sold().await;
    assert_eq!(sold.len(), 1, "{sold:?}");
    let fence = sqlx::query_as("SELECT name, token FROM fence");
    let fence: Vec<(String, i64)> = fence.fetch_all(&database.pool).await.unwrap();
    assert_eq!(fence, [("show:1".to_owned(), sold[0].1)]);
    frozen.end();
    next.end();
}
