//! Views of the loss of a semaphore's guard, when guards are split and merged.

use lockset::{LostReason, Semaphore};
use lockset_testkit::{Server, unique_name, within};

use crate::support::{LEASE, SOON, client, command};

async fn semaphore(server: &Server) -> Semaphore {
    let client = client(&server.url()).await;
    client
        .semaphore(unique_name("semaphore"))
        .permits(3)
        .lease(LEASE)
}

async fn revoke(server: &Server, semaphore: &Semaphore, permit: &str) {
    let timeouts = format!("{{{}}}:timeout", semaphore.name());
    command(server, &["ZREM", &timeouts, permit]).await;
}

#[tokio::test]
async fn a_view_made_before_a_merge_reports_the_loss_of_the_new_permits() {
    let server = Server::start();
    let semaphore = semaphore(&server).await;
    let mut guard = semaphore.acquire().await.unwrap();
    let loss = guard.loss();
    let waiting = lockset_testkit::spawn({
        let loss = loss.clone();
        async move { loss.wait().await }
    });
    tokio::task::yield_now().await;
    let more = semaphore.acquire().await.unwrap();
    let permit = more.holder_ids().next().unwrap().to_owned();
    guard.merge(more).unwrap();
    assert!(!loss.is_lost());
    revoke(&server, &semaphore, &permit).await;
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert_eq!(loss.reason(), Some(LostReason::Revoked));
    assert_eq!(guard.loss().reason(), Some(LostReason::Revoked));
    let told = within(SOON, waiting).await.unwrap();
    assert_eq!(told, LostReason::Revoked);
}

#[tokio::test]
async fn a_view_follows_the_permits_that_are_left_after_a_split() {
    let server = Server::start();
    let semaphore = semaphore(&server).await;
    let mut guard = semaphore.clone().many(3).acquire().await.unwrap();
    let loss = guard.loss();
    let one = guard.split(1).unwrap();
    one.release().await.unwrap();
    assert!(loss.remaining() > LEASE / 4, "{loss:?}");
    assert!(!loss.is_lost());
    let other = guard.split(1).unwrap();
    let permit = other.holder_ids().next().unwrap().to_owned();
    revoke(&server, &semaphore, &permit).await;
    within(SOON, other.lost()).await;
    assert!(!loss.is_lost() && !guard.is_lost());
    guard.release().await.unwrap();
    assert!(!loss.is_lost());
}
