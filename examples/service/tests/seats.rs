//! Seats sold under `#[locked]` over HTTP, by two processes.

mod support;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use lockset::Client;
use lockset_testkit::{Server, eventually, unique_name, within};
use sqlx::SqlitePool;

use support::Web;

const SEATS: usize = 90;
const PEOPLE: usize = 100;
const SOON: Duration = Duration::from_secs(60);

/// A database with one show, removed when dropped.
struct Database {
    file: PathBuf,
    url: String,
    pool: SqlitePool,
}

impl Database {
    async fn create() -> Self {
        let file = std::env::temp_dir().join(unique_name("lockset-seats"));
        let url = format!("sqlite:{}?mode=rwc", file.display());
        let pool = SqlitePool::connect(&url).await.unwrap();
        let schema = format!(
            "CREATE TABLE show (id INTEGER PRIMARY KEY, seats INTEGER, fence INTEGER DEFAULT 0);
             CREATE TABLE seat (sold INTEGER PRIMARY KEY, show INTEGER, number INTEGER, token INTEGER);
             INSERT INTO show (id, seats) VALUES (1, {SEATS});"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(schema))
            .execute(&pool)
            .await
            .unwrap();
        Self { file, url, pool }
    }

    /// The numbers and the tokens of the seats, in the order in which they were sold.
    async fn sold(&self) -> (Vec<i64>, Vec<i64>) {
        let rows: Vec<(i64, i64)> = sqlx::query_as("SELECT number, token FROM seat ORDER BY sold")
            .fetch_all(&self.pool)
            .await
            .unwrap();
        rows.into_iter().unzip()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.file);
    }
}

fn start(redis: &Server, database: &Database, more: &[(&str, &str)]) -> Web {
    let url = redis.url();
    let mut environment = vec![("REDIS_URL", &*url), ("DATABASE_URL", &*database.url)];
    environment.extend(more);
    Web::start(env!("CARGO_BIN_EXE_seats"), &environment)
}

#[tokio::test]
async fn of_a_hundred_who_ask_ninety_get_a_seat_each() {
    let redis = Server::start();
    let database = Database::create().await;
    let web = [(); 2].map(|()| start(&redis, &database, &[]));
    let posts = (0..PEOPLE).map(|i| web[i % 2].post("/shows/1/seats"));
    let replies = within(SOON, join_all(posts)).await;

    let sold = replies.iter().filter(|reply| reply.status == 200);
    let mut told: Vec<i64> = sold.map(|reply| reply.body.parse().unwrap()).collect();
    let refused = replies.iter().filter(|reply| reply.status == 410).count();
    assert_eq!((told.len(), refused), (SEATS, PEOPLE - SEATS));

    // Each saw what the one before had committed, in whichever process.
    let (numbers, tokens) = database.sold().await;
    let all: Vec<i64> = (1..=SEATS as i64).rev().collect();
    assert_eq!(numbers, all);
    assert!(
        tokens.is_sorted_by(|a, b| a < b),
        "tokens grow from sale to sale"
    );
    told.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(told, all, "everybody was told the truth");

    web.into_iter().for_each(Web::end);
    let mut left = redis.keys().await;
    let stays = ["redisson_lock_token", "lockset_client"];
    left.retain(|key| !stays.iter().any(|stays| key.starts_with(stays)));
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_request_whose_lock_is_lost_sells_nothing_and_says_so() {
    let redis = Server::start();
    let database = Database::create().await;
    let slow = [("PAYMENT_MS", "60000"), ("LEASE_MS", "900")];
    let web = start(&redis, &database, &slow);
    let client = Client::builder(&redis.url())
        .key_prefix("shop:")
        .build()
        .await
        .unwrap();
    let lock = client.lock("show:1");

    let force = async {
        eventually(SOON, "somebody pays", async || {
            lock.is_locked().await.unwrap()
        })
        .await;
        assert!(lock.force_unlock().await.unwrap());
    };
    let (reply, ()) = within(SOON, async {
        tokio::join!(web.post("/shows/1/seats"), force)
    })
    .await;
    assert_eq!(reply.status, 503, "{}", reply.body);
    assert!(reply.retry_after.is_some());
    assert!(reply.body.contains("show:1"), "{}", reply.body);
    assert_eq!(database.sold().await.0, Vec::<i64>::new());

    // Somebody else sells it.
    let other = start(&redis, &database, &[]);
    let reply = within(SOON, other.post("/shows/1/seats")).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "90"));
    web.end();
    other.end();
}
