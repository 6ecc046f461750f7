//! Counters and observer events for things that no caller learns of.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockset::{Client, Event, LostReason, Owner, Place};
use lockset_operator::{ForceUnlock, ReleaseHolder};
use lockset_testkit::{Server, eventually, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{LEASE, PATIENCE, SOON, alone, command, cycle, idle, is_alone};

/// An observer that stores its events.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<Event<'static>>>>);

impl Told {
    pub(super) async fn client(&self, url: &str, lease: Duration) -> Client {
        let told = Arc::clone(&self.0);
        let observer = move |event: &Event<'_>| {
            told.lock().unwrap().push(event.clone().into_owned());
        };
        let builder = Client::builder(url).lease(lease).observer(observer);
        builder.give_up_after(PATIENCE).build().await.unwrap()
    }

    /// Waits for such an event.
    pub(super) async fn of(&self, what: &str, is_it: impl Fn(&Event<'_>) -> bool) {
        eventually(SOON, what, async || {
            self.0.lock().unwrap().iter().any(&is_it)
        })
        .await;
    }

    pub(super) fn count(&self, is_it: impl Fn(&Event<'_>) -> bool) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| is_it(event))
            .count()
    }
}

/// A server, an observer's events, and the client.
pub(super) async fn observed(lease: Duration) -> (Server, Told, Client) {
    let (server, told) = (Server::start(), Told::default());
    let client = told.client(&server.url(), lease).await;
    (server, told, client)
}

/// Longer than any test.
pub(super) const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn grants_by_how_a_call_got_them() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let owner = Owner::new();
    let lock = client.lock("x");
    let outer = lock.clone().owner(&owner).lock().await.unwrap();
    let inner = lock.clone().owner(&owner).lock().await.unwrap();
    let again = inner.reenter().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    for guard in [again, inner, outer] {
        guard.release().await.unwrap();
    }
    // Handed off from task to task while tasks wait.
    let tasks = (0..20).map(|_| {
        let lock = client.lock("y");
        lockset_testkit::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() })
    });
    for task in tasks.collect::<Vec<_>>() {
        within(SOON, task).await.unwrap();
    }
    let rw = client.rw_lock("rw");
    rw.read().await.unwrap().release().await.unwrap();
    rw.write().await.unwrap().release().await.unwrap();
    idle(&client).await;
    let totals = client.stats().totals;
    let reentrant = totals.reentrant;
    assert_eq!(reentrant.reentered, 2, "{totals:?}");
    assert!(reentrant.in_memory > 0, "{totals:?}");
    assert_eq!(reentrant.by_server + reentrant.in_memory, 21, "{totals:?}");
    assert_eq!((totals.read.total(), totals.write.total()), (1, 1));
    assert_eq!(totals.refusals, 1, "{totals:?}");
    assert!((1..=20).contains(&totals.waits), "{totals:?}");
    assert_eq!((totals.losses.total(), totals.background_failures), (0, 0));
    assert_eq!(totals.script_errors, 0);
}

#[tokio::test]
async fn a_fair_lock_that_the_server_hands_over() {
    let server = Server::start();
    let (one, other) = (
        Client::connect(&server.url()).await.unwrap(),
        Client::connect(&server.url()).await.unwrap(),
    );
    let guard = one.fair_lock("x").lock().await.unwrap();
    let next = lockset_testkit::spawn({
        let lock = other.fair_lock("x");
        async move { lock.lock().await.unwrap() }
    });
    eventually(SOON, "it has a place and listens", async || {
        let queued = one.fair_lock("x").waiters().await.unwrap().len();
        queued == 1 && other.stats().subscriptions == 1
    })
    .await;
    guard.release().await.unwrap();
    within(SOON, next).await.unwrap().release().await.unwrap();
    let fair = other.stats().totals.fair;
    // By the message, or by the request that was in flight.
    assert_eq!(fair.handed_over + fair.by_server, 1, "{fair:?}");
    assert_eq!(other.stats().totals.waits, 1);
}

#[tokio::test]
async fn a_loss() {
    let (server, told, client) = observed(LEASE * 3).await;
    let guard = client.lock("x").lock().await.unwrap();
    command(&server, &["DEL", "x"]).await;
    told.of("the loss", |event| {
        matches!(event, Event::Lost { lock, holder, reason: LostReason::Revoked, .. }
            if lock == "x" && holder == guard.holder_id())
    })
    .await;
    let losses = client.stats().totals.losses;
    assert_eq!((losses.of(LostReason::Revoked), losses.total()), (1, 1));
    drop(guard);
    // A normal release is not such an event.
    cycle(&client.lock("x")).await;
    idle(&client).await;
    assert_eq!(client.stats().totals.losses.total(), 1);
    assert_eq!(told.count(|event| matches!(event, Event::Lost { .. })), 1);
}

/// The server is stopped: renewals fail, then the lease ends.
#[tokio::test]
async fn renewals_that_fail() {
    // While the server runs, no answer takes a sixth of it.
    let lease = LEASE * 3;
    let (server, told, client) = observed(lease).await;
    let guard = client.lock("x").lock().await.unwrap();
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(client.lock(format!("y{number}")).lock().await.unwrap());
    }
    eventually(SOON, "each was renewed in time", async || {
        client.stats().totals.renewals.renewed > 21
    })
    .await;
    server.stop();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    for other in &others {
        within(SOON, other.lost()).await;
    }
    server.cont();
    let addr = server.addr().to_string();
    told.of("renewals that failed", |event| {
        matches!(event, Event::RenewalFailed { left, holds: 1.., server, error, .. }
            if *left < lease && *server == addr && error.is_io())
    })
    .await;
    let reports = told.count(|event| matches!(event, Event::RenewalFailed { .. }));
    assert_eq!(
        reports, 1,
        "one line for all holds, and none after their loss"
    );
    told.of("the loss", |event| {
        matches!(event, Event::Lost { reason: LostReason::Expired, held, .. } if *held > lease / 2)
    })
    .await;
    let renewals = client.stats().totals.renewals;
    assert!(renewals.failed > 0 && renewals.least_left_percent.is_some());
    assert!(client.stats().totals.script_errors > 0);
}

/// All tests of a process have one table of groups, and each name stays in it.
#[tokio::test]
async fn the_first_group_over_the_limit_is_reported_once() {
    if !is_alone() {
        return alone("observe::observed::the_first_group_over_the_limit_is_reported_once");
    }
    let (_server, told, client) = observed(LONG).await;
    let name = |numbers: std::ops::Range<u32>| {
        numbers.for_each(|number| drop(client.lock("x").group(&format!("g{number}"))));
    };
    // Events come in order.
    let later = async |lock: &str| {
        let (handle, what) = (client.lock(lock), format!("the end of {lock}"));
        handle.lock().await.unwrap().forget();
        assert!(handle.force_unlock().await.unwrap());
        let is_it =
            |event: &Event<'_>| matches!(event, Event::Forced { lock: of, .. } if of == lock);
        told.of(&what, is_it).await;
    };
    let is_it = |event: &Event<'_>| matches!(event, Event::TooManyGroups { .. });
    name(0..64);
    later("a").await;
    assert_eq!(told.count(is_it), 0);
    name(0..70);
    later("b").await;
    let first =
        |event: &Event<'_>| matches!(event, Event::TooManyGroups { group, .. } if group == "g64");
    assert_eq!((told.count(is_it), told.count(first)), (1, 1));
}

/// The user may acquire but not release, and no caller waits for the release of a dropped guard.
#[tokio::test]
async fn a_release_that_is_refused_in_the_background() {
    let server = Server::start();
    let acl = "ACL SETUSER weak on >pass ~* &* +@all -hdel -del -unlink -hincrby";
    command(&server, &acl.split(' ').collect::<Vec<_>>()).await;
    let told = Told::default();
    let url = format!("redis://weak:pass@{}/", server.addr());
    let client = told.client(&url, LONG).await;
    drop(client.lock("x").lock().await.unwrap());
    told.of("the refusal", |event| {
        matches!(event, Event::ReleaseFailed { lock: Some(lock), error, .. }
            if lock == "x" && error.is_denied())
    })
    .await;
    assert_eq!(client.stats().totals.background_failures, 1);
    assert!(client.lock("x").is_locked().await.unwrap());
}

async fn a_call_that_waits_for_long<P: Primitive>() {
    let (server, told, client) = observed(LONG).await;
    let guard = P::rival(&client, "x").lock().await.unwrap();
    let other = told.client(&server.url(), LONG).await;
    let waiter = lockset_testkit::spawn({
        let lock = P::of(&other, "x");
        async move { lock.lock().await.unwrap() }
    });
    told.of("who is in the way", |event| {
        matches!(event, Event::LongWait { lock, waited, busy: Some(busy), waiters: 1, .. }
            if lock == "x" && *waited >= Duration::from_secs(1)
                && busy.holder.as_deref() == Some(guard.holder_id()))
    })
    .await;
    guard.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    assert_eq!(
        told.count(|event| matches!(event, Event::LongWait { .. })),
        1
    );
}

impl Told {
    /// The places of the long waits: those at the server last, each in the order of its number.
    fn places(&self) -> Vec<Place> {
        let events = self.0.lock().unwrap();
        let places = events.iter().filter_map(|event| match event {
            Event::LongWait { place, .. } => Some(place.expect("it is known")),
            _ => None,
        });
        let mut places: Vec<_> = places.collect();
        places.sort_by_key(|place| (matches!(place, Place::Server(_)), place.number()));
        places
    }

    async fn has_places(&self, places: &[Place]) {
        eventually(SOON, "all of them are reported", async || {
            self.places().len() >= places.len()
        })
        .await;
        assert_eq!(self.places(), places);
    }
}

/// The place of the last of so many waiters for a lock, which alone reports its wait.
async fn place_of_the_last<P: Primitive>(
    told: &Told,
    clients: [&Client; 2],
    name: &str,
    last: usize,
) {
    let [client, other] = clients;
    let guard = P::rival(client, name).lock().await.unwrap();
    let mut waiters = Vec::new();
    for count in 1..=last {
        let lock = P::of(other, name);
        let lock = if count < last {
            lock.report_wait_after(LONG)
        } else {
            lock
        };
        waiters.push(lockset_testkit::spawn(async move {
            lock.lock().await.unwrap().release().await.unwrap();
        }));
        eventually(SOON, "it waits", async || other.stats().waiters == count).await;
        if P::QUEUES_AT_SERVER {
            let queue = client.fair_lock(name);
            eventually(SOON, "it has a place", async || {
                queue.waiters().await.unwrap().len() == count
            })
            .await;
        }
    }
    let queue = match P::QUEUES_AT_SERVER {
        true => Place::Server,
        false => Place::Client,
    };
    let places: Vec<Place> = (1..=last).map(queue).collect();
    told.has_places(&places).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap();
    }
}

async fn places_of_long_waits<P: Primitive>() {
    let (server, told, client) = observed(LONG).await;
    let other = told.client(&server.url(), LONG).await;
    for last in 1..=3 {
        place_of_the_last::<P>(&told, [&client, &other], &format!("x{last}"), last).await;
    }
}

/// Thirty tasks wait for one lock: one event says so, and the server is asked once who holds it.
async fn many_long_waits_are_one_report<P: Primitive>() {
    let (server, told, client) = observed(LONG).await;
    let guard = P::rival(&client, "x").lock().await.unwrap();
    let other = told.client(&server.url(), LONG).await;
    let waiters: Vec<_> = (0..30)
        .map(|_| {
            let lock = P::of(&other, "x");
            lockset_testkit::spawn(
                async move { lock.lock().await.unwrap().release().await.unwrap() },
            )
        })
        .collect();
    eventually(SOON, "all wait", async || other.stats().waiters == 30).await;
    told.of("one report about all of them", |event| {
        matches!(event, Event::LongWait { lock, waiters: 30, .. } if lock == "x")
            && event
                .to_string()
                .starts_with("30 calls wait for lock \"x\", the longest for ")
    })
    .await;
    // Long after the last of them has waited for a second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap();
    }
    let reports = told.count(|event| matches!(event, Event::LongWait { .. }));
    assert_eq!(reports, 1);
}

for_every_primitive!("current_thread": a_call_that_waits_for_long places_of_long_waits
    many_long_waits_are_one_report);
for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_call_that_waits_for_long places_of_long_waits many_long_waits_are_one_report
}

/// The server's queue has the waiters of all clients. Otherwise each client has its own queue.
#[tokio::test]
async fn a_place_at_the_server_counts_other_clients() {
    let (server, first, client) = observed(LONG).await;
    let second = Told::default();
    let other = second.client(&server.url(), LONG).await;
    // The waits of one client for one lock are reported together.
    let last = first.client(&server.url(), LONG).await;
    let locks = [
        client.fair_lock("x"),
        other.fair_lock("x"),
        last.fair_lock("x"),
    ];
    let plain = [client.lock("y"), other.lock("y")];
    let fair_guard = locks[0].lock().await.unwrap();
    let guard = plain[0].lock().await.unwrap();
    let mut waiters = Vec::new();
    for (before, lock) in locks.iter().enumerate() {
        let lock = lock.clone();
        waiters.push(lockset_testkit::spawn(async move {
            lock.lock().await.unwrap().release().await.unwrap();
        }));
        eventually(SOON, "it has a place", async || {
            locks[0].waiters().await.unwrap().len() == before + 1
        })
        .await;
    }
    for lock in plain {
        waiters.push(lockset_testkit::spawn(async move {
            lock.lock().await.unwrap().release().await.unwrap();
        }));
    }
    first
        .has_places(&[Place::Client(1), Place::Server(1), Place::Server(3)])
        .await;
    second
        .has_places(&[Place::Client(1), Place::Server(2)])
        .await;
    fair_guard.release().await.unwrap();
    guard.release().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap();
    }
}

#[tokio::test]
async fn connections_that_break() {
    let (server, told, client) = observed(LONG).await;
    cycle(&client.lock("x")).await;
    assert_eq!(client.stats().totals.reconnects.total(), 0);
    command(
        &server,
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    )
    .await;
    cycle(&client.lock("x")).await;
    let addr = server.addr().to_string();
    told.of("the new connection", |event| {
        matches!(event, Event::Reconnected { server, lane: "command", .. } if *server == addr)
    })
    .await;
    assert_eq!(client.stats().totals.reconnects.command, 1);
}

/// After a reconnect to a server that may have lost data, all holds are checked, and the losses
/// reported.
#[tokio::test]
async fn a_reconnect_to_a_different_server() {
    // It does not end while the server starts.
    let (server, told, client) = observed(LEASE * 5).await;
    let guard = client.lock("x").lock().await.unwrap();
    server.restart();
    within(SOON, guard.lost()).await;
    told.of("the check", |event| matches!(event, Event::Failover { .. }))
        .await;
    drop(guard);
}

#[tokio::test]
async fn a_lock_that_is_freed_by_force() {
    let (_server, told, client) = observed(LONG).await;
    let guard = client.lock("x").lock().await.unwrap();
    assert!(client.lock("x").force_unlock().await.unwrap());
    told.of(
        "the force",
        |event| matches!(event, Event::Forced { lock, .. } if lock == "x"),
    )
    .await;
    drop(guard);
}

/// Reports who took the lock away and why: at the next renewal, or at an earlier release.
#[tokio::test]
async fn why_an_operator_took_a_lock_away() {
    let (server, told, client) = observed(LEASE * 3).await;
    let operator = Client::connect(&server.url()).await.unwrap();
    let is_told = |name: &'static str, id: String, why: &'static str| {
        let told = told.clone();
        async move {
            told.of(why, |event| {
                matches!(event, Event::Freed { lock, holder, reason, .. }
                    if lock == name && *holder == id && reason == why)
            })
            .await;
        }
    };
    let first = client.lock("forced").lock().await.unwrap();
    let lock = operator.lock("forced");
    let forced = lock.force_unlock_because("the host is gone").await;
    assert!(forced.unwrap());
    assert_eq!(within(SOON, first.lost()).await, LostReason::Revoked);
    is_told("forced", first.holder_id().to_owned(), "the host is gone").await;

    let reader = client.rw_lock("read").read().await.unwrap();
    let readers = operator.rw_lock("read").read_side();
    assert!(readers.force_unlock_because("a new format").await.unwrap());
    assert_eq!(within(SOON, reader.lost()).await, LostReason::Revoked);
    is_told("read", reader.holder_id().to_owned(), "a new format").await;

    // This hold is not renewed, so only the release finds the loss.
    let queued = client
        .fair_lock("one")
        .fixed_lease(LONG)
        .lock()
        .await
        .unwrap();
    let id = queued.holder_id().to_owned();
    let evicted = operator
        .fair_lock("one")
        .release_holder_because(&id, "by id")
        .await;
    assert!(evicted.unwrap());
    assert!(queued.release().await.unwrap_err().is_not_held());
    is_told("one", id, "by id").await;

    // Long reasons are cut after a number of bytes, never within a character.
    let long: String = std::iter::repeat_n('ß', 1_000).collect();
    let guard = client.lock("long").lock().await.unwrap();
    assert!(
        operator
            .lock("long")
            .force_unlock_because(&long)
            .await
            .unwrap()
    );
    within(SOON, guard.lost()).await;
    told.of("the beginning", |event| {
        matches!(event, Event::Freed { lock, reason, .. }
            if lock == "long" && long.starts_with(&**reason) && reason.len() == 1_024)
    })
    .await;
    // The stored reasons expire at the server.
    let kept = command(&server, &["KEYS", "lockset_client:*:freed:*"]).await;
    let kept: Vec<String> = redis::from_redis_value(kept).unwrap();
    assert_eq!(kept.len(), 4);
    for key in kept {
        let left = command(&server, &["PTTL", &key]).await;
        let left: i64 = redis::from_redis_value(left).unwrap();
        assert!((1..=3_600_000).contains(&left), "{key}: {left}");
    }
    drop((first, reader, guard));
    idle(&client).await;
    let freed = |event: &Event<'_>| matches!(event, Event::Freed { .. });
    assert_eq!(told.count(freed), 4, "each is reported once");
}

/// Neither the operator nor the holder may access the key of the reason: the lock is still freed
/// and the loss reported.
#[tokio::test]
async fn a_reason_that_cannot_be_stored_delays_no_caller() {
    let server = Server::start();
    let acl = "ACL SETUSER weak on >pass resetkeys ~x &* +@all";
    command(&server, &acl.split(' ').collect::<Vec<_>>()).await;
    let (told, url) = (
        Told::default(),
        format!("redis://weak:pass@{}/", server.addr()),
    );
    let client = told.client(&url, LEASE * 3).await;
    let operator = Client::connect(&url).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    assert!(
        operator
            .lock("x")
            .force_unlock_because("nobody learns it")
            .await
            .unwrap()
    );
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    told.of(
        "the loss",
        |event| matches!(event, Event::Lost { lock, .. } if lock == "x"),
    )
    .await;
    drop(guard);
    idle(&client).await;
    assert_eq!(told.count(|event| matches!(event, Event::Freed { .. })), 0);
}
