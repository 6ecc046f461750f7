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
    match once.run(save(&form)).await {
        Ok(OnceRun::Ran(receipt)) => receipt.into_response(),
        Ok(OnceRun::Duplicate { remaining, .. }) => {
            let seconds = remaining.as_millis().div_ceil(1000).to_string();
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)]).into_response()
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// The work that must not be done twice. If it fails, the form may be sent again at once.
async fn save(form: &str) -> Result<String, lockset::Error> {
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
