//! Tests readers of one client that share one hold: which readers join, what they share, and which one releases it.

use std::task::Poll;

use futures_util::FutureExt;
use redis::Value;

use super::rw::{
    What, asked, got, holds_are_gone, is_for_token, nothing_is_left, others, reader,
    reads_are_slow, scene, scene_where, writer,
};
use super::{LEASE, MS};
use crate::client::Client;
use crate::rwlock::ReadGuard;
use crate::testing::{Answer, Scripted, done, elsewhere};
use crate::{LostReason, Owner};

#[tokio::test(start_paused = true)]
async fn who_comes_while_it_is_held_joins_and_the_last_gives_it_back() {
    let (server, client, lock) = scene();
    let first = lock.read().await.unwrap();
    let second = lock.read_side().lock().await.unwrap();
    let third = lock.try_read().await.unwrap().expect("joins");
    let fourth = lock.try_read_for(MS).await.unwrap().expect("joins");
    assert_eq!(asked(&server), [What::Read]);
    let all = [first, second, third, fourth];
    assert!(all.iter().all(|guard| guard.hold_count() == 1));
    assert!(
        all.iter()
            .all(|guard| guard.holder_id() == all[0].holder_id())
    );
    let owners: std::collections::HashSet<_> = all.iter().map(ReadGuard::owner).collect();
    assert_eq!(owners.len(), 4);
    let [first, second, third, fourth] = all;
    first.release().await.unwrap();
    drop(second);
    third.release().await.unwrap();
    others().await;
    assert_eq!(asked(&server), [What::Read]);
    assert!(!fourth.is_lost());
    fourth.release().await.unwrap();
    assert_eq!(asked(&server), [What::Read, What::Release]);
    let read = client.stats().totals.read;
    assert_eq!((read.by_server, read.in_memory), (1, 3));
    nothing_is_left(&client).await;
}

/// The reader that asks gets the lock for all waiting readers.
#[tokio::test(start_paused = true)]
async fn readers_that_wait_ask_once() {
    let (server, client, lock) = scene_where(reads_are_slow);
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(reader(&lock).await);
    }
    tokio::time::sleep(MS * 2).await;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(got(reader).await);
    }
    assert_eq!(asked(&server), [What::Read]);
    drop(guards);
    nothing_is_left(&client).await;
    assert_eq!(asked(&server), [What::Read, What::Release]);
}

/// Each reader has its share before the first reader runs, so the hold is still there for all of them.
#[tokio::test(start_paused = true)]
async fn readers_that_wait_ask_once_though_each_leaves_at_once() {
    let (server, client, lock) = scene_where(reads_are_slow);
    let readers = (0..20).map(|_| async { drop(lock.read().await.unwrap()) });
    futures_util::future::join_all(readers).await;
    nothing_is_left(&client).await;
    assert_eq!(asked(&server), [What::Read, What::Release]);
    let read = client.stats().totals.read;
    assert_eq!((read.by_server, read.in_memory), (1, 19));
}

#[tokio::test(start_paused = true)]
async fn a_hold_takes_readers_for_so_long_and_so_many() {
    let (server, client, lock) = scene();
    let first = lock.read().await.unwrap();
    tokio::time::sleep(MS * 4).await;
    let joined = lock.read().await.unwrap();
    assert_eq!(joined.holder_id(), first.holder_id());
    tokio::time::sleep(MS).await;
    let anew = lock.read().await.unwrap();
    assert_ne!(anew.holder_id(), first.holder_id());
    assert_eq!(asked(&server), [What::Read; 2]);
    for _ in 0..1024 {
        let joined = lock.read().await.unwrap();
        assert_eq!(joined.holder_id(), anew.holder_id());
    }
    let after = lock.read().await.unwrap();
    assert_ne!(after.holder_id(), anew.holder_id());
    assert_eq!(asked(&server), [What::Read; 3]);
    // A closed hold stays with its readers.
    first.release().await.unwrap();
    assert!(!joined.is_lost());
    drop((joined, anew, after));
    nothing_is_left(&client).await;
}

/// A waiting writer of the client comes before new readers, and after the readers that waited before it.
#[tokio::test(start_paused = true)]
async fn a_writer_that_waits_comes_first() {
    let (_, client, lock) = scene_where(|_, what| match what {
        What::Write => Some(Answer::Value(elsewhere(30_000))),
        _ => None,
    });
    let first = lock.read().await.unwrap();
    let writing = writer(&lock).await;
    assert!(!writing.is_finished());
    let behind = reader(&lock).await;
    assert!(!behind.is_finished(), "the writer came first");
    let tried = lock.try_read().await.unwrap();
    let tried = tried.expect("this server knows no waiting writer");
    assert_ne!(tried.holder_id(), first.holder_id(), "it was asked");
    // The writer stops waiting.
    writing.abort();
    let behind = got(behind).await;
    assert_eq!(behind.holder_id(), tried.holder_id(), "the newest of both");
    drop((first, behind, tried));
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_more_than_to_read_has_a_hold_of_its_own() {
    let (_, client, lock) = scene();
    let first = lock.read().await.unwrap();
    for (what, other) in [
        ("an owner", lock.clone().owner(&Owner::new())),
        ("another lease", lock.clone().lease(LEASE * 2)),
        ("a fixed lease", lock.clone().fixed_lease(LEASE)),
        ("an end", lock.clone().max_hold(LEASE)),
        ("a least time", lock.clone().at_least(MS)),
        ("a token", lock.clone().fenced()),
        ("less patience", lock.clone().give_up_after(MS * 100)),
    ] {
        for _ in 0..2 {
            let own = other.read().await.unwrap();
            assert_ne!(own.holder_id(), first.holder_id(), "{what}");
            let own_again = other.clone().owner(own.owner()).read().await.unwrap();
            assert_eq!(own_again.holder_id(), own.holder_id(), "{what}");
        }
    }
    drop(first);
    nothing_is_left(&client).await;
}

/// The owner enters again through its guard, and through its owner in another call.
#[tokio::test(start_paused = true)]
async fn an_owner_that_joined_enters_again_and_cannot_write() {
    let (server, client, lock) = scene();
    let first = lock.read().await.unwrap();
    let second = lock.read().await.unwrap();
    let again = second.reenter().await.unwrap();
    let by_owner = lock.clone().owner(second.owner()).read().await.unwrap();
    assert_eq!((first.hold_count(), second.hold_count()), (1, 3));
    assert_eq!(by_owner.owner(), second.owner());
    assert_eq!(asked(&server), [What::Read], "it enters in memory");
    for owner in [first.owner(), second.owner()] {
        let writing = lock.clone().owner(owner).write().await;
        assert!(writing.unwrap_err().is_upgrade());
    }
    let gone = first.owner().clone();
    drop(first);
    others().await;
    assert_eq!(second.hold_count(), 3);
    // The share of this owner has ended, so its call has to ask like any other.
    let late = lock.clone().owner(&gone).read().await.unwrap();
    assert_ne!(late.holder_id(), second.holder_id());
    drop(late);
    second.release().await.unwrap();
    again.release().await.unwrap();
    assert_eq!(by_owner.hold_count(), 1);
    by_owner.release().await.unwrap();
    assert_eq!(asked(&server).last(), Some(&What::Release));
    nothing_is_left(&client).await;
}

/// Only the share with another lease is left, so a reader cannot join the hold.
#[tokio::test(start_paused = true)]
async fn nobody_joins_what_is_left_with_another_lease() {
    let (_, client, lock) = scene();
    let first = lock.read().await.unwrap();
    let longer = lock.clone().owner(first.owner()).lease(LEASE * 2);
    let longer = longer.read().await.unwrap();
    assert_eq!(longer.holder_id(), first.holder_id());
    first.release().await.unwrap();
    let next = lock.read().await.unwrap();
    assert_ne!(next.holder_id(), longer.holder_id());
    longer.release().await.unwrap();
    assert!(!next.is_lost());
    next.release().await.unwrap();
    nothing_is_left(&client).await;
}

/// The reader asks when the release has begun and has no answer yet.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_being_released_takes_nobody() {
    let (server, client, lock) = scene_where(|_, what| match what {
        What::Release | What::Downgrade => Some(Answer::Late(MS * 100, done())),
        _ => None,
    });
    let first = lock.read().await.unwrap();
    let holder = first.holder_id().to_owned();
    let mut release = Box::pin(first.release());
    assert!((&mut release).now_or_never().is_none());
    let second = lock.read().await.unwrap();
    assert_ne!(second.holder_id(), holder);
    let expected = [What::Read, What::Release, What::Read];
    assert_eq!(asked(&server), expected);
    release.await.unwrap();
    drop(second);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn all_who_joined_lose_it_once_each() {
    let (_, client, lock) = scene_where(holds_are_gone);
    let guards = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    let views = [guards[0].loss(), guards[1].loss()];
    for guard in &guards {
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert!(guard.is_lost() && guard.remaining().is_zero());
    }
    assert!(views.iter().all(lockset_is_lost));
    let third = lock.read().await.unwrap();
    assert_ne!(third.holder_id(), guards[0].holder_id());
    assert!(!third.is_lost());
    for guard in guards {
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    drop(third);
    assert_eq!(client.stats().totals.losses.of(LostReason::Revoked), 1);
    nothing_is_left(&client).await;
}

fn lockset_is_lost(view: &crate::Loss) -> bool {
    view.reason() == Some(LostReason::Revoked)
}

/// The process paused for longer than the lease. The hold is lost, so no reader joins it.
#[tokio::test(start_paused = true)]
async fn nobody_joins_what_is_over_by_the_clock() {
    let (_, client, lock) = scene_where(|_, what| match what {
        What::Renew => Some(Answer::Silence),
        _ => None,
    });
    let first = lock.read().await.unwrap();
    tokio::time::advance(LEASE * 2).await;
    let second = lock.read().await.unwrap();
    assert_ne!(second.holder_id(), first.holder_id());
    assert!(first.is_lost() && !second.is_lost());
    drop((first, second));
    nothing_is_left(&client).await;
}

/// A reader that is dropped at any moment leaves the hold to the other readers.
#[tokio::test(start_paused = true)]
async fn a_reader_that_is_dropped_takes_nothing_along() {
    let (_, client, lock) = scene_where(reads_are_slow);
    let mut head = Box::pin(lock.read());
    assert!(matches!(poll(&mut head).await, Poll::Pending));
    let behind = reader(&lock).await;
    // The reader that asked is gone. The next reader asks behind the undoing.
    drop(head);
    others().await;
    tokio::time::sleep(MS * 3).await;
    let guard = got(behind).await;
    let joined = lock.read().await.unwrap();
    assert_eq!(joined.holder_id(), guard.holder_id());
    drop((guard, joined));
    nothing_is_left(&client).await;
}

async fn poll<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *work).poll(context))).await
}

/// The reader at the head is not polled, so the readers behind it pass it over.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_not_polled_holds_up_no_reader() {
    let (_, client, lock) = scene_where(reads_are_slow);
    let mut head = Box::pin(lock.read());
    assert!(matches!(poll(&mut head).await, Poll::Pending));
    let behind = reader(&lock).await;
    tokio::time::sleep(LEASE / 2).await;
    let guard = got(behind).await;
    assert!(!guard.is_lost());
    // The head is polled again, and its own grant counts if the lease has not ended.
    let own = head.await.unwrap();
    assert!(!own.is_lost());
    drop((guard, own));
    nothing_is_left(&client).await;
}

/// One guard is forgotten. The others read on, and then the hold is left at the server.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_forgotten_leaves_the_hold_to_its_lease() {
    for first_is_forgotten in [false, true] {
        let (server, client, lock) = scene();
        let (one, other) = (lock.read().await.unwrap(), lock.read().await.unwrap());
        let (forgotten, stays) = if first_is_forgotten {
            (one, other)
        } else {
            (other, one)
        };
        forgotten.forget();
        assert!(!stays.is_lost());
        tokio::time::sleep(LEASE * 2).await;
        assert!(!stays.is_lost(), "it is renewed");
        stays.release().await.unwrap();
        assert!(!asked(&server).contains(&What::Release));
        nothing_is_left(&client).await;
    }
}

/// A fenced call for an owner that joined gets a token, which belongs to that owner.
#[tokio::test(start_paused = true)]
async fn a_token_is_of_the_owner_that_asked_for_it() {
    let server = Scripted::new(|sent| {
        let what = What::of(sent);
        let args = || &sent.script_args()[sent.script_keys()..];
        Answer::Value(match what {
            What::Read if args()[2] != "0" => Value::BulkString(b"7".to_vec()),
            What::Other if is_for_token(sent) => Value::BulkString(b"7".to_vec()),
            What::Renew => Value::Array(vec![Value::Int(1)]),
            What::Release | What::Downgrade => done(),
            _ => Value::Nil,
        })
    });
    let client = Client::over(&server, LEASE);
    let lock = client.rw_lock("x");
    let (first, second) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let fenced = lock.clone().fenced().owner(second.owner());
    let fenced = fenced.read().await.unwrap();
    assert!(fenced.fencing_token().is_some());
    assert_eq!(second.fencing_token(), fenced.fencing_token());
    assert_eq!(first.fencing_token(), None);
    let third = lock.read().await.unwrap();
    assert_ne!(third.holder_id(), first.holder_id(), "it carries a token");
    drop((first, second, fenced, third));
    nothing_is_left(&client).await;
}

/// A reader with other terms does not wait for the leader of a cohort.
#[tokio::test(start_paused = true)]
async fn who_cannot_join_the_one_that_asks_asks_beside_it() {
    let (server, client, lock) = scene_where(reads_are_slow);
    let other = lock.clone().lease(LEASE * 2);
    let readers = [
        reader(&lock).await,
        reader(&lock).await,
        reader(&other).await,
        reader(&other).await,
    ];
    assert_eq!(asked(&server), [What::Read; 2], "one of each");
    tokio::time::sleep(MS * 2).await;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(got(reader).await);
    }
    assert_eq!(asked(&server), [What::Read; 2]);
    assert_eq!(guards[0].holder_id(), guards[1].holder_id());
    assert_eq!(guards[2].holder_id(), guards[3].holder_id());
    drop(guards);
    nothing_is_left(&client).await;
}

/// The server was out of reach. A release that leaves other readers waits for the answer whether the server has the
/// hold.
#[tokio::test(start_paused = true)]
async fn a_release_in_doubt_waits_for_the_answer() {
    for is_there in [true, false] {
        let (_, client, lock) = scene_where(move |sent, what| match what {
            What::Renew => {
                let held = vec![Value::Int(i64::from(is_there)); sent.script_keys()];
                Some(Answer::Late(MS, Value::Array(held)))
            }
            _ => None,
        });
        let [one, other] = [lock.read().await.unwrap(), lock.read().await.unwrap()];
        // Lets the watchdog task start, and then notifies it.
        others().await;
        client.core().locals.moved.notify();
        others().await;
        let mut releasing = Box::pin(one.release());
        assert!((&mut releasing).now_or_never().is_none());
        match releasing.await {
            Ok(()) => assert!(is_there && !other.is_lost()),
            Err(error) => assert!(!is_there && error.is_not_held()),
        }
        drop(other);
        nothing_is_left(&client).await;
    }
}

/// A writer waits a moment for the readers of its client, and gets the lock behind their release.
#[tokio::test(start_paused = true)]
async fn a_writer_asks_behind_the_release_of_its_readers() {
    let (server, client, lock) = scene();
    let reading = lock.read().await.unwrap();
    let second = writer(&lock).await;
    assert_eq!(asked(&server), [What::Read], "it would be refused");
    reading.release().await.unwrap();
    drop(got(second).await);
    nothing_is_left(&client).await;
    let give = What::Release;
    assert_eq!(asked(&server), [What::Read, give, What::Write, give]);
    // The readers read for longer, so the writer has to ask the server.
    let reading = lock.read().await.unwrap();
    let second = writer(&lock).await;
    tokio::time::sleep(MS).await;
    others().await;
    assert_eq!(asked(&server).last(), Some(&What::Write));
    drop((got(second).await, reading));
    nothing_is_left(&client).await;
}
