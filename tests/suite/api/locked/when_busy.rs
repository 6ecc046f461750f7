//! The result of a function whose lock is held.

use std::time::{Duration, Instant};

use lockset::{Client, locked};
use lockset_testkit::{Server, within};

use super::{Failed, LONG, is_held, start};
use crate::support::{SOON, client, nothing_left, patient_client, took_less, waiting};

#[locked("x", try)]
async fn or_error(locks: &Client) -> Result<u32, Failed> {
    assert!(is_held(locks, "x").await);
    Ok(1)
}

#[locked("x", busy = skip)]
async fn or_skip(_locks: &Client) -> Result<Option<u32>, Failed> {
    Ok(Some(1))
}

#[locked("x", try, busy = Failed::Work("busy"))]
async fn or_own_error(_locks: &Client) -> Result<u32, Failed> {
    Ok(1)
}

#[locked("x", try, busy = Ok(instead + 1))]
async fn or_value(_locks: &Client, instead: u32) -> Result<u32, Failed> {
    Ok(1)
}

#[locked("x", try, busy = Err("busy".into()))]
async fn or_boxed(_locks: &Client) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
    Ok(1)
}

#[locked("x", try, busy = whole(instead))]
async fn or_computed(_locks: &Client, instead: u32) -> Result<u32, Failed> {
    Ok(1)
}

fn whole(instead: u32) -> Result<u32, Failed> {
    Ok(instead)
}

#[locked("x", try, busy = |busy| Told(busy.lock, busy.holder))]
async fn or_told(_locks: &Client) -> Result<u32, Told> {
    Ok(1)
}

#[derive(Debug)]
struct Told(String, Option<String>);

impl From<lockset::Error> for Told {
    fn from(error: lockset::Error) -> Self {
        panic!("{error}");
    }
}

#[tokio::test]
async fn an_error_none_or_a_custom_value() {
    let server = Server::start();
    // Who has it is asked within the time of one reply.
    let client = patient_client(&server.url()).await;
    let other = crate::support::client(&server.url()).await;
    let held = other.lock("x").lock().await.unwrap();

    let error = or_error(&client).await.unwrap_err().lock();
    assert!(error.is_busy(), "{error:?}");
    assert_eq!(error.lock_name(), Some("x"));
    let busy = error.busy().expect("who has it");
    assert_eq!(busy.holder.as_deref(), Some(held.holder_id()));
    assert!(busy.remaining.is_some());

    assert_eq!(or_skip(&client).await.unwrap(), None);
    assert!(matches!(
        or_own_error(&client).await,
        Err(Failed::Work("busy"))
    ));
    assert_eq!(or_value(&client, 6).await.unwrap(), 7);
    assert_eq!(or_boxed(&client).await.unwrap_err().to_string(), "busy");
    assert_eq!(or_computed(&client, 6).await.unwrap(), 6);
    let Told(lock, holder) = or_told(&client).await.unwrap_err();
    assert_eq!(
        (lock.as_str(), holder.as_deref()),
        ("x", Some(held.holder_id()))
    );

    held.release().await.unwrap();
    assert_eq!(or_error(&client).await.unwrap(), 1);
    assert_eq!(or_skip(&client).await.unwrap(), Some(1));
    assert_eq!(or_own_error(&client).await.unwrap(), 1);
    assert_eq!(or_value(&client, 6).await.unwrap(), 1);
    assert_eq!(or_boxed(&client).await.unwrap(), 1);
    assert_eq!(or_computed(&client, 6).await.unwrap(), 1);
    assert_eq!(or_told(&client).await.unwrap(), 1);
    nothing_left(&server).await;
}

#[locked("x", wait = "200ms")]
async fn for_a_while(_locks: &Client) -> Result<u32, Failed> {
    Ok(1)
}

#[locked("x")]
async fn for_ever(_locks: &Client) -> Result<u32, Failed> {
    Ok(1)
}

#[tokio::test]
async fn the_wait_takes_as_long_as_configured() {
    let (server, client) = start().await;
    let other = crate::support::client(&server.url()).await;
    let held = other.lock("x").lock().await.unwrap();

    let asked = Instant::now();
    let error = for_a_while(&client).await.unwrap_err().lock();
    assert!(error.is_busy(), "{error:?}");
    assert!(asked.elapsed() >= Duration::from_millis(200));
    took_less(asked, SOON / 2);

    let waits = lockset_testkit::spawn({
        let client = client.clone();
        async move { for_ever(&client).await }
    });
    waiting(&client, 1).await;
    held.release().await.unwrap();
    assert_eq!(within(SOON, waits).await.unwrap().unwrap(), 1);
    nothing_left(&server).await;
}

/// An unresponsive server is an error, not a held lock.
#[tokio::test]
async fn a_server_that_is_gone_is_an_error_and_never_skipped() {
    let (server, _) = start().await;
    let client = client(&server.url()).await;
    drop(server);
    let error = within(LONG, or_skip(&client)).await.unwrap_err().lock();
    assert!(error.is_io(), "{error:?}");
    let error = within(LONG, or_value(&client, 6)).await.unwrap_err().lock();
    assert!(error.is_io(), "{error:?}");
}
