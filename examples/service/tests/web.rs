//! The web service over HTTP, in two processes.

mod support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockset_testkit::Server;

use support::Web;

#[tokio::test]
async fn one_of_forty_posts_to_two_processes_ships_the_order() {
    let redis = Server::start();
    let file = std::env::temp_dir().join(lockset_testkit::unique_name("lockset-web"));
    let database = format!("sqlite:{}?mode=rwc", file.display());
    let db = sqlx::SqlitePool::connect(&database).await.unwrap();
    let schema = "CREATE TABLE orders (id INTEGER PRIMARY KEY, shipped INTEGER);
                  INSERT INTO orders VALUES (7, 0);";
    sqlx::raw_sql(schema).execute(&db).await.unwrap();

    let url = redis.url();
    let environment = [("REDIS_URL", &*url), ("DATABASE_URL", &database)];
    let web = [(); 2].map(|()| Web::start(env!("CARGO_BIN_EXE_web"), &environment));
    let posts = (0..40).map(|i| web[i % 2].post("/orders/7/ship"));
    let replies = join_all(posts).await;

    let with = |status| replies.iter().filter(move |reply| reply.status == status);
    let shipped_by: Vec<&str> = with(200).map(|reply| reply.body.as_str()).collect();
    assert_eq!(shipped_by, ["shipped"]);
    assert_eq!(with(409).count() + with(429).count(), 39);
    for reply in &replies {
        let again = (reply.status == 429).then_some(1);
        assert_eq!(reply.retry_after, again, "{}", reply.status);
    }
    let shipped: i64 = sqlx::query_scalar("SELECT shipped FROM orders")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!(shipped, 1);

    // A server that is away: requests end after two seconds, and so do health checks, both with a reason to come back.
    assert_eq!(web[0].get("/health").await.status, 200);
    redis.stop();
    let began = Instant::now();
    for reply in [
        web[0].get("/health").await,
        web[1].post("/orders/7/ship").await,
    ] {
        assert_eq!((reply.status, reply.retry_after), (503, Some(1)));
    }
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "twice two seconds"
    );
    redis.cont();
    assert_eq!(web[0].get("/health").await.status, 200);

    for process in web {
        process.end();
    }
    assert_eq!(redis.keys().await, Vec::<String>::new());
    db.close().await;
    std::fs::remove_file(file).unwrap();
}
