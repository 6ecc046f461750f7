//! Tests which holds are not handed off.

use super::*;
use crate::conn::EventHandler;
use crate::{LostReason, Member, MultiLock, Owner};

/// Runs `give`, and returns the commands sent for it and for the next task.
async fn sent_by(server: &Scripted, give: impl Future<Output = ()>) -> Vec<What> {
    let before = server.sent().len();
    give.await;
    others().await;
    let mut sent = whats(server).split_off(before);
    sent.retain(|what| *what != What::Renew);
    sent
}

const THROUGH_THE_SERVER: [What; 2] = [What::Release, What::Take];

fn silent_renewals(_: &Sent, what: What) -> Option<Answer> {
    (what == What::Renew).then_some(Answer::Silence)
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_which_less_than_half_is_left() {
    let server = generous(silent_renewals);
    let client = Client::over(&server, LEASE);
    for (age, expected) in [(14_000, &[][..]), (15_000, &THROUGH_THE_SERVER)] {
        let guard = client.lock("x").lock().await.unwrap();
        let next = waiter(client.lock("x")).await;
        tokio::time::sleep(MS * age).await;
        // Starts a new slice.
        client.core().locals.all()[0]
            .lock()
            .turns
            .seen_elsewhere(false);
        let sent = sent_by(&server, async { drop(guard) }).await;
        assert_eq!(sent, expected, "{age} ms");
        drop(got(next).await);
        others().await;
    }
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_in_doubt() {
    let server = generous(|sent, what| match what {
        What::Renew if sent.at < MS * 1_000 => Some(Answer::Silence),
        _ => None,
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let next = waiter(client.lock("x")).await;
    client.core().locals.moved();
    others().await;
    let sent = sent_by(&server, async { drop(guard) }).await;
    assert_eq!(sent, THROUGH_THE_SERVER);
    let guard = got(next).await;
    // The doubt ends when a later renewal confirms the hold.
    client.core().locals.moved();
    tokio::time::sleep(MS * 3_000).await;
    let next = waiter(client.lock("x")).await;
    client.core().locals.all()[0]
        .lock()
        .turns
        .seen_elsewhere(false);
    assert_eq!(sent_by(&server, async { drop(guard) }).await, []);
    drop(got(next).await);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold() {
    for (revoked, reason) in [(true, LostReason::Revoked), (false, LostReason::Expired)] {
        let server = generous(move |sent, what| match what {
            What::Renew if sent.at > LEASE * 2 => None,
            What::Renew if revoked => Some(Answer::Value(Value::Array(vec![Value::Int(0)]))),
            What::Renew => Some(Answer::Silence),
            _ => None,
        });
        let client = Client::over(&server, LEASE);
        let guard = client.lock("x").lock().await.unwrap();
        let next = waiter(client.lock("x")).await;
        assert_eq!(guard.lost().await, reason);
        let next = got(next).await;
        let taken = takes(&server);
        assert_ne!(holder(&taken[0]), holder(&taken[1]));
        let after = waiter(client.lock("x")).await;
        drop(guard);
        others().await;
        assert!(!after.is_finished(), "it had nothing to give");
        assert!(!next.is_lost());
        drop(next);
        drop(got(after).await);
        nothing_is_left(&client).await;
    }
}

/// The clock decides, even before the loss is noticed.
#[tokio::test(start_paused = true)]
async fn a_hold_that_has_just_expired() {
    let server = generous(silent_renewals);
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let next = waiter(client.lock("x")).await;
    tokio::time::sleep(guard.remaining() - MS * 2).await;
    tokio::time::advance(MS * 3).await;
    drop(guard);
    drop(got(next).await);
    assert_eq!(takes(&server).len(), 2);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_share_but_for_a_forgotten_one() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    guard.reenter().await.unwrap().forget();
    let next = waiter(client.lock("x")).await;
    let sent = sent_by(&server, async { drop(guard) }).await;
    assert_eq!(sent, [What::Take], "left to its lease");
    drop(got(next).await);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_shares() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let outer = client.lock("x").lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let next = waiter(client.lock("x")).await;
    let sent = sent_by(&server, async { outer.release().await.unwrap() }).await;
    assert_eq!(sent, [], "the server counts one");
    assert!(!next.is_finished());
    assert_eq!(sent_by(&server, async { drop(inner) }).await, []);
    drop(got(next).await);
    nothing_is_left(&client).await;
}

/// A renewal for another guard is under way, so the release goes behind it.
#[tokio::test(start_paused = true)]
async fn an_operation_is_under_way() {
    let server = generous(|_, what| match what {
        What::Renew => Some(Answer::Late(MS * 50, Value::Array(vec![Value::Int(1)]))),
        _ => None,
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new());
    let guard = lock.lock().await.unwrap();
    let mut again = Box::pin(async { lock.clone().lease(LEASE * 2).lock().await });
    assert!(poll(&mut again).await.is_pending());
    others().await;
    let next = waiter(client.lock("x")).await;
    drop(guard);
    drop(again);
    others().await;
    assert!(!next.is_finished(), "a renewal is under way");
    tokio::time::sleep(MS * 60).await;
    drop(got(next).await);
    assert_eq!(takes(&server).len(), 2, "through the server");
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_of_several() {
    let server = generous(|sent, what| {
        (what == What::Other && sent.is("EVALSHA")).then(|| {
            let is_take = sent.words[1] == catalog::MULTI_ACQUIRE.sha();
            Answer::Value(Value::Array(if is_take {
                let no_token = Value::BulkString(Vec::new());
                vec![Value::Int(0), no_token.clone(), no_token]
            } else {
                vec![Value::Int(0), Value::Int(0)]
            }))
        })
    });
    let client = Client::over(&server, LEASE);
    let both = ["x", "y"].map(|name| Member::from(client.lock(name)));
    let guard = MultiLock::new(both).unwrap().lock().await.unwrap();
    let next = waiter(client.lock("x")).await;
    let sent = sent_by(&server, async { drop(guard) }).await;
    assert_eq!(sent, [What::Other, What::Take]);
    drop(got(next).await);
    nothing_is_left(&client).await;
}

/// A waiter for several locks never gets a hand-off, and is not passed over.
#[tokio::test(start_paused = true)]
async fn those_who_want_several_are_not_passed_by() {
    let server = generous(|sent, what| {
        let refused = [1, 25_000].map(Value::Int).to_vec();
        let is_multi = what == What::Other && sent.is("EVALSHA");
        is_multi.then_some(Answer::Value(Value::Array(refused)))
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let both = ["x", "y"].map(|name| Member::from(client.lock(name)));
    let both = MultiLock::new(both).unwrap();
    let several = tokio::spawn(async move { both.try_lock_for(MS * 500).await });
    others().await;
    let next = waiter(client.lock("x")).await;
    drop(guard);
    others().await;
    assert!(!next.is_finished(), "the other one comes first");
    assert!(whats(&server).contains(&What::Release));
    assert!(several.await.unwrap().unwrap().is_none());
    drop(got(next).await);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_on_other_terms() {
    let server = generous(|sent, _| {
        // Confirms that a replica has the hold.
        sent.is("WAIT").then_some(Answer::Value(Value::Int(1)))
    });
    let client = Client::over(&server, LEASE);
    let lock = || client.lock("x");
    for (had, wanted) in [
        (lock(), lock().lease(LEASE / 2)),
        (lock(), lock().fixed_lease(LEASE / 2)),
        (lock(), lock().replicated(1, MS * 100)),
        (lock(), lock().fenced()),
        (lock().fixed_lease(LEASE), lock().fixed_lease(LEASE)),
        (lock().fixed_lease(LEASE), lock()),
    ] {
        let guard = had.lock().await.unwrap();
        let next = waiter(wanted.clone()).await;
        let sent = sent_by(&server, async { drop(guard) }).await;
        assert_eq!(sent[..2], THROUGH_THE_SERVER, "{wanted:?}");
        drop(got(next).await);
        nothing_is_left(&client).await;
    }
}

/// A writer hands the lock off to the next writer or to readers, and the last of the readers to the writer behind them.
#[tokio::test(start_paused = true)]
async fn what_is_to_be_read() {
    let server = generous(|sent, what| {
        let is_script = what == What::Other && sent.is("EVALSHA");
        is_script.then(|| {
            let is_give = sent.words[1] == catalog::RW_RELEASE.sha();
            Answer::Value(if is_give { done() } else { Value::Nil })
        })
    });
    let client = Client::over(&server, LEASE);
    let lock = client.rw_lock("x");
    let writer = lock.write().await.unwrap();
    let mut next = Vec::new();
    for writes in [true, false, true] {
        let lock = lock.clone();
        next.push(tokio::spawn(async move {
            if writes {
                drop(lock.write().await.unwrap())
            } else {
                drop(lock.read().await.unwrap())
            }
        }));
        others().await;
    }
    drop(writer);
    for task in next {
        task.await.unwrap();
    }
    nothing_is_left(&client).await;
    // The first task acquires the lock, and the last one releases it.
    let sent = server.sent();
    let scripts = sent.iter().filter(|sent| sent.is("EVALSHA"));
    assert_eq!(scripts.count(), 2, "{sent:?}");
}
