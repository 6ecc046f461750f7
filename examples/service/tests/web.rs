//! The web service over HTTP, in two processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use futures_util::future::join_all;
use lockset_testkit::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Web {
    process: Child,
    address: String,
}

impl Web {
    fn start(redis: &str, database: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_web"))
            .env("REDIS_URL", redis)
            .env("DATABASE_URL", database)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        Self {
            process,
            address: address.trim().to_owned(),
        }
    }

    /// The status of a post, and its Retry-After.
    async fn post(&self, path: &str) -> (u16, bool) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        (status, reply.to_lowercase().contains("retry-after: 1"))
    }

    fn end(mut self) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        assert!(self.process.wait().unwrap().success(), "it ends in order");
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[tokio::test]
async fn of_forty_posts_to_two_processes_one_ships_the_order_and_nothing_stays_locked() {
    let redis = Server::start();
    let file = std::env::temp_dir().join(lockset_testkit::unique_name("lockset-web"));
    let database = format!("sqlite:{}?mode=rwc", file.display());
    let db = sqlx::SqlitePool::connect(&database).await.unwrap();
    let schema = "CREATE TABLE orders (id INTEGER PRIMARY KEY, shipped INTEGER);
                  INSERT INTO orders VALUES (7, 0);";
    sqlx::raw_sql(schema).execute(&db).await.unwrap();

    let web = [
        Web::start(&redis.url(), &database),
        Web::start(&redis.url(), &database),
    ];
    let posts = (0..40).map(|i| web[i % 2].post("/orders/7/ship"));
    let replies = join_all(posts).await;

    let count = |status| replies.iter().filter(|reply| reply.0 == status).count();
    assert_eq!(count(200), 1, "{replies:?}");
    assert_eq!(count(409) + count(429), 39, "{replies:?}");
    assert!(
        replies
            .iter()
            .all(|&(status, retry)| (status == 429) == retry),
        "{replies:?}"
    );
    let shipped: i64 = sqlx::query_scalar("SELECT shipped FROM orders")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!(shipped, 1);

    for process in web {
        process.end();
    }
    assert_eq!(redis.keys().await, Vec::<String>::new());
    db.close().await;
    std::fs::remove_file(file).unwrap();
}
