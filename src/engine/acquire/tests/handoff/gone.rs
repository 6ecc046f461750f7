//! Tests a hand-off that no task accepts: the next task gets the lock, or it is released.

use super::*;
/// After any poll of the waiter with the hand-off, dropping it passes the hold to the next waiter.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_hands_it_off() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    for polls in 0.. {
        let guard = lock.lock().await.unwrap();
        let mut given = Box::pin(lock.lock());
        assert!(poll(&mut given).await.is_pending());
        let next = waiter(lock.clone()).await;
        client.core().locals.all()[0]
            .lock()
            .turns
            .seen_elsewhere(false);
        drop(guard);
        let mut is_done = false;
        for _ in 0..polls {
            if poll(&mut given).await.is_ready() {
                is_done = true;
                break;
            }
            tokio::time::sleep(MS * 30).await;
        }
        drop(given);
        let next = tokio::time::timeout(LEASE, next).await;
        let next = next.expect("the next waiter gets it").unwrap().unwrap();
        assert!(!next.is_lost());
        assert_eq!(client.stats().holds, 1);
        drop(next);
        nothing_is_left(&client).await;
        if is_done {
            assert!(polls > 0);
            break;
        }
    }
}

/// If no waiter is left, the hold is released.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_is_dropped_leaves_nothing() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    let mut waits: Vec<_> = (0..10).map(|_| Box::pin(lock.lock())).collect();
    for wait in &mut waits {
        assert!(poll(wait).await.is_pending());
    }
    drop(guard);
    // One waiter after another gets the hand-off, and none of them is polled.
    drop(waits);
    nothing_is_left(&client).await;
    assert_eq!(whats(&server), [What::Take, What::Release]);
}

/// The hand-off comes at the moment the wait ends, with the timer before it, after it, or both.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_wait_at_the_same_moment() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let wait = MS * 100;
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let guard = client.lock("x").lock().await.unwrap();
        let timed = || {
            let lock = client.lock("x");
            tokio::spawn(async move { lock.try_lock_for(wait).await.unwrap().map(drop) })
        };
        let early = before.then(timed);
        others().await;
        let give = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            drop(guard);
        });
        others().await;
        let late = after.then(timed);
        others().await;
        let next = waiter(client.lock("x")).await;
        give.await.unwrap();
        for timed in [early, late].into_iter().flatten() {
            // The task may or may not have got the lock. Either way the next task gets it.
            timed.await.unwrap();
        }
        drop(got(next).await);
        nothing_is_left(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_meanwhile() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    let mut given = Box::pin(lock.lock());
    assert!(poll(&mut given).await.is_pending());
    let next = waiter(lock.clone()).await;
    drop(guard);
    let close = tokio::spawn(client.clone().shutdown());
    others().await;
    let error = given.await.expect_err("closed");
    assert!(error.is_closed(), "{error}");
    assert!(next.await.unwrap().expect_err("closed").is_closed());
    close.await.unwrap().unwrap();
    nothing_is_left(&client).await;
}

/// An operator takes the lock away during the hand-off, and the new holder learns of it.
#[tokio::test(start_paused = true)]
async fn a_forced_unlock_meanwhile_takes_it_from_the_next() {
    let server = generous(|sent, _| {
        let is_force =
            sent.words.get(1).map(String::as_str) == Some(catalog::REENTRANT_FORCE_UNLOCK.sha());
        is_force.then_some(Answer::Late(MS * 50, Value::Int(1)))
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    let next = waiter(lock.clone()).await;
    let forced = tokio::spawn(async move { lock.force_unlock().await });
    others().await;
    drop(guard);
    let next = got(next).await;
    assert!(!next.is_lost());
    assert!(forced.await.unwrap().unwrap());
    assert!(next.is_lost(), "the server has freed it");
    drop(next);
    nothing_is_left(&client).await;
}

/// A future that is kept but not polled excludes others for one lease at most.
#[tokio::test(start_paused = true)]
async fn nobody_renews_an_unclaimed_hold() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    let mut given = Box::pin(lock.lock());
    assert!(poll(&mut given).await.is_pending());
    client.core().locals.all()[0]
        .lock()
        .turns
        .seen_elsewhere(false);
    guard.release().await.unwrap();
    tokio::time::sleep(LEASE / 2).await;
    assert!(!whats(&server).contains(&What::Renew));
    // When the hold is taken, it is renewed at once, because the renewal is overdue.
    let Poll::Ready(Ok(taken)) = poll(&mut given).await else {
        panic!("it is there");
    };
    tokio::time::sleep(MS).await;
    assert!(whats(&server).contains(&What::Renew));
    assert!(taken.remaining() > LEASE * 9 / 10);

    let mut given = Box::pin(lock.lock());
    assert!(poll(&mut given).await.is_pending());
    client.core().locals.all()[0]
        .lock()
        .turns
        .seen_elsewhere(false);
    taken.release().await.unwrap();
    tokio::time::sleep(LEASE).await;
    assert_eq!(client.stats().holds, 0, "lost");
    let again = given.await.unwrap();
    assert!(!again.is_lost(), "it asked again");
}

/// The answer to a renewal may arrive between a hand-off and its acceptance.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_while_nobody_has_claimed_it_is_not_the_last() {
    let server = generous(|_, what| {
        let held = Value::Array(vec![Value::Int(1)]);
        (what == What::Renew).then_some(Answer::Late(MS * 50, held))
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    let mut given = Box::pin(lock.lock());
    assert!(poll(&mut given).await.is_pending());
    while !whats(&server).contains(&What::Renew) {
        tokio::time::sleep(MS * 10).await;
    }
    client.core().locals.all()[0]
        .lock()
        .turns
        .seen_elsewhere(false);
    drop(guard);
    tokio::time::sleep(MS * 100).await;
    let Poll::Ready(Ok(taken)) = poll(&mut given).await else {
        panic!("it is there");
    };
    tokio::time::sleep(LEASE * 2).await;
    assert!(!taken.is_lost(), "it is renewed");
}
