//! A random mix of all kinds on a few names, with calls dropped at any moment and killed
//! connections: every leftover expires, and clients that continue leave none.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockset::{Client, Error, Member, MultiLock};
use lockset_testkit::{Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::failures::faults::kill_connections;
use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, client, idle, nothing_left, patient_client, waiting};

/// Short, so that timeouts derived from the lease are reached often.
const LEASE: Duration = Duration::from_millis(150);

/// How long the mix runs. A longer run finds more: set `LOCKSET_MIX_SECONDS`.
const MIX: Duration = Duration::from_secs(3);

fn span() -> Duration {
    let seconds = std::env::var("LOCKSET_MIX_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map_or(MIX, Duration::from_secs)
}

/// A reentrant lock, two fair locks and a read-write lock.
type Names = [String; 4];

/// A call that is dropped at some poll or after some time, or driven to its end.
async fn some_of<F: Future>(call: F, random: &mut Rng) -> Option<F::Output> {
    let polls = random.usize(1..6);
    match random.u8(0..4) {
        0 => poll_times(call, (polls, Duration::ZERO)).await,
        1 => poll_times(call, (polls, Duration::from_millis(random.u64(0..20)))).await,
        2 => {
            let moment = Duration::from_micros(random.u64(0..30_000));
            tokio::time::timeout(moment, call).await.ok()
        }
        _ => Some(call.await),
    }
}

/// Accepts the errors that killed connections cause.
fn expected(error: &Error) {
    let is_expected = error.is_io() || error.is_not_held();
    assert!(is_expected, "{error}");
}

async fn visit<G: Guard>(got: Option<lockset::Result<Option<G>>>, random: &mut Rng) {
    let guard = match got {
        Some(Ok(Some(guard))) => guard,
        Some(Err(error)) => return expected(&error),
        Some(Ok(None)) | None => return,
    };
    if random.u8(0..4) == 0 {
        tokio::time::sleep(Duration::from_millis(random.u64(0..8))).await;
    }
    match random.u8(0..3) {
        0 => drop(guard),
        1 => drop(some_of(guard.release(), random).await),
        _ => {
            if let Err(error) = guard.release().await {
                expected(&error);
            }
        }
    }
}

async fn take<P: Primitive>(lock: P, random: &mut Rng) {
    let wait = Duration::from_millis(random.u64(0..60));
    let got = match random.u8(0..4) {
        0 => some_of(lock.try_lock(), random).await,
        1 => some_of(lock.try_lock_for(wait), random).await,
        _ => some_of(lock.lock(), random).await.map(|got| got.map(Some)),
    };
    visit(got, random).await;
}

/// Some of the names in any order, each with its kind.
fn some_members(client: &Client, names: &Names, random: &mut Rng) -> MultiLock {
    let [plain, fair, second, shared] = names;
    let mut members = vec![
        Member::from(client.lock(plain)),
        Member::from(client.fair_lock(fair)),
    ];
    if random.bool() {
        members.push(client.fair_lock(second).into());
    }
    match random.u8(0..3) {
        0 => members.push(client.rw_lock(shared).read_side().into()),
        1 => members.push(client.rw_lock(shared).write_side().into()),
        _ => {}
    }
    random.shuffle(&mut members);
    MultiLock::new(members).expect("different names")
}

async fn mix(client: Client, names: Names, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = Rng::with_seed(seed);
    let [plain, fair, second, shared] = &names;
    while !stop.load(Ordering::Relaxed) {
        match random.u8(0..9) {
            0 => take(client.lock(plain), &mut random).await,
            1 => take(client.fair_lock(fair), &mut random).await,
            2 => take(client.fair_lock(second).fenced(), &mut random).await,
            3 => take(client.rw_lock(shared).read_side(), &mut random).await,
            4 => take(client.rw_lock(shared).write_side(), &mut random).await,
            _ => {
                let lock = some_members(&client, &names, &mut random);
                let wait = Duration::from_millis(random.u64(0..60));
                let got = if random.bool() {
                    some_of(lock.try_lock_for(wait), &mut random).await
                } else {
                    some_of(lock.lock(), &mut random)
                        .await
                        .map(|got| got.map(Some))
                };
                visit(got, &mut random).await;
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mix_of_all_kinds_leaves_nothing() {
    let server = Server::start();
    let name = unique_name("mix");
    let names: Names = ["plain", "fair", "second", "shared"].map(|kind| format!("{name}:{kind}"));
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let client = Client::builder(&server.url())
            .lease(LEASE)
            .build()
            .await
            .unwrap();
        for task in 0..8 {
            let work = mix(
                client.clone(),
                names.clone(),
                number * 100 + task,
                Arc::clone(&stop),
            );
            tasks.push(lockset_testkit::spawn(work));
        }
        clients.push(client);
    }
    let began = Instant::now();
    let mut random = Rng::with_seed(4);
    while began.elapsed() < span() {
        // Sometimes several in a row, so that retries are cut off too.
        let pause = if random.bool() { 0..10 } else { 20..200 };
        tokio::time::sleep(Duration::from_millis(random.u64(pause))).await;
        let lane = ["command", "push", "renewal", ""][random.usize(0..4)];
        kill_connections(&server, lane).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        within(Duration::from_secs(30), task).await.unwrap();
    }
    for client in &clients {
        idle(client).await;
    }
    eventually(
        SOON,
        "no hold, no place and no waiter is left",
        async || {
            let mut keys = server.keys().await;
            keys.retain(|key| !key.starts_with("redisson_lock_token"));
            keys.is_empty()
        },
    )
    .await;
    nothing_left(&server).await;
}

/// Every key that exists while a client waits expires if that client dies.
async fn keys_of_a_waiter_expire<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let guard = P::rival(&theirs, &name).lock().await.unwrap();
    let lock = P::of(&ours, &name);
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let lock = lock.clone();
            lockset_testkit::spawn(async move { lock.lock().await?.release().await })
        })
        .collect();
    waiting(&ours, 2).await;
    let mut admin = server.admin().await;
    let deadline = Instant::now() + ours_polls();
    while Instant::now() < deadline {
        for key in server.keys().await {
            let mut pttl = redis::cmd("PTTL");
            let left: i64 = pttl.arg(&key).query_async(&mut admin).await.unwrap();
            assert_ne!(left, -1, "{key} is there for ever");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap().unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// Long enough for each waiter to poll several times.
fn ours_polls() -> Duration {
    Duration::from_millis(600)
}

for_every_primitive! {"multi_thread":
    keys_of_a_waiter_expire
}
