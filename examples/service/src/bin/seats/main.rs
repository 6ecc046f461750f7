//! First come, first served, as a web service: the seats of a show, sold under `#[locked]`.
//!
//! ```sh
//! sqlite3 seats.db < seats.sql                        # or: psql "$DATABASE_URL" -f seats.sql
//! REDIS_URL=redis://127.0.0.1:6379 DATABASE_URL=sqlite:seats.db cargo run --bin seats
//! curl -X POST http://127.0.0.1:PORT/shows/1/seats    # the program prints its port
//! ```
//!
//! `PAYMENT_MS` is how long a payment takes, `LEASE_MS` how soon a lost lock is noticed.

mod fence;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use lockset::{Client, locked};
use sqlx::AnyPool;
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error + Send + Sync>;

struct BoxOffice {
    locks: Client,
    db: AnyPool,
    lease: Duration,
    payment: Duration,
}

/// Why a seat was not sold.
enum Refusal {
    SoldOut,
    /// A later holder of the lock has written.
    TooLate,
    Lock(lockset::Error),
    Database(sqlx::Error),
}

impl From<lockset::Error> for Refusal {
    fn from(error: lockset::Error) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl BoxOffice {
    /// Checks how many seats are sold, pays, and takes the next seat. The sale relies on the number
    /// read before the payment.
    #[locked("show:{show}", client = self.locks, wait = "20s", fenced = token)]
    async fn sell(&self, show: i64) -> Result<i64, Refusal> {
        let left = "SELECT seats - (SELECT count(*) FROM seat WHERE show = show.id) FROM show WHERE id = $1";
        let left: i64 = sqlx::query_scalar(left)
            .bind(show)
            .fetch_one(&self.db)
            .await?;
        if left == 0 {
            return Err(Refusal::SoldOut);
        }
        tokio::time::sleep(self.payment).await;

        // The transaction begins and ends here, so it is committed before the lock is released. If
        // the lock is lost earlier, the transaction is either not started or rolled back on drop.
        let mut tx = self.db.begin().await?;
        fence::admit(&mut tx, &format!("show:{show}"), token, self.lease).await?;
        let insert = "INSERT INTO seat (show, number, token) VALUES ($1, $2, $3)";
        let insert = sqlx::query(insert)
            .bind(show)
            .bind(left)
            .bind(token.as_i64());
        insert.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(left)
    }
}

async fn seat(State(office): State<Arc<BoxOffice>>, Path(show): Path<i64>) -> Response {
    // In a task of its own: if the client goes away, this handler is dropped, but not the sale.
    let sale = tokio::spawn(async move { office.sell(show).await });
    match sale.await.expect("no panic") {
        Ok(number) => number.to_string().into_response(),
        Err(Refusal::SoldOut) => (StatusCode::GONE, "sold out").into_response(),
        Err(Refusal::TooLate) => (StatusCode::CONFLICT, "too late").into_response(),
        // Nothing was sold, so the request may be sent again.
        Err(Refusal::Lock(error)) if error.is_busy() => later(&error),
        Err(Refusal::Database(error)) if is_lock_timeout(&error) => later(&error),
        // If the lock was lost, the commit may have been sent: a repeat might buy another seat.
        Err(Refusal::Lock(error)) => broken(&error),
        Err(Refusal::Database(error)) => broken(&error),
    }
}

/// Whether PostgreSQL waited half a lease for a row that an earlier holder's transaction still
/// locks.
fn is_lock_timeout(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("55P03")
}

fn later(error: &dyn std::error::Error) -> Response {
    let retry = [(RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, retry, error.to_string()).into_response()
}

fn broken(error: &dyn std::error::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

/// Reads a duration in milliseconds from the environment.
fn millis(name: &str, default: u64) -> Result<Duration, Error> {
    let given = std::env::var(name).ok();
    let millis = given.map_or(Ok(default), |given| given.parse())?;
    Ok(Duration::from_millis(millis))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    sqlx::any::install_default_drivers();
    let lease = millis("LEASE_MS", 30_000)?;
    let client = Client::builder(&std::env::var("REDIS_URL")?)
        .key_prefix("shop:")
        .lease(lease)
        .build()
        .await?;
    let office = BoxOffice {
        locks: client.clone(),
        db: AnyPool::connect(&std::env::var("DATABASE_URL")?).await?,
        lease,
        payment: millis("PAYMENT_MS", 3)?,
    };
    let app = Router::new()
        .route("/shows/{id}/seats", post(seat))
        .with_state(Arc::new(office));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let end = async move { _ = terminate.recv().await };
    axum::serve(listener, app)
        .with_graceful_shutdown(end)
        .await?;
    Ok(client.shutdown().await?)
}
