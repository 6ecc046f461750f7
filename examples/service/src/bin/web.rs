//! A web service with a form that must not be handled twice at a time, and a shutdown that leaves
//! no lock behind.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 DATABASE_URL=sqlite:orders.db cargo run --bin web
//! ```

use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use lockset::Client;
use sqlx::SqlitePool;
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error>;

async fn ship(State((client, db)): State<(Client, SqlitePool)>, Path(id): Path<i64>) -> Response {
    match shipped(&client, &db, id).await {
        Ok(Some(true)) => "shipped".into_response(),
        Ok(Some(false)) => (StatusCode::CONFLICT, "not to be shipped").into_response(),
        Ok(None) => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// Returns `None` if another request, in any process, is handling this order.
async fn shipped(client: &Client, db: &SqlitePool, id: i64) -> Result<Option<bool>, Error> {
    let Some(guard) = client.lock(format!("order:{id}")).try_lock().await? else {
        return Ok(None);
    };
    let update =
        sqlx::query("UPDATE orders SET shipped = shipped + 1 WHERE id = ? AND shipped = 0");
    let changed = guard
        .run(update.bind(id).execute(db))
        .await??
        .rows_affected();
    guard.release().await?;
    Ok(Some(changed == 1))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::builder(&std::env::var("REDIS_URL")?)
        .key_prefix("shop:")
        .build()
        .await?;
    let db = SqlitePool::connect(&std::env::var("DATABASE_URL")?).await?;
    let app = Router::new()
        .route("/orders/{id}/ship", post(ship))
        .with_state((client.clone(), db));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let end = async move { _ = terminate.recv().await };
    axum::serve(listener, app)
        .with_graceful_shutdown(end)
        .await?; // requests under way are finished
    Ok(client.shutdown().await?) // and then what their dropped guards left to do
}
