//! Crowds of tasks that hand a lock off to each other, within one client and between two.
//!
//! Whatever ends a task or the lock, two exclusive holders are never inside together, and nothing
//! is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lockset::{Client, FencingToken};
use lockset_testkit::{Redisson, Server, eventually, unique_name, within};
use parking_lot::Mutex;

use crate::engine::cancellation::poll_times;
use crate::failures::faults::{delete, kill_connections};
use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{LEASE, SOON, hold_counts, idle, nothing_left, patient_client};
use crate::world::{World, for_every_world};

/// An upper bound for a crowd.
const CROWD: Duration = Duration::from_secs(60);

/// A client with short leases whose calls may take longer than a busy machine delays the server's
/// answers.
async fn client(url: &str) -> Client {
    let builder = Client::builder(url).lease(LEASE).give_up_after(SOON);
    builder.build().await.expect("a client")
}

/// The guards that tasks currently have.
#[derive(Default)]
struct Inside {
    guards: Mutex<Vec<Seen>>,
    entered: AtomicU64,
}

struct Seen {
    number: u64,
    is_shared: bool,
    is_lost: Box<dyn Fn() -> bool + Send>,
}

/// Marks a task as inside. Dropped before its guard.
struct Mark {
    inside: Arc<Inside>,
    number: u64,
}

impl Inside {
    fn enter<L: Primitive>(self: &Arc<Self>, guard: &Arc<L::Guard>) -> Mark {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let its = Arc::clone(guard);
        self.guards.lock().push(Seen {
            number,
            is_shared: L::IS_SHARED,
            is_lost: Box::new(move || its.is_lost()),
        });
        self.check();
        Mark {
            inside: Arc::clone(self),
            number,
        }
    }

    /// If a guard exists while another of this client was granted the lock, the older guard must
    /// already be lost.
    fn check(&self) {
        let guards = self.guards.lock();
        let held: Vec<_> = guards.iter().filter(|guard| !(guard.is_lost)()).collect();
        let alone = held.iter().filter(|guard| !guard.is_shared).count();
        assert!(
            alone == 0 || held.len() == 1,
            "{} inside, {alone} of them alone",
            held.len()
        );
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut guards = self.inside.guards.lock();
        let at = guards.iter().position(|seen| seen.number == self.number);
        let gone = at.map(|at| guards.swap_remove(at));
        drop(guards);
        drop(gone);
    }
}

/// The options of the calls of a crowd.
fn on_terms<L: Primitive>(lock: L, nth: usize) -> L {
    match nth % 6 {
        3 => lock.fixed_lease(LEASE * 10),
        4 => lock.fenced(),
        5 => lock.fixed_lease(LEASE * 10).fenced(),
        _ => lock,
    }
}

/// One acquire and release in one of several ways, or a failed attempt.
async fn a_visit<L: Primitive>(
    lock: &L,
    inside: &Arc<Inside>,
    random: &mut Rng,
) -> lockset::Result<()> {
    let polls = (random.usize(1..8), Duration::ZERO);
    let moment = Duration::from_micros(random.u64(0..2_000));
    let got = match random.u8(0..8) {
        0 => match poll_times(lock.lock(), polls).await {
            Some(got) => Some(got?),
            None => None,
        },
        1 => match tokio::time::timeout(moment, lock.lock()).await {
            Ok(got) => Some(got?),
            Err(_) => None,
        },
        2 => lock.try_lock_for(moment).await?,
        3 => lock.try_lock().await?,
        _ => Some(lock.lock().await?),
    };
    let Some(guard) = got else { return Ok(()) };
    let guard = Arc::new(guard);
    let mark = inside.enter::<L>(&guard);
    for _ in 0..random.u8(0..3) {
        tokio::task::yield_now().await;
    }
    if random.u8(0..20) == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    inside.check();
    let way_out = random.u8(0..6);
    if way_out == 0 {
        let panicked = lockset_testkit::spawn(async move {
            let (_guard, _mark) = (guard, mark);
            tokio::task::yield_now().await;
            std::panic::resume_unwind(Box::new("in the critical section"));
        });
        assert!(panicked.await.unwrap_err().is_panic());
        return Ok(());
    }
    let inner = match way_out {
        1 => Some(guard.reenter().await?),
        _ => None,
    };
    inside.check();
    drop(mark);
    drop(inner);
    let guard = Arc::into_inner(guard).expect("no other reference is left");
    match way_out {
        2 => drop(guard),
        3 => poll_times(guard.release(), (1, Duration::ZERO))
            .await
            .unwrap_or(Ok(()))?,
        _ => guard.release().await?,
    }
    Ok(())
}

/// Spawns tasks that acquire and release until `stop` is set or an error `ends` them.
fn crowd<P: Primitive>(
    client: &Client,
    name: &str,
    tasks: usize,
    (inside, stop): (&Arc<Inside>, &Arc<AtomicBool>),
    is_expected: impl Fn(&lockset::Error) -> bool + Copy + Send + 'static,
) -> Vec<tokio::task::JoinHandle<u64>> {
    async fn visits<L: Primitive>(
        lock: L,
        (inside, stop): (Arc<Inside>, Arc<AtomicBool>),
        nth: usize,
        is_expected: impl Fn(&lockset::Error) -> bool,
    ) -> u64 {
        let mut random = Rng::with_seed(nth as u64);
        let mut visits = 0;
        while !stop.load(Ordering::Relaxed) {
            match a_visit(&lock, &inside, &mut random).await {
                Ok(()) => visits += 1,
                Err(error) if error.is_closed() && is_expected(&error) => break,
                Err(error) => assert!(is_expected(&error), "{error}"),
            }
            tokio::task::yield_now().await;
        }
        visits
    }
    (0..tasks)
        .map(|nth| {
            let shared = (Arc::clone(inside), Arc::clone(stop));
            match nth % 2 {
                0 => {
                    let lock = on_terms(P::of(client, name), nth / 2);
                    lockset_testkit::spawn(visits(lock, shared, nth, is_expected))
                }
                _ => {
                    let lock = on_terms(P::rival(client, name), nth / 2);
                    lockset_testkit::spawn(visits(lock, shared, nth, is_expected))
                }
            }
        })
        .collect()
}

async fn ended(tasks: Vec<tokio::task::JoinHandle<u64>>) -> u64 {
    let mut visits = 0;
    for task in tasks {
        visits += within(CROWD, task).await.unwrap();
    }
    visits
}

/// Cancellation at any poll, panics, re-entries and all ways to release, in two clients at once.
async fn tasks_that_end_in_the_middle<P: Primitive, W: World>() {
    let world = W::start().await;
    let (ours, theirs) = (world.patient_client().await, world.patient_client().await);
    let name = world.name();
    let (inside, stop) = (Arc::default(), Arc::default());
    let never = |_: &lockset::Error| false;
    let mut tasks = crowd::<P>(&ours, &name, 24, (&inside, &stop), never);
    tasks.extend(crowd::<P>(&theirs, &name, 12, (&inside, &stop), never));
    tokio::time::sleep(Duration::from_millis(700)).await;
    let many = async || inside.entered.load(Ordering::Relaxed) > 50;
    eventually(CROWD, "many were inside", many).await;
    stop.store(true, Ordering::Relaxed);
    assert!(ended(tasks).await > 0);
    idle(&ours).await;
    idle(&theirs).await;
    world.nothing_left(&name).await;
    let next = P::rival(&theirs, &name).try_lock().await.unwrap();
    next.expect("it is free").release().await.unwrap();
}

/// The server never has more than one holder of an exclusive lock.
async fn the_server_has_one_holder<P: Primitive>() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let (inside, stop) = (Arc::default(), Arc::default());
    let tasks = crowd::<P>(&ours, &name, 24, (&inside, &stop), |_| false);
    let names = P::names(&name);
    let mut holders = 0;
    for _ in 0..200 {
        let counts = hold_counts(&server, &names).await;
        if !P::IS_SHARED && names.len() == 1 {
            assert!(counts.len() <= 1, "{counts:?}");
        }
        holders += counts.len();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(ended(tasks).await > 0 && holders > 0);
    idle(&ours).await;
    nothing_left(&server).await;
}

/// The lock is force-unlocked, deleted, disconnected and restarted during hand-offs.
async fn faults_during_hand_offs<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("lock");
    let (inside, stop) = (Arc::default(), Arc::default());
    let tasks = crowd::<P>(&ours, &name, 24, (&inside, &stop), |error| {
        // A lost guard reports the loss on release. Calls report a server that is down or starting.
        error.is_not_held() || error.is_io() || error.is_refused()
    });
    for round in 0..15 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        match round % 5 {
            0 => drop(P::of(&theirs, &name).force_unlock().await),
            1 => drop(P::of(&ours, &name).force_unlock().await),
            2 => delete::<P>(&server, &name).await,
            3 => {
                // The client may still be reconnecting after the restart.
                let killed = async || kill_connections(&server, "").await > 0;
                eventually(SOON, "connections are killed", killed).await;
            }
            _ => server.restart(),
        }
    }
    tokio::time::sleep(Duration::from_millis(40)).await;
    stop.store(true, Ordering::Relaxed);
    assert!(ended(tasks).await > 0);
    idle(&ours).await;
    idle(&theirs).await;
    nothing_left(&server).await;
    let next = P::rival(&theirs, &name).try_lock().await.unwrap();
    next.expect("it is free").release().await.unwrap();
}

/// Every task gets the error, and holds end with their lease at the latest.
async fn a_shutdown_during_a_handoff<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("lock");
    let (inside, stop) = (Arc::default(), Arc::default());
    let tasks = crowd::<P>(&ours, &name, 24, (&inside, &stop), |error| {
        error.is_closed() || error.is_not_held()
    });
    let many = async || inside.entered.load(Ordering::Relaxed) > 50;
    eventually(CROWD, "many were inside", many).await;
    within(SOON, ours.clone().shutdown()).await.unwrap();
    assert!(ended(tasks).await > 0);
    idle(&ours).await;
    // Fixed leases last ten times as long.
    let next = within(LEASE * 20, P::rival(&theirs, &name).lock()).await;
    next.unwrap().release().await.unwrap();
    nothing_left(&server).await;
}

/// Grants per task. A fenced multi-lock on a cluster is slow.
const ROUNDS: u64 = 10;

/// A resource that checks fencing tokens never sees an old one, with two clients.
async fn tokens_grow_across_hand_offs<P: Primitive, W: World>() {
    let world = W::start().await;
    let name = world.name();
    let seen = Arc::<Mutex<(Option<FencingToken>, u64)>>::default();
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let client = world.patient_client().await;
        for _ in 0..16 {
            let lock = P::Rival::of(&client, &name).fenced();
            let seen = Arc::clone(&seen);
            tasks.push(lockset_testkit::spawn(async move {
                for round in 0..ROUNDS {
                    let guard = lock.lock().await.unwrap();
                    let token = guard.fencing_token().expect("a token");
                    {
                        let (last, writes) = &mut *seen.lock();
                        assert!(Some(token) > *last, "{token:?} after {last:?}");
                        (*last, *writes) = (Some(token), *writes + 1);
                    }
                    tokio::task::yield_now().await;
                    let (last, _) = *seen.lock();
                    assert_eq!(last, Some(token), "no other holder is inside");
                    match round % 2 {
                        0 => guard.release().await.unwrap(),
                        _ => drop(guard),
                    }
                }
            }));
        }
        clients.push(client);
    }
    for task in tasks {
        within(CROWD, task).await.unwrap();
    }
    assert_eq!(seen.lock().1, 2 * 16 * ROUNDS);
    for client in &clients {
        idle(client).await;
    }
    world.nothing_left(&name).await;
}

/// While many tasks of a client hand the lock off, a waiter in another process waits for a few
/// slices.
async fn another_client_gets_its_turn<P: Primitive>() {
    let server = Server::start();
    let (busy, lone) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let (grants, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let crowd: Vec<_> = (0..64)
        .map(|_| pass_round(P::Rival::of(&busy, &name), (&grants, &stop)))
        .collect();
    let lock = P::of(&lone, &name);
    let mut waited = Vec::new();
    for _ in 0..20 {
        let before = grants.load(Ordering::Relaxed);
        let guard = within(SOON, lock.lock()).await.unwrap();
        waited.push(grants.load(Ordering::Relaxed) - before);
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in crowd {
        within(CROWD, task).await.unwrap();
    }
    waited.sort_unstable();
    // A slice is seventeen grants. The first two may end before the client knows of the waiter.
    assert!(waited[waited.len() / 2] <= 17 * 5, "{waited:?}");
    assert!(grants.load(Ordering::Relaxed) > 40, "both get on");
}

fn pass_round<L: Primitive>(
    lock: L,
    (grants, stop): (&Arc<AtomicU64>, &Arc<AtomicBool>),
) -> tokio::task::JoinHandle<()> {
    let (grants, stop) = (Arc::clone(grants), Arc::clone(stop));
    lockset_testkit::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let guard = lock.lock().await.unwrap();
            grants.fetch_add(1, Ordering::Relaxed);
            guard.release().await.unwrap();
        }
    })
}

/// Redisson waits for a message, too, and for the remaining time.
#[tokio::test(flavor = "multi_thread")]
async fn redisson_gets_its_turn() {
    let server = Server::start();
    let busy = patient_client(&server.url()).await;
    let peer = Redisson::connect(&server).await;
    let name = unique_name("lock");
    let (grants, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let crowd: Vec<_> = (0..64)
        .map(|_| pass_round(busy.lock(&name), (&grants, &stop)))
        .collect();
    let mut waited = Vec::new();
    for thread in 1..=20 {
        let before = grants.load(Ordering::Relaxed);
        assert!(peer.lock(&name, thread, LEASE * 30, SOON).await);
        waited.push(grants.load(Ordering::Relaxed) - before);
        assert_eq!(peer.lock_release(&name, thread).await, Some(1));
    }
    stop.store(true, Ordering::Relaxed);
    for task in crowd {
        within(CROWD, task).await.unwrap();
    }
    waited.sort_unstable();
    assert!(waited[waited.len() / 2] <= 17 * 5, "{waited:?}");
}

for_every_world! {"multi_thread":
    tasks_that_end_in_the_middle
    tokens_grow_across_hand_offs;
    of_one_name:
}

for_every_primitive! {"multi_thread":
    the_server_has_one_holder
    faults_during_hand_offs
    a_shutdown_during_a_handoff
    another_client_gets_its_turn
}
