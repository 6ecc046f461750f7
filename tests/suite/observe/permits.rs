//! Counts, events, metrics and spans of permits.

use std::time::Duration;

use futures_util::FutureExt;
use lockset::{Client, Event, LostReason, Place};
use lockset_operator::ReleaseHolder;
use lockset_testkit::{Server, eventually, within};
use tokio::task::JoinSet;

use super::observed::{LONG, Told, observed};
use crate::support::{LEASE, SOON, command, idle, patient_client};

#[tokio::test]
async fn grants_refusals_and_waits() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let seats = client.semaphore("x").permits(2);
    let both = seats.clone().many(2).acquire().await.unwrap();
    assert!(seats.try_acquire().await.unwrap().is_none());
    let totals = client.stats().totals;
    let semaphore = totals.semaphore;
    assert_eq!((semaphore.by_server, semaphore.total()), (1, 1), "one call");
    assert_eq!((totals.refusals, totals.waits), (1, 0));
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let seats = seats.clone();
        tasks.spawn(async move { seats.acquire().await.unwrap().release().await.unwrap() });
    }
    eventually(SOON, "all of them wait", async || {
        client.stats().totals.waits == 20
    })
    .await;
    both.release().await.unwrap();
    while let Some(done) = within(SOON, tasks.join_next()).await {
        done.unwrap();
    }
    idle(&client).await;
    let totals = client.stats().totals;
    let semaphore = totals.semaphore;
    assert!(semaphore.in_memory > 0, "{totals:?}");
    assert_eq!(semaphore.by_server + semaphore.in_memory, 21, "{totals:?}");
    assert_eq!((totals.grants(), totals.waits), (21, 20), "{totals:?}");
    assert_eq!((totals.refusals, totals.losses.total()), (1, 0));
    assert_eq!(totals.background_failures, 0);
}

/// The waiter in another client is refused by the server.
#[tokio::test]
async fn a_wait_for_another_client() {
    let server = Server::start();
    let [one, other] = [
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    ];
    let guard = one.semaphore("x").permits(1).acquire().await.unwrap();
    let next = lockset_testkit::spawn({
        let seats = other.semaphore("x").permits(1);
        async move { seats.acquire().await.unwrap() }
    });
    eventually(SOON, "it waits", async || other.stats().totals.waits == 1).await;
    guard.release().await.unwrap();
    within(SOON, next).await.unwrap().release().await.unwrap();
    let totals = other.stats().totals;
    assert_eq!((totals.semaphore.by_server, totals.waits), (1, 1));
}

#[tokio::test]
async fn a_loss() {
    let (server, told, client) = observed(LEASE * 3).await;
    let guard = client.semaphore("x").permits(2).acquire().await.unwrap();
    let holder = guard.holder_ids().next().unwrap().to_owned();
    command(&server, &["DEL", "{x}:timeout"]).await;
    told.of("the loss", |event| {
        matches!(event, Event::Lost { lock, holder: lost, reason: LostReason::Revoked, .. }
            if lock == "x" && **lost == *holder)
    })
    .await;
    drop(guard);
    idle(&client).await;
    let losses = client.stats().totals.losses;
    assert_eq!((losses.of(LostReason::Revoked), losses.total()), (1, 1));
    assert_eq!(told.count(|event| matches!(event, Event::Lost { .. })), 1);
}

/// Long before the next renewal, so only the release finds the loss.
#[tokio::test]
async fn why_an_operator_took_a_permit_away() {
    let (server, told, client) = observed(LONG).await;
    let operator = Client::connect(&server.url()).await.unwrap();
    let permits = client.semaphore("x").permits(2).many(2).acquire().await;
    let permits = permits.unwrap();
    let holder = permits.holder_ids().last().unwrap().to_owned();
    let ended = operator
        .semaphore("x")
        .release_holder_because(&holder, "by id")
        .await;
    assert!(ended.unwrap());
    assert!(permits.release().await.unwrap_err().is_not_held());
    told.of("the reason", |event| {
        matches!(event, Event::Freed { lock, holder: freed, reason, .. }
            if lock == "x" && **freed == *holder && reason == "by id")
    })
    .await;
    idle(&client).await;
    assert_eq!(told.count(|event| matches!(event, Event::Freed { .. })), 1);
}

/// The server is stopped: renewals fail, then the lease ends.
#[tokio::test]
async fn renewals() {
    let (server, told, client) = observed(LEASE).await;
    let guard = client.semaphore("x").permits(1).acquire().await.unwrap();
    eventually(SOON, "a renewal in time", async || {
        let renewals = client.stats().totals.renewals;
        renewals.renewed > 0 && renewals.least_left_percent.is_some()
    })
    .await;
    server.stop();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    server.cont();
    told.of("renewals that failed", |event| {
        matches!(event, Event::RenewalFailed { lock, holds: 1, left, .. }
            if lock == "x" && *left < LEASE)
    })
    .await;
    told.of("the loss", |event| {
        matches!(event, Event::Lost { reason: LostReason::Expired, held, .. } if *held > LEASE / 2)
    })
    .await;
    assert!(client.stats().totals.renewals.failed > 0);
}

#[tokio::test]
async fn calls_that_wait_for_long() {
    let (server, told, client) = observed(LONG).await;
    let guard = client.semaphore("x").permits(1).acquire().await.unwrap();
    let holder = guard.holder_ids().next().unwrap().to_owned();
    let other: Client = told.client(&server.url(), LONG).await;
    let mut waiters = JoinSet::new();
    for waiting in 1..=2 {
        let seats = other.semaphore("x").permits(1);
        waiters.spawn(async move { seats.acquire().await.unwrap().release().await.unwrap() });
        eventually(SOON, "it waits", async || {
            other.stats().totals.waits == waiting
        })
        .await;
    }
    told.of("one report of both waits", |event| {
        matches!(event, Event::LongWait { lock, waited, busy: Some(busy), waiters: 2, place, .. }
            if lock == "x" && *waited >= Duration::from_secs(1)
                && matches!(place, Some(Place::Client(1 | 2)))
                && busy.holder.as_deref() == Some(&*holder))
    })
    .await;
    guard.release().await.unwrap();
    while let Some(done) = within(SOON, waiters.join_next()).await {
        done.unwrap();
    }
    let is_long = |event: &Event<'_>| matches!(event, Event::LongWait { .. });
    assert_eq!(told.count(is_long), 1);
}

#[tokio::test]
async fn no_event_without_a_fault() {
    let (_server, told, client): (_, Told, _) = observed(LONG).await;
    let seats = client.semaphore("x").permits(2);
    let mut guard = seats.many(2).acquire().await.unwrap();
    let other = guard.split(1).unwrap();
    drop(guard);
    other.release().await.unwrap();
    // Its permits expire by themselves, which is no loss.
    let calls = client.semaphore("y").permits(1);
    let window = Duration::from_millis(900);
    let calls = calls.per(window);
    drop(calls.acquire().await.unwrap());
    let guard = calls.acquire().await.unwrap();
    let loss = guard.loss();
    let ran = guard.run(tokio::time::sleep(window * 2)).await;
    assert_eq!((ran, guard.remaining()), (Ok(()), Duration::ZERO));
    assert!(!guard.is_lost() && guard.lost().now_or_never().is_none());
    guard.release().await.unwrap();
    assert!(!loss.is_lost());
    idle(&client).await;
    assert_eq!(told.count(|_| true), 0);
    assert_eq!(client.stats().totals.losses.total(), 0);
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn metrics_by_kind_and_group() {
    let server = Server::start();
    let (recorder, page) = super::metered::recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let seats = client.semaphore("secret").permits(2).group("seats");
    let labels = [("kind", "semaphore"), ("group", "seats")];
    let calls = |outcome| {
        let labels = [labels[0], labels[1], ("outcome", outcome)];
        page.value("lockset_calls_total", &labels)
    };
    let mut guard = seats.clone().many(2).acquire().await.unwrap();
    assert_eq!(calls("granted"), Some(1.0));
    assert_eq!(page.of("lockset_held", &labels), 1.0);
    let by_server = [labels[0], labels[1], ("path", "server")];
    assert_eq!(page.of("lockset_grants_total", &by_server), 1.0);
    // The part belongs to the grant, and is no guard of its own.
    let part = guard.split(1).unwrap();
    assert_eq!(page.of("lockset_held", &labels), 1.0);
    guard.release().await.unwrap();
    assert_eq!(page.of("lockset_held", &labels), 0.0);
    assert_eq!(page.of("lockset_hold_seconds_count", &labels), 1.0);

    let other = seats.acquire().await.unwrap();
    assert!(seats.try_acquire().await.unwrap().is_none());
    assert_eq!(calls("refused"), Some(1.0));
    let refused = page.of("lockset_refusals_total", &[labels[1]]);
    assert_eq!(refused, 1.0);
    {
        let mut call = std::pin::pin!(seats.acquire());
        tokio::select! {
            biased;
            _ = &mut call => unreachable!("it is taken"),
            () = eventually(SOON, "it waits", async || {
                page.of("lockset_waiting", &[labels[1]]) == 1.0
            }) => {}
        }
    }
    assert_eq!(calls("cancelled"), Some(1.0));
    assert_eq!(page.of("lockset_waiting", &[labels[1]]), 0.0);
    drop((part, other));
    idle(&client).await;
    assert_eq!(page.of("lockset_held", &labels), 0.0);
    assert!(!page.render().contains("secret"));
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_span_for_the_call_and_one_for_the_guard() {
    let server = Server::start();
    let (seen, _default) = super::traced::seen();
    let client = patient_client(&server.url()).await;
    let seats = client.semaphore("x").permits(1).group("seats");
    let guard = seats.acquire().await.unwrap();
    let holder = guard.holder_ids().next().unwrap().to_owned();
    assert_eq!(
        seen.take(),
        [
            "lockset.acquire lockset.kind=semaphore lockset.name=x lockset.group=seats".to_owned(),
            format!("lockset.hold lockset.name=x lockset.holder={holder}"),
            "lockset.hold follows from lockset.acquire".to_owned(),
            "lockset.acquire lockset.outcome=granted".to_owned(),
            "end lockset.acquire".to_owned(),
        ]
    );
    assert!(seats.try_acquire().await.unwrap().is_none());
    let refused = "lockset.acquire lockset.outcome=refused".to_owned();
    assert!(seen.take().contains(&refused));
    guard.release().await.unwrap();
    assert_eq!(seen.take(), ["end lockset.hold"]);
}
