//! Tests which owner has a hold after a hand-off.

use super::*;
use crate::Owner;
use crate::api::options::LeasePolicy;
use crate::engine::counts::Mode;

use crate::engine::hold::reenter::{LeaseSource, Reentry};

#[tokio::test(start_paused = true)]
async fn the_tasks_of_the_next_owner_enter_and_those_of_the_last_do_not() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let (last, next) = (Owner::new(), Owner::new());
    let lock = |owner: &Owner| client.lock("x").owner(owner);
    let guard = lock(&last).lock().await.unwrap();
    let first = waiter(lock(&next)).await;
    let stranger = waiter(client.lock("x")).await;
    let second = waiter(lock(&next)).await;
    drop(guard);
    let first = got(first).await;
    assert_eq!(*first.owner(), next);
    // The second task enters although it waits behind a task of another owner.
    let second = got(second).await;
    assert_eq!(second.hold_count(), 2);
    let third = lock(&next).try_lock().await.unwrap().expect("its own");
    assert_eq!(third.hold_count(), 3);
    let late = waiter(lock(&last)).await;
    let taken = takes(&server);
    assert!(taken.iter().all(|sent| holder(sent) == holder(&taken[0])));
    first.release().await.unwrap();
    third.release().await.unwrap();
    others().await;
    assert!(!stranger.is_finished());
    second.release().await.unwrap();
    let stranger = got(stranger).await;
    assert!(*stranger.owner() != last && *stranger.owner() != next);
    assert!(!late.is_finished());
    drop(stranger);
    let late = got(late).await;
    assert_eq!(*late.owner(), last);
    drop(late);
    nothing_is_left(&client).await;
}

/// A task has found its owner's hold, and the hold is handed off before the task enters it.
#[tokio::test(start_paused = true)]
async fn an_owner_does_not_enter_what_was_handed_off_to_another() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let owner = Owner::new();
    let guard = client.lock("x").owner(&owner).lock().await.unwrap();
    let key: Arc<str> = "x".into();
    let local = client.core().locals.get_or_insert("reentrant", &key, &key);
    let next = waiter(client.lock("x")).await;
    let hold = local
        .hold_of(&owner, client.core().clock.now())
        .expect("its own");
    drop(guard);
    let next = got(next).await;
    let reentry = Reentry {
        owner: owner.clone(),
        mode: Mode::Exclusive,
        entry: LeaseSource::Asked(LeasePolicy::Renewed(LEASE)),
        fenced: false,
        operation: "lock",
    };
    let entrance = hold.entrance(reentry, None).await.unwrap();
    assert!(entrance.is_none(), "another owner has it");
    assert_eq!(next.hold_count(), 1);
    assert_eq!(takes(&server).len(), 1);
    drop(next);
    drop((hold, local));
    nothing_is_left(&client).await;
}

/// A task enters a hold that was handed off to another task of its owner, before that task has run.
#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_owner_in_a_row() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let owner = Owner::new();
    let lock = client.lock("x").lease(LEASE).owner(&owner);
    let guard = client.lock("x").lease(LEASE);
    let guard = guard.lock().await.unwrap();
    let mut first = Box::pin(lock.lock());
    let mut second = Box::pin(lock.lock());
    assert!(poll(&mut first).await.is_pending());
    assert!(poll(&mut second).await.is_pending());
    drop(guard);
    let second_has_it = match poll(&mut second).await {
        Poll::Ready(guard) => Some(guard.unwrap()),
        Poll::Pending => None,
    };
    assert!(second_has_it.is_some());
    let first = first.await.unwrap();
    assert_eq!(first.hold_count(), 2);
    drop(first);
    others().await;
    let second = second_has_it.unwrap();
    assert_eq!(second.hold_count(), 1);
    drop(second);
    nothing_is_left(&client).await;
}

/// An operation of the last owner is under way, so the release goes behind it.
#[tokio::test(start_paused = true)]
async fn a_re_entry_under_way_keeps_it_from_being_handed_off() {
    let server = generous(|_, what| match what {
        What::Renew => Some(Answer::Late(MS * 50, Value::Array(vec![Value::Int(1)]))),
        _ => None,
    });
    let client = Client::over(&server, LEASE);
    let owner = Owner::new();
    let lock = client.lock("x").owner(&owner);
    let guard = lock.lock().await.unwrap();
    // Another lease needs a renewal.
    let again = waiter(lock.clone().lease(LEASE * 2)).await;
    let next = waiter(client.lock("x")).await;
    drop(guard);
    others().await;
    assert!(!next.is_finished() && !again.is_finished());
    tokio::time::sleep(MS * 60).await;
    let next = got(next).await;
    assert!(!again.is_finished(), "it was too late, and waits behind");
    assert_eq!(next.hold_count(), 1);
    drop(next);
    let again = got(again).await;
    assert_eq!(*again.owner(), owner);
    drop(again);
    nothing_is_left(&client).await;
}
