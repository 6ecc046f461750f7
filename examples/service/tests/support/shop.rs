//! A database with the tables of `seats.sql`, and the sold seats.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockset_testkit::{Server, unique_name};
use sqlx::AnyPool;

use super::Web;
use super::postgres::Postgres;

const SCHEMA: &str = include_str!("../../seats.sql");
pub(crate) const SOON: Duration = Duration::from_secs(60);

enum Place {
    File(PathBuf),
    Server(Postgres),
}

pub(crate) struct Database {
    pub(crate) pool: AnyPool,
    url: String,
    place: Place,
}

impl Database {
    pub(crate) async fn sqlite() -> Self {
        sqlx::any::install_default_drivers();
        let file = std::env::temp_dir().join(unique_name("lockset-seats"));
        let url = format!("sqlite:{}?mode=rwc", file.display());
        let pool = AnyPool::connect(&url).await.unwrap();
        Self::with_tables(pool, url, Place::File(file)).await
    }

    pub(crate) async fn postgres() -> Self {
        sqlx::any::install_default_drivers();
        let server = Postgres::start();
        let url = server.url();
        let started = Instant::now();
        let pool = loop {
            match AnyPool::connect(&url).await {
                Ok(pool) => break pool,
                Err(error) if started.elapsed() > SOON => panic!("{error}: {}", server.log()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        Self::with_tables(pool, url, Place::Server(server)).await
    }

    async fn with_tables(pool: AnyPool, url: String, place: Place) -> Self {
        sqlx::raw_sql(SCHEMA).execute(&pool).await.unwrap();
        Self { pool, url, place }
    }

    /// The numbers and the tokens of the seats, in the order of the grants.
    pub(crate) async fn sold(&self) -> Vec<(i64, i64)> {
        let sold = sqlx::query_as("SELECT number, token FROM seat ORDER BY token");
        sold.fetch_all(&self.pool).await.unwrap()
    }

    /// Starts a process of the service that sells from this database.
    pub(crate) fn service(&self, redis: &Server, more: &[(&str, &str)]) -> Web {
        let url = redis.url();
        let mut environment = vec![("REDIS_URL", &*url), ("DATABASE_URL", &*self.url)];
        environment.extend(more);
        Web::start(env!("CARGO_BIN_EXE_seats"), &environment)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Place::File(file) = &self.place {
            _ = std::fs::remove_file(file);
        }
    }
}
