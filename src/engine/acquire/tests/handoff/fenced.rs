//! Tests tokens that the server has set aside: they grow from task to task, and stay below its next token.

use super::*;
use crate::{FencingToken, Owner};

fn token(guard: &ReentrantGuard) -> Option<u64> {
    guard.fencing_token().map(FencingToken::get)
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_from_task_to_task() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let fenced = client.lock("x").fenced();
    let first = fenced.lock().await.unwrap();
    let mut tasks = Vec::new();
    for nth in 0..60 {
        let lock = match nth % 5 {
            3 => client.lock("x"),
            _ => fenced.clone(),
        };
        tasks.push(waiter(lock).await);
    }
    let mut last = token(&first);
    assert_eq!(last, Some(100));
    drop(first);
    for (nth, task) in tasks.into_iter().enumerate() {
        let guard = got(task).await;
        let own = token(&guard);
        if nth % 5 == 3 {
            assert_eq!(own, None, "it did not ask for one");
        } else {
            assert!(own > last, "{own:?} after {last:?}");
            last = own;
        }
        drop(guard);
        others().await;
    }
    nothing_is_left(&client).await;
    let asked = takes(&server).len();
    assert!(asked < 8, "in memory otherwise: {asked}");
    // The server's next token is larger than all tokens that it set aside.
    let guard = fenced.lock().await.unwrap();
    assert!(token(&guard) > last);
    drop(guard);
    let asked = takes(&server);
    let asked: Vec<_> = asked.iter().map(|sent| &*args(sent)[2]).collect();
    assert_eq!(asked.first(), Some(&"1"), "nobody waited");
    assert_eq!(asked.last(), Some(&"1"));
    assert!(asked.contains(&"17"), "{asked:?}");
    nothing_is_left(&client).await;
}

/// A re-entry gets a later token from the server than the tokens set aside. After that these tokens are not used.
#[tokio::test(start_paused = true)]
async fn tokens_set_aside_are_not_used_after_a_later_one() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let owner = Owner::new();
    let (plain, fenced) = (client.lock("x"), client.lock("x").fenced());
    let held = plain.lock().await.unwrap();
    let first = waiter(fenced.clone()).await;
    let second = waiter(plain.clone().owner(&owner)).await;
    let third = waiter(fenced.clone()).await;
    // The plain hold has no tokens, so the next task asks the server for several.
    drop(held);
    let guard = got(first).await;
    let first = token(&guard);
    drop(guard);
    let outer = got(second).await;
    assert_eq!(token(&outer), None);
    assert_eq!(takes(&server).len(), 2, "it was handed off");
    let inner = fenced.clone().owner(&owner).lock().await.unwrap();
    let second = token(&inner);
    assert!(second > first);
    assert_eq!(token(&outer), second, "a hold has one");
    let again = inner.reenter().await.unwrap();
    assert_eq!(token(&again), second);
    again.release().await.unwrap();
    inner.release().await.unwrap();
    drop(outer);
    let guard = got(third).await;
    assert!(token(&guard) > second, "{:?}", token(&guard));
    drop(guard);
    nothing_is_left(&client).await;
}

/// Not even a token of a waiter that did not take its hand-off.
#[tokio::test(start_paused = true)]
async fn no_token_is_given_twice() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let fenced = client.lock("x").fenced();
    let held = client.lock("x").lock().await.unwrap();
    let first = waiter(fenced.clone()).await;
    let mut dropped = Vec::new();
    for _ in 0..3 {
        let lock = fenced.clone();
        dropped.push(Box::pin(async move { lock.lock().await }));
        let wait = dropped.last_mut().unwrap();
        assert!(poll(wait).await.is_pending());
    }
    let last = waiter(fenced.clone()).await;
    drop(held);
    let guard = got(first).await;
    let first = token(&guard).unwrap();
    drop(guard);
    drop(dropped);
    let guard = got(last).await;
    assert_eq!(token(&guard), Some(first + 4));
    drop(guard);
    nothing_is_left(&client).await;
}
