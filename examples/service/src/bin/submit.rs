//! A form that is handled once: sending it again within 15 s gets an answer that says when to
//! retry.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --bin submit
//! ```

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use lockset::{Client, OnceRun};

async fn submit(
    State(client): State<Client>,
    Path((user, form)): Path<(String, String)>,
) -> Response {
    let key = format!("submit:{user}:{form}");
    let once = client.once(key).per(Duration::from_secs(15));
    // In a task of its own: if the client goes away, this handler is dropped, but not the work, which
    // would free the key.
    let work = tokio::spawn(async move { once.run(save(&form)).await });
    match work.await.expect("no panic") {
        Ok(OnceRun::Ran(receipt)) => receipt.into_response(),
        Ok(OnceRun::Duplicate { remaining, .. }) => {
            let seconds = remaining.as_millis().div_ceil(1000).to_string();
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)]).into_response()
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// The work that must not be done twice. It takes `SAVE_MS`. If it fails, the form may be sent again
/// at once.
async fn save(form: &str) -> Result<String, lockset::Error> {
    println!("saves {form}");
    let takes = std::env::var("SAVE_MS").map_or(0, |millis| millis.parse().unwrap_or(0));
    tokio::time::sleep(Duration::from_millis(takes)).await;
    println!("saved {form}");
    Ok(format!("received {form}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder(&std::env::var("REDIS_URL")?)
        .key_prefix("shop:")
        .build()
        .await?;
    let app = Router::new()
        .route("/{user}/{form}", post(submit))
        .with_state(client);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
