//! The promises of every primitive.
//!
//! Other callers, who must wait while the lock is held, use [`Primitive::rival`].

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockset::{Client, LostReason, Owner};
use lockset_testkit::{eventually, within};

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{BY_MESSAGE, LEASE, SOON, idle, took_less, waiting};
use crate::world::{World, for_every_world};

/// A world, two unrelated clients, and a name.
async fn two_clients<W: World>() -> (W, Client, Client, String) {
    let world = W::start().await;
    let ours = world.patient_client().await;
    let theirs = world.patient_client().await;
    let name = world.name();
    (world, ours, theirs, name)
}

async fn excludes_others_until_released<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let (lock, same) = (P::of(&ours, &name), P::rival(&ours, &name));
    let (seen, other) = (P::of(&theirs, &name), P::rival(&theirs, &name));
    let guard = lock.lock().await.unwrap();
    assert_eq!(guard.name(), name);
    assert!(other.try_lock().await.unwrap().is_none(), "another client");
    assert!(same.try_lock().await.unwrap().is_none(), "another call");
    assert!(seen.is_locked().await.unwrap());
    guard.release().await.unwrap();
    assert!(!seen.is_locked().await.unwrap());
    let guard = other.try_lock().await.unwrap().expect("it is free");
    assert!(lock.try_lock().await.unwrap().is_none(), "the other way");
    guard.release().await.unwrap();
    world.nothing_left(&name).await;
    idle(&ours).await;
    idle(&theirs).await;
}

async fn an_owner_enters_again<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let owner = Owner::new();
    let lock = P::of(&ours, &name).owner(&owner);
    let first = lock.lock().await.unwrap();
    let second = within(SOON, lock.lock()).await.unwrap();
    let third = first.reenter().await.unwrap();
    let fourth = lock.try_lock().await.unwrap().expect("its own lock");
    assert_eq!(first.hold_count(), 4);
    assert_eq!(*fourth.owner(), owner);
    let stranger = P::rival(&ours, &name).owner(&Owner::new());
    for guard in [first, second, third] {
        guard.release().await.unwrap();
        assert!(stranger.try_lock().await.unwrap().is_none());
        assert!(P::rival(&theirs, &name).try_lock().await.unwrap().is_none());
    }
    assert_eq!(fourth.hold_count(), 1);
    fourth.release().await.unwrap();
    world.nothing_left(&name).await;
    idle(&ours).await;
}

/// The branches of one `join!` share a task, but must not share a lock.
async fn branches_of_one_task_exclude_each_other<P: Primitive, W: World>() {
    async fn branch(lock: impl Primitive, inside: &Cell<u32>) {
        for _ in 0..20 {
            let guard = lock.lock().await.unwrap();
            inside.set(inside.get() + 1);
            assert_eq!(inside.get(), 1, "two branches are inside");
            tokio::task::yield_now().await;
            inside.set(inside.get() - 1);
            guard.release().await.unwrap();
        }
    }
    let (_world, ours, _, name) = two_clients::<W>().await;
    let rival = P::rival(&ours, &name);
    let inside = Cell::new(0);
    within(SOON, async {
        tokio::join!(
            branch(P::of(&ours, &name), &inside),
            branch(rival.clone(), &inside),
            branch(rival, &inside),
        )
    })
    .await;
}

async fn a_task_of_the_same_owner_enters_from_the_queue<P: Primitive, W: World>() {
    let (_world, ours, theirs, name) = two_clients::<W>().await;
    let owner = Owner::new();
    let held = P::rival(&theirs, &name).lock().await.unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let lock = P::of(&ours, &name).owner(&owner);
            lockset_testkit::spawn(async move { lock.lock().await.unwrap() })
        })
        .collect();
    waiting(&ours, 4).await;
    held.release().await.unwrap();
    let mut guards = Vec::new();
    for task in tasks {
        // None is released: each task must re-enter another task's hold.
        guards.push(within(SOON, task).await.unwrap());
    }
    // Holders of a shared lock may enter as separate holds. So may re-entries of a lock whose names
    // are acquired one by one.
    let one_by_one = W::HAS_SLOTS && P::names(&name).len() > 1;
    if !P::IS_SHARED && !one_by_one {
        assert_eq!(guards[0].hold_count(), 4);
    }
}

async fn a_waiter_gets_it_on_release<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    hands_over(
        &world,
        &name,
        P::of(&ours, &name),
        P::rival(&theirs, &name),
        &theirs,
    )
    .await;
    hands_over(
        &world,
        &name,
        P::rival(&theirs, &name),
        P::of(&ours, &name),
        &ours,
    )
    .await;
}

/// A waiter is granted the lock by the message of its release: the timers of these clients would take a second.
async fn hands_over(
    world: &impl World,
    name: &str,
    from: impl Primitive,
    to: impl Primitive,
    who_waits: &Client,
) {
    let guard = from.lock().await.unwrap();
    let waiter = lockset_testkit::spawn(async move { to.lock().await.unwrap() });
    world.listening(name).await;
    waiting(who_waits, 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    took_less(released, BY_MESSAGE);
    guard.release().await.unwrap();
    world.nothing_left(name).await;
}

async fn waiters_of_a_client_are_served_in_order<P: Primitive, W: World>() {
    let (world, ours, _, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (lock, order) = (P::rival(&ours, &name), Arc::clone(&order));
        tasks.push(lockset_testkit::spawn(async move {
            let guard = lock.lock().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        waiting(&ours, number + 1).await;
        if P::QUEUES_AT_SERVER {
            world.queued(&name, number + 1).await;
        }
    }
    guard.release().await.unwrap();
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

async fn a_timed_wait_ends_and_leaves_nothing<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let wait = Duration::from_millis(150);
    for waiting_client in [&theirs, &ours] {
        let started = Instant::now();
        let got = within(SOON, P::rival(waiting_client, &name).try_lock_for(wait)).await;
        assert!(got.unwrap().is_none());
        assert!(started.elapsed() >= wait);
    }
    let other = P::rival(&theirs, &name);
    let none = other.try_lock_for(Duration::ZERO).await;
    assert!(none.unwrap().is_none());
    idle(&theirs).await;
    guard.release().await.unwrap();
    let guard = other.try_lock_for(wait).await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    world.nothing_left(&name).await;
}

async fn a_timed_wait_gets_it_in_time<P: Primitive, W: World>() {
    let (_world, ours, theirs, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let other = P::rival(&theirs, &name);
    let waiter = lockset_testkit::spawn(async move { other.try_lock_for(SOON).await.unwrap() });
    waiting(&theirs, 1).await;
    drop(guard);
    assert!(within(SOON, waiter).await.unwrap().is_some());
}

async fn a_renewed_lease_lasts_and_a_release_is_silent<P: Primitive, W: World>() {
    let world = W::start().await;
    let (ours, theirs) = (world.client().await, world.client().await);
    let name = world.name();
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    let loss = tokio::time::timeout(LEASE * 3, async {
        tokio::join!(guard.lost(), inner.release())
    });
    assert!(loss.await.is_err(), "neither renewal nor release is a loss");
    assert!(!guard.is_lost() && guard.remaining() > Duration::ZERO);
    assert!(P::rival(&theirs, &name).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    world.nothing_left(&name).await;
}

async fn a_fixed_lease_ends_with_a_loss<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let started = Instant::now();
    let guard = P::of(&ours, &name).fixed_lease(LEASE).lock().await.unwrap();
    let local_end = Instant::now() + guard.remaining();
    let server_end = first_end(&world, &P::names(&name)).await;
    assert!(local_end < server_end, "the local deadline is the earlier");
    let other = P::rival(&theirs, &name);
    let waiter = lockset_testkit::spawn(async move { other.lock().await.unwrap() });
    let (reason, work) = within(SOON, async {
        tokio::join!(guard.lost(), guard.run(std::future::pending::<()>()))
    })
    .await;
    assert_eq!(reason, LostReason::Expired);
    assert_eq!(work.unwrap_err().reason(), LostReason::Expired);
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
    let theirs_now = within(SOON, waiter).await.unwrap();
    assert!(started.elapsed() >= LEASE, "but not before the server's");
    assert!(guard.reenter().await.expect_err("lost").is_not_held());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_not_held());
    assert!(names_it::<P>(&name, error.lock_name()), "{error}");
    assert!(
        !theirs_now.is_lost(),
        "a late release affects no other holder"
    );
    theirs_now.release().await.unwrap();
    world.nothing_left(&name).await;
    idle(&ours).await;
}

/// The earliest time at which one of these keys expires.
async fn first_end(world: &impl World, keys: &[String]) -> Instant {
    let mut ends = Vec::new();
    for key in keys {
        let mut admin = world.server_of(key).await.admin().await;
        let mut pttl = redis::cmd("PTTL");
        let left: u64 = pttl.arg(key).query_async(&mut admin).await.unwrap();
        ends.push(Instant::now() + Duration::from_millis(left + 1));
    }
    ends.into_iter().min().expect("a key")
}

async fn a_short_inner_lease_does_not_shorten_the_outer<P: Primitive, W: World>() {
    let (_world, ours, theirs, name) = two_clients::<W>().await;
    let owner = Owner::new();
    let outer = P::of(&ours, &name).owner(&owner).lock().await.unwrap();
    let short = P::of(&ours, &name).owner(&owner);
    let inner = short.fixed_lease(LEASE / 4).lock().await.unwrap();
    assert!(outer.remaining() > Duration::from_secs(20));
    inner.release().await.unwrap();
    assert!(outer.remaining() > Duration::from_secs(20));
    let other = P::rival(&theirs, &name);
    assert!(other.try_lock_for(LEASE / 2).await.unwrap().is_none());
    outer.release().await.unwrap();
}

async fn work_is_dropped_when_the_lock_is_force_unlocked<P: Primitive, W: World>() {
    let world = W::start().await;
    let (ours, theirs) = (world.client().await, world.client().await);
    let name = world.name();
    let guard = P::of(&ours, &name).lock().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    assert!(P::of(&theirs, &name).force_unlock().await.unwrap());
    assert!(!P::of(&theirs, &name).force_unlock().await.unwrap());
    // The next renewal finds out.
    let lost = within(SOON, guard.run(std::future::pending::<()>())).await;
    let lost = lost.unwrap_err();
    assert_eq!(lost.reason(), LostReason::Revoked);
    assert!(names_it::<P>(&name, Some(lost.lock_name())), "{lost}");
    assert_eq!(guard.lost().await, LostReason::Revoked, "and again");
    let next = P::of(&theirs, &name).try_lock().await.unwrap().unwrap();
    drop(guard);
    idle(&ours).await;
    assert!(P::of(&ours, &name).is_locked().await.unwrap());
    next.release().await.unwrap();
}

/// Not for a multi-lock: its members are force-unlocked one after another, and the first ends the
/// guard, so a waiter may acquire all members before the last is force-unlocked.
async fn force_unlock_notifies_our_own_guards_and_waiters<P: Primitive, W: World>() {
    let (_world, ours, _, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let other = P::rival(&ours, &name);
    let waiter = lockset_testkit::spawn(async move { other.lock().await.unwrap() });
    waiting(&ours, 1).await;
    assert!(P::of(&ours, &name).force_unlock().await.unwrap());
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert!(!within(SOON, waiter).await.unwrap().is_lost());
}

async fn a_dropped_guard_is_released<P: Primitive, W: World>() {
    let (world, ours, _, name) = two_clients::<W>().await;
    let lock = P::of(&ours, &name);
    for _ in 0..50 {
        drop(lock.lock().await.unwrap());
        let again = P::rival(&ours, &name).try_lock().await.unwrap();
        drop(again.expect("an attempt goes behind the release of a dropped guard"));
    }
    let panicked = lockset_testkit::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        panic!("a task that dies with its guard");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    world.nothing_left(&name).await;
    idle(&ours).await;
}

/// All guards dropped at once are released before their locks are requested again.
async fn a_burst_of_dropped_guards_is_released_first<P: Primitive, W: World>() {
    let (_world, ours, _, name) = two_clients::<W>().await;
    let names: Vec<String> = (0..500).map(|n| format!("{name}:{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(P::of(&ours, name).lock().await.unwrap());
    }
    drop(guards);
    for name in &names {
        let again = P::rival(&ours, name).try_lock().await.unwrap();
        again.expect("behind its release").release().await.unwrap();
    }
}

async fn a_guard_may_be_dropped_outside_the_runtime<P: Primitive, W: World>() {
    let (world, ours, _, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let dropped = std::thread::spawn(move || drop(guard)).join();
    assert!(dropped.is_ok(), "it panicked");
    world.nothing_left(&name).await;
}

async fn a_forgotten_guard_leaves_the_lock_to_its_lease<P: Primitive, W: World>() {
    let world = W::start().await;
    let (ours, theirs) = (world.client().await, world.client().await);
    let name = world.name();
    let started = Instant::now();
    P::of(&ours, &name).lock().await.unwrap().forget();
    idle(&ours).await;
    assert!(P::rival(&ours, &name).try_lock().await.unwrap().is_none());
    let next = within(SOON, P::rival(&theirs, &name).lock()).await.unwrap();
    assert!(started.elapsed() >= LEASE - Duration::from_millis(50));
    next.release().await.unwrap();
}

async fn a_forgotten_share_outlives_the_other_guard<P: Primitive, W: World>() {
    let (_world, ours, theirs, name) = two_clients::<W>().await;
    let guard = P::of(&ours, &name).lock().await.unwrap();
    guard.reenter().await.unwrap().forget();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert!(P::rival(&theirs, &name).try_lock().await.unwrap().is_none());
}

async fn fencing_tokens_grow_with_each_grant<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let owner = Owner::new();
    let mut last = None;
    for round in 0..20 {
        let client = if round % 2 == 0 { &ours } else { &theirs };
        let lock = P::of(client, &name).owner(&owner).fenced();
        let guard = lock.lock().await.unwrap();
        let token = guard.fencing_token();
        assert!(token.is_some() && token > last, "{token:?} after {last:?}");
        let inner = guard.reenter().await.unwrap();
        assert_eq!(inner.fencing_token(), token, "one hold, one token");
        assert_eq!(Some(inner.token().unwrap()), token);
        last = token;
        inner.release().await.unwrap();
        guard.release().await.unwrap();
        if round == 10 {
            // Tokens still grow after the server has lost all data.
            world.forget(&name).await;
        }
    }
    let plain = P::of(&ours, &name).owner(&owner).lock().await.unwrap();
    assert_eq!(plain.fencing_token(), None);
    let error = plain.token().unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let named = [plain.name(), "`.fenced()`"];
    assert!(
        named.iter().all(|part| error.to_string().contains(part)),
        "{error}"
    );
    let fenced = P::of(&ours, &name).owner(&owner).fenced();
    let inner = fenced.lock().await.unwrap();
    assert!(
        inner.fencing_token() > last,
        "a hold without a token gets one"
    );
}

async fn shutdown_ends_guards_and_waiters<P: Primitive, W: World>() {
    let (world, ours, theirs, name) = two_clients::<W>().await;
    let given_back = world.name();
    let dropped = P::of(&ours, &given_back).lock().await.unwrap();
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = P::rival(&ours, &name);
            lockset_testkit::spawn(async move { lock.lock().await.err() })
        })
        .collect();
    waiting(&ours, 3).await;
    let lock = P::of(&ours, &name);
    drop(dropped);
    within(SOON, ours.shutdown()).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Closed);
    for waiter in waiters {
        let error = within(SOON, waiter).await.unwrap().expect("an error");
        assert!(
            error.is_closed() && names_it::<P>(&name, error.lock_name()),
            "{error}"
        );
    }
    assert!(lock.try_lock().await.expect_err("closed").is_closed());
    assert!(lock.is_locked().await.unwrap_err().is_closed());
    // The other lock is free.
    assert_eq!(world.lock_keys(&name).await, P::names(&name));
    assert_eq!(world.keys(&given_back).await, Vec::<String>::new());
    assert!(P::rival(&theirs, &name).try_lock().await.unwrap().is_none());
    drop(guard);
}

async fn a_client_ends_with_its_last_handle<P: Primitive, W: World>() {
    let world = W::start().await;
    let ours = world.client().await;
    let name = world.name();
    let guard = P::of(&ours, &name).lock().await.unwrap();
    let id = world.client_id(&name).await;
    // Renewals use a separate connection.
    eventually(SOON, "it is renewed", async || {
        world.connections(&id).await >= 2
    })
    .await;
    drop(ours);
    drop(guard);
    world.nothing_left(&name).await;
    eventually(SOON, "its connections are closed", async || {
        world.connections(&id).await == 0
    })
    .await;
}

async fn a_key_prefix_keeps_names_apart<P: Primitive, W: World>() {
    let world = W::start().await;
    let plain = world.patient_client().await;
    let builder = world.builder().key_prefix("shop:");
    let prefixed = builder.build().await.unwrap();
    let name = world.name();
    let guard = P::of(&plain, &name).lock().await.unwrap();
    let other = P::rival(&prefixed, &name).try_lock().await.unwrap();
    let other = other.expect("another key");
    assert_eq!(other.name(), name);
    let by_key = format!("shop:{name}");
    assert!(P::rival(&plain, &by_key).is_locked().await.unwrap());
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

/// Lists all tests for the macros that instantiate them.
macro_rules! conformance {
    ($make:ident! $($words:tt)*) => {
        $make! {$($words)* "multi_thread":
            excludes_others_until_released
            an_owner_enters_again
            branches_of_one_task_exclude_each_other
            a_task_of_the_same_owner_enters_from_the_queue
            a_waiter_gets_it_on_release
            waiters_of_a_client_are_served_in_order
            a_timed_wait_ends_and_leaves_nothing
            a_timed_wait_gets_it_in_time
            a_renewed_lease_lasts_and_a_release_is_silent
            a_fixed_lease_ends_with_a_loss
            a_short_inner_lease_does_not_shorten_the_outer
            work_is_dropped_when_the_lock_is_force_unlocked
            a_dropped_guard_is_released
            a_burst_of_dropped_guards_is_released_first
            a_guard_may_be_dropped_outside_the_runtime
            a_forgotten_guard_leaves_the_lock_to_its_lease
            a_forgotten_share_outlives_the_other_guard
            fencing_tokens_grow_with_each_grant
            shutdown_ends_guards_and_waiters
            a_client_ends_with_its_last_handle
            a_key_prefix_keeps_names_apart;
            of_one_name:
            force_unlock_notifies_our_own_guards_and_waiters
        }
    };
}

conformance!(for_every_world!);

mod quorum_of_one {
    use super::*;
    type Here = crate::world::Alone;
    conformance!(for_every_primitive! @redlock lockset::RedlockLock, [super::Here],);
}
