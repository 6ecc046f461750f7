//! A web service with a form that must not be handled twice at a time, and a shutdown that leaves
//! no lock behind.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 DATABASE_URL=sqlite:orders.db cargo run --bin web
//! ```

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lockset::{Client, ErrorKind};
use sqlx::SqlitePool;
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn ship(State((client, db)): State<(Client, SqlitePool)>, Path(id): Path<i64>) -> Response {
    // In a task of its own: if the client goes away, this handler is dropped, but not the work under
    // the lock.
    let section = tokio::spawn(async move { shipped(&client, &db, id).await });
    match section.await.expect("no panic") {
        Ok(Some(true)) => "shipped".into_response(),
        Ok(Some(false)) => (StatusCode::CONFLICT, "not to be shipped").into_response(),
        Ok(None) => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
        Err(error) => refusal(&*error),
    }
}

/// The response to an error: of a lock by its kind, of the database 500.
fn refusal(error: &(dyn std::error::Error + 'static)) -> Response {
    let kind = error
        .downcast_ref::<lockset::Error>()
        .map(lockset::Error::kind);
    let (status, comes_back) = match kind {
        // Others hold the lock.
        Some(ErrorKind::Busy) => (StatusCode::TOO_MANY_REQUESTS, true),
        // The server, or enough of several, cannot be reached or cannot do it now; or this process ends.
        Some(
            ErrorKind::Io
            | ErrorKind::Refused
            | ErrorKind::Quorum
            | ErrorKind::NotReplicated
            | ErrorKind::Closed,
        ) => (StatusCode::SERVICE_UNAVAILABLE, true),
        // The work may be half done, or the same request fails again.
        _ => (StatusCode::INTERNAL_SERVER_ERROR, false),
    };
    let mut response = (status, error.to_string()).into_response();
    if comes_back {
        let second = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, second);
    }
    response
}

/// For a readiness probe, not for a liveness probe: a restart cannot bring the server back.
async fn health(State((client, _)): State<(Client, SqlitePool)>) -> Response {
    match client.ping().await {
        Ok(_) => "ok".into_response(),
        Err(error) => refusal(&error),
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
    // An error of the release does not undo the shipment. The release goes on in the background.
    _ = guard.release().await;
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
        .route("/health", get(health))
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
