//! Tests readers that use a write hold of their client: the order of tasks, and the time of the downgrade.

use futures_util::FutureExt;
use redis::Value;

use super::rw::{
    What, asked, got, holds_are_gone, nothing_is_left, others, reader, scene, scene_where, writer,
};
use super::{LEASE, MS};
use crate::engine::hold::transfer::end_deferrals;
use crate::rwlock::{ReadGuard, RwLock};
use crate::testing::Answer;
use crate::{LostReason, Owner};

/// The downgrade: a release down to a read hold.
const TOLD: What = What::Downgrade;

/// A reader that took over the hold of the writer before it.
async fn after_writer(lock: &RwLock) -> ReadGuard {
    let writing = lock.write().await.unwrap();
    let reading = reader(lock).await;
    writing.release().await.unwrap();
    got(reading).await
}

#[tokio::test(start_paused = true)]
async fn readers_and_writers_have_it_in_their_order_without_the_server() {
    let (server, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let readers = [reader(&lock).await, reader(&lock).await];
    let second = writer(&lock).await;
    let behind = reader(&lock).await;
    first.release().await.unwrap();
    let [a, b] = readers;
    let (a, b) = (got(a).await, got(b).await);
    assert_eq!(a.holder_id(), b.holder_id());
    assert_ne!(a.owner(), b.owner());
    assert!(!second.is_finished() && !behind.is_finished());
    a.release().await.unwrap();
    others().await;
    assert!(!second.is_finished(), "one still reads");
    drop(b);
    let second = got(second).await;
    others().await;
    assert!(!behind.is_finished(), "one writes");
    second.release().await.unwrap();
    let behind = got(behind).await;
    assert_eq!(asked(&server), [What::Write]);
    behind.release().await.unwrap();
    assert_eq!(asked(&server), [What::Write, What::Release]);
    let totals = client.stats().totals;
    assert_eq!((totals.read.by_server, totals.read.in_memory), (0, 3));
    assert_eq!((totals.write.by_server, totals.write.in_memory), (1, 1));
    nothing_is_left(&client).await;
}

/// Later readers join the reading ones, unless a writer waits.
#[tokio::test(start_paused = true)]
async fn more_join_until_a_writer_waits() {
    let (server, client, lock) = scene();
    let reading = after_writer(&lock).await;
    let joined = lock.read().await.unwrap();
    assert_eq!(joined.holder_id(), reading.holder_id());
    let second = writer(&lock).await;
    let behind = reader(&lock).await;
    assert!(!behind.is_finished() && !second.is_finished());
    drop((joined, reading));
    drop(got(second).await);
    drop(got(behind).await);
    nothing_is_left(&client).await;
    assert_eq!(asked(&server), [What::Write, What::Release]);
}

/// If readers read for longer, readers of other clients may read beside them.
#[tokio::test(start_paused = true)]
async fn who_reads_for_longer_has_a_read_hold() {
    let (server, client, lock) = scene();
    let reading = after_writer(&lock).await;
    tokio::time::sleep(MS * 4).await;
    assert_eq!(asked(&server), [What::Write]);
    tokio::time::sleep(MS * 2).await;
    assert_eq!(asked(&server), [What::Write, TOLD]);
    let beside = lock.read().await.unwrap();
    assert_ne!(beside.holder_id(), reading.holder_id(), "it is closed");
    tokio::time::sleep(LEASE * 3).await;
    assert!(!reading.is_lost(), "it is renewed");
    beside.release().await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(asked(&server).last(), Some(&What::Release));
    nothing_is_left(&client).await;
}

/// A renewal is under way without an answer. The server still gets the downgrade.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_not_answered_keeps_out_no_reader() {
    let (server, client, lock) = scene_where(|_, what| match what {
        What::Renew => Some(Answer::Silence),
        _ => None,
    });
    let reading = after_writer(&lock).await;
    client.core().locals.moved.notify();
    others().await;
    assert_eq!(asked(&server), [What::Write, What::Renew], "it is in doubt");
    tokio::time::sleep(MS * 8).await;
    assert!(asked(&server).contains(&TOLD));
    drop(reading);
}

/// The downgrade is decided on, but not sent yet, when the last reader goes. Only the release is sent.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_hold_replaces_its_downgrade() {
    let (server, client, lock) = scene_where(|_, what| match what {
        What::Release => Some(Answer::Late(MS * 10, Value::Int(0))),
        _ => None,
    });
    let reading = after_writer(&lock).await;
    for local in client.core().locals.all() {
        assert!(end_deferrals(&local));
    }
    reading.release().await.unwrap();
    nothing_is_left(&client).await;
    assert_eq!(asked(&server), [What::Write, What::Release]);
}

/// A writer behind the readers asks after the server has the downgrade, and is refused like any other.
#[tokio::test(start_paused = true)]
async fn the_turn_of_a_client_ends_while_its_readers_read() {
    let (server, client, lock) = scene();
    let reading = after_writer(&lock).await;
    let second = writer(&lock).await;
    tokio::time::sleep(MS * 8).await;
    let before = asked(&server);
    assert_eq!(before[..3], [What::Write, TOLD, What::Write]);
    drop((got(second).await, reading));
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn while_others_listen_a_writer_releases_as_ever() {
    let (server, client, lock) = scene_where(|_, what| match what {
        What::Release | What::Downgrade => Some(Answer::Value(Value::Int(1))),
        _ => None,
    });
    // While the handle exists, the client remembers that other clients received its release.
    let side = lock.write_side();
    side.lock().await.unwrap().release().await.unwrap();
    let second = side.lock().await.unwrap();
    let reading = reader(&lock).await;
    second.release().await.unwrap();
    drop(got(reading).await);
    others().await;
    let give = What::Release;
    let expected = [What::Write, give, What::Write, give, What::Read, give];
    assert_eq!(asked(&server), expected);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_recall_ends_it() {
    let (server, client, lock) = scene();
    let reading = after_writer(&lock).await;
    let number = reading.holder_id().rsplit(':').next().unwrap();
    client.core().watchdog.recall(number.parse().unwrap());
    others().await;
    assert_eq!(asked(&server), [What::Write, TOLD]);
    assert!(reading.recalled().now_or_never().is_some());
    let beside = lock.read().await.unwrap();
    assert_ne!(beside.holder_id(), reading.holder_id());
    drop((reading, beside));
    nothing_is_left(&client).await;
}

/// The readers are dropped after the hand-off, before they have taken it.
#[tokio::test(start_paused = true)]
async fn readers_that_are_dropped_leave_it_to_the_next_writer() {
    let (server, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let readers = [reader(&lock).await, reader(&lock).await];
    let second = writer(&lock).await;
    drop(first);
    // The hold is handed off to the readers, which do not take it.
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    let second = got(second).await;
    assert_eq!(asked(&server), [What::Write]);
    second.release().await.unwrap();
    nothing_is_left(&client).await;
}

/// The reader is not polled. The writer behind it passes it over, and the hand-off is withdrawn.
#[tokio::test(start_paused = true)]
async fn a_reader_that_is_not_polled_is_passed_over() {
    let (_, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let mut asleep = Box::pin(lock.read());
    assert!((&mut asleep).now_or_never().is_none());
    let second = writer(&lock).await;
    drop(first);
    tokio::time::sleep(LEASE / 2).await;
    drop(got(second).await);
    let reading = asleep.await.unwrap();
    assert!(!reading.is_lost());
    drop(reading);
    nothing_is_left(&client).await;
}

/// The reader is not polled and has no task behind it, so the hold is not renewed for it.
#[tokio::test(start_paused = true)]
async fn what_nobody_comes_for_ends_with_its_lease() {
    let (server, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let mut asleep = Box::pin(lock.read());
    assert!((&mut asleep).now_or_never().is_none());
    drop(first);
    tokio::time::sleep(LEASE * 2).await;
    assert!(!asked(&server).contains(&What::Renew));
    assert_eq!(client.stats().totals.losses.of(LostReason::Expired), 1);
    let reading = asleep.await.unwrap();
    assert!(!reading.is_lost());
    assert!(asked(&server).contains(&What::Read), "it asks again");
    drop(reading);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_among_them_cannot_write_and_enters_again_in_memory() {
    let (server, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let readers = [reader(&lock).await, reader(&lock).await];
    first.release().await.unwrap();
    let [one, other] = readers;
    let (one, other) = (got(one).await, got(other).await);
    let mine = lock.clone().owner(one.owner());
    assert!(mine.write().await.unwrap_err().is_upgrade());
    assert!(mine.try_write().await.unwrap_err().is_upgrade());
    let again = one.reenter().await.unwrap();
    assert_eq!((one.hold_count(), other.hold_count()), (2, 1));
    assert_eq!(asked(&server), [What::Write]);
    for guard in [one, again, other] {
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
    assert_eq!(asked(&server).last(), Some(&What::Release));
    nothing_is_left(&client).await;
}

/// A forgotten guard does not keep out other readers for the rest of the lease.
#[tokio::test(start_paused = true)]
async fn one_that_is_forgotten_leaves_a_read_hold() {
    let (server, client, lock) = scene();
    after_writer(&lock).await.forget();
    others().await;
    assert_eq!(asked(&server), [What::Write, TOLD]);
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(asked(&server), [What::Write, TOLD]);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_more_than_to_read_has_a_hold_of_its_own() {
    let (server, client, lock) = scene();
    let cases = [
        lock.clone().owner(&Owner::new()),
        lock.clone().lease(LEASE * 2),
        lock.clone().fixed_lease(LEASE),
        lock.clone().fenced(),
    ];
    for other in cases {
        let before = asked(&server).len();
        let first = lock.write().await.unwrap();
        let reading = reader(&other).await;
        first.release().await.unwrap();
        drop(got(reading).await);
        others().await;
        let expected = [What::Write, What::Release, What::Read, What::Release];
        assert_eq!(asked(&server)[before..], expected, "{other:?}");
    }
    nothing_is_left(&client).await;
}

/// A reader that cannot join them reads beside them, whether it waits or not.
#[tokio::test(start_paused = true)]
async fn readers_keep_out_no_reader_of_their_client() {
    for waits in [true, false] {
        let (server, client, lock) = scene();
        let other = lock.clone().lease(LEASE * 2);
        let reading = after_writer(&lock).await;
        let beside = if waits {
            other.read().await.unwrap()
        } else {
            other.try_read().await.unwrap().expect("nobody writes")
        };
        assert_eq!(asked(&server), [What::Write, TOLD, What::Read]);
        assert!(!reading.is_lost() && !beside.is_lost());
        drop((reading, beside));
        nothing_is_left(&client).await;
    }
}

/// A query for the holders sees the readers, because it sends the downgrade.
#[tokio::test(start_paused = true)]
async fn a_question_ends_it() {
    let (server, client, lock) = scene();
    let reading = after_writer(&lock).await;
    let _whoever_reads = lock.read_side().holders().now_or_never();
    others().await;
    assert_eq!(asked(&server), [What::Write, TOLD]);
    drop(reading);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_back_what_nobody_came_for() {
    let (server, client, lock) = scene();
    let first = lock.write().await.unwrap();
    let mut asleep = Box::pin(lock.read());
    assert!((&mut asleep).now_or_never().is_none());
    drop(first);
    client.clone().shutdown().await.unwrap();
    assert!(asked(&server).contains(&What::Release));
    assert!(asleep.await.unwrap_err().is_closed());
    nothing_is_left(&client).await;
}

/// The server has lost the hold. Each guard learns of the loss once.
#[tokio::test(start_paused = true)]
async fn they_lose_it_together() {
    let (_, client, lock) = scene_where(holds_are_gone);
    let first = lock.write().await.unwrap();
    let readers = [reader(&lock).await, reader(&lock).await];
    first.release().await.unwrap();
    for reader in readers {
        let guard = got(reader).await;
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    assert_eq!(client.stats().totals.losses.of(LostReason::Revoked), 1);
    nothing_is_left(&client).await;
}
