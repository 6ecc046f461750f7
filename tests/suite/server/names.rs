//! `x` and `{x}` are two locks, although Redisson derives the same helper keys and channels from
//! both names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockset::{Client, Member, MultiLock};
use lockset_testkit::{Redisson, Server, eventually, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, idle, listening, nothing_left, patient_client, waiting};

/// The two names.
fn two_names() -> [String; 2] {
    let name = unique_name("lock");
    let braced = format!("{{{name}}}");
    [name, braced]
}

/// Both orders.
fn both_ways() -> [[String; 2]; 2] {
    let [plain, braced] = two_names();
    [[plain.clone(), braced.clone()], [braced, plain]]
}

async fn three_clients(server: &Server) -> [Client; 3] {
    let url = server.url();
    [
        patient_client(&url).await,
        patient_client(&url).await,
        patient_client(&url).await,
    ]
}

/// A release of one lock must not make a waiter hold the other beside its holder.
async fn a_release_of_one_does_not_hand_over_the_other<P: Primitive>() {
    let server = Server::start();
    for [this, other] in both_ways() {
        let [holder, waiter, stranger] = three_clients(&server).await;
        let held = P::rival(&holder, &this).lock().await.unwrap();
        let released = P::rival(&stranger, &other).lock().await.unwrap();
        let lock = P::of(&waiter, &this);
        let waits = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
        waiting(&waiter, 1).await;
        eventually(SOON, "it listens", async || {
            !server.pubsub_channels().await.is_empty()
        })
        .await;
        released.release().await.unwrap();
        // The other lock is free and has no waiters.
        let again = P::of(&stranger, &other).try_lock().await.unwrap();
        again.expect("it is free").release().await.unwrap();
        assert!(!waits.is_finished() && !held.is_lost());
        held.release().await.unwrap();
        let guard = within(SOON, waits).await.unwrap();
        assert_eq!(guard.name(), this);
        guard.release().await.unwrap();
        for client in [&holder, &waiter, &stranger] {
            idle(client).await;
        }
        nothing_left(&server).await;
    }
}

/// A waiter for one lock blocks neither attempts nor waiters of the other.
async fn a_waiter_for_one_does_not_block_the_other<P: Primitive>() {
    let server = Server::start();
    for [this, other] in both_ways() {
        let [holder, waiter, third] = three_clients(&server).await;
        let held = P::rival(&holder, &this).lock().await.unwrap();
        let lock = P::rival(&waiter, &this);
        let waits = lockset_testkit::spawn(async move { lock.lock().await.map(drop) });
        waiting(&waiter, 1).await;
        for _ in 0..3 {
            let guard = P::of(&third, &other).try_lock().await.unwrap();
            guard.expect("it is free").release().await.unwrap();
            let guard = P::rival(&third, &other);
            let guard = within(SOON, guard.lock()).await.unwrap();
            guard.release().await.unwrap();
        }
        held.release().await.unwrap();
        within(SOON, waits).await.unwrap().unwrap();
        for client in [&holder, &waiter, &third] {
            idle(client).await;
        }
        nothing_left(&server).await;
    }
}

/// One client waits for both locks: each waiter gets its own messages, even after the other
/// unsubscribes.
async fn one_client_listens_for_both<P: Primitive>() {
    let server = Server::start();
    for [this, other] in both_ways() {
        let [holder, waiter, _] = three_clients(&server).await;
        let mut held = Vec::new();
        let mut waits = Vec::new();
        for name in [&this, &other] {
            held.push(P::rival(&holder, name).lock().await.unwrap());
            let lock = P::of(&waiter, name);
            waits.push(lockset_testkit::spawn(async move {
                let guard = lock.lock().await.unwrap();
                (Instant::now(), guard)
            }));
            waiting(&waiter, waits.len()).await;
        }
        listening(&server).await;
        // Each waiter is past its first attempts, and depends on messages and its poll.
        let mut late = 0;
        for (held, waits) in held.into_iter().zip(waits) {
            tokio::time::sleep(Duration::from_millis(300)).await;
            eventually(SOON, "who still waits listens", async || {
                !server.pubsub_channels().await.is_empty()
            })
            .await;
            let released = Instant::now();
            held.release().await.unwrap();
            let (got, guard) = within(SOON, waits).await.unwrap();
            late += u32::from(got.duration_since(released) > Duration::from_millis(500));
            guard.release().await.unwrap();
        }
        assert!(late < 2, "both have waited for their polls");
        idle(&waiter).await;
        nothing_left(&server).await;
    }
}

/// Guards of one name exclude each other, and callers of both names make progress.
async fn tasks_of_three_clients_take_both_at_random<P: Primitive>() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let names = two_names();
    let inside: &'static [AtomicU32; 2] = Box::leak(Box::default());
    let clients = three_clients(&server).await;
    let mut tasks = Vec::new();
    for client in &clients {
        for _ in 0..2 {
            let locks = names.clone().map(|name| P::rival(client, &name));
            tasks.push(lockset_testkit::spawn(async move {
                for _ in 0..ROUNDS {
                    let which = fastrand::usize(..2);
                    let guard = match fastrand::u8(..4) {
                        0 => locks[which].try_lock().await.unwrap(),
                        1 => {
                            let wait = Duration::from_millis(fastrand::u64(..5));
                            locks[which].try_lock_for(wait).await.unwrap()
                        }
                        _ => Some(locks[which].lock().await.unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    assert_eq!(inside[which].fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    assert!(!guard.is_lost());
                    inside[which].fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        within(SOON * 6, task).await.unwrap();
    }
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&server).await;
}

for_every_primitive!("multi_thread":
    a_release_of_one_does_not_hand_over_the_other
    a_waiter_for_one_does_not_block_the_other
    one_client_listens_for_both
    tasks_of_three_clients_take_both_at_random
);

fn pairs_of(client: &Client, [a, b]: &[String; 2]) -> BTreeMap<&'static str, MultiLock> {
    let pair = |one: Member, two: Member| MultiLock::new([one, two]).unwrap();
    BTreeMap::from([
        (
            "reentrant",
            pair(client.lock(a).into(), client.lock(b).into()),
        ),
        (
            "fair",
            pair(client.fair_lock(a).into(), client.fair_lock(b).into()),
        ),
        (
            "fenced",
            pair(client.fair_lock(a).into(), client.fair_lock(b).into()).fenced(),
        ),
        (
            "write",
            pair(
                client.rw_lock(a).write_side().into(),
                client.rw_lock(b).write_side().into(),
            ),
        ),
        (
            "mixed",
            pair(client.fair_lock(a).into(), client.lock(b).into()),
        ),
    ])
}

/// A multi-lock of both names gets both, even if it has to wait for each, and beside others like
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_multi_lock_of_both_takes_both() {
    let server = Server::start();
    let [ours, theirs, others] = three_clients(&server).await;
    for kind in pairs_of(&ours, &two_names()).into_keys() {
        let names = two_names();
        let mut last = None;
        for client in [&ours, &theirs, &others] {
            let held = pairs_of(client, &names)[kind].lock().await.unwrap();
            let waits: Vec<_> = [&ours, &theirs, &others]
                .into_iter()
                .flat_map(|client| [client; 3])
                .map(|client| {
                    let lock = pairs_of(client, &names)[kind].clone();
                    lockset_testkit::spawn(async move {
                        let guard = lock.lock().await.unwrap();
                        let tokens = guard.fencing_tokens();
                        guard.release().await.unwrap();
                        tokens
                    })
                })
                .collect();
            eventually(SOON, "all wait", async || {
                [&ours, &theirs, &others].map(|client| client.stats().waiters) == [3; 3]
            })
            .await;
            held.release().await.unwrap();
            let mut tokens = Vec::new();
            for wait in waits {
                tokens.push(within(SOON * 2, wait).await.unwrap());
            }
            tokens.sort_unstable();
            // Both use Redisson's single counter, and each sees it grow.
            let grows =
                |token: &Vec<_>| token.iter().all(Option::is_some) && Some(token) > last.as_ref();
            assert!(kind != "fenced" || tokens.iter().all(grows), "{tokens:?}");
            last = tokens.pop();
        }
        for client in [&ours, &theirs, &others] {
            idle(client).await;
        }
        nothing_left(&server).await;
    }
}

/// The two names look the same for a Redisson waiter: both locks respect its place in the queue.
#[tokio::test]
async fn a_waiter_of_redissons_is_respected_by_both() {
    let server = Server::start();
    let [ours, theirs, _] = three_clients(&server).await;
    let peer = Redisson::connect(&server).await;
    let [plain, braced] = two_names();
    let held = ours.fair_lock(&plain).lock().await.unwrap();
    let java = {
        let (peer, name) = (peer.clone(), plain.clone());
        lockset_testkit::spawn(async move {
            let lease = Duration::from_secs(30);
            assert!(peer.fair_lock(&name, 7, lease, SOON * 4).await);
        })
    };
    eventually(SOON, "it is in the queue", async || {
        ours.fair_lock(&plain).waiters().await.unwrap().len() == 1
    })
    .await;
    assert!(
        theirs
            .fair_lock(&braced)
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    held.release().await.unwrap();
    within(SOON, java).await.unwrap();
    let guard = theirs.fair_lock(&braced).try_lock().await.unwrap();
    guard
        .expect("there are no waiters")
        .release()
        .await
        .unwrap();
    assert_eq!(peer.fair_release(&plain, 7).await, Some(1));
    nothing_left(&server).await;
}

/// Each lock has its own waiters and its own order.
#[tokio::test]
async fn each_fair_lock_serves_its_waiters_in_order() {
    let server = Server::start();
    let [holder, ours, theirs] = three_clients(&server).await;
    let names = two_names();
    let held = [
        holder.fair_lock(&names[0]).lock().await.unwrap(),
        holder.fair_lock(&names[1]).lock().await.unwrap(),
    ];
    let mut waits = [Vec::new(), Vec::new()];
    for place in 0..6 {
        let which = usize::from([0, 0, 1, 0, 1, 1][place] == 1);
        let lock = [&ours, &theirs][place % 2].fair_lock(&names[which]);
        let seen = lock.clone();
        waits[which].push(lockset_testkit::spawn(
            async move { lock.lock().await.unwrap() },
        ));
        let places = waits[which].len();
        eventually(SOON, "it has its place", async || {
            seen.waiters().await.unwrap().len() == places
        })
        .await;
    }
    for ((held, waits), name) in held.into_iter().zip(waits).rev().zip(names.iter().rev()) {
        let mut held = held;
        let lock = ours.fair_lock(name);
        for next in waits {
            let first = lock.waiters().await.unwrap().remove(0);
            held.release().await.unwrap();
            held = within(SOON, next).await.unwrap();
            let holder = lock.holder().await.unwrap().expect("it is held");
            assert_eq!(holder.id, first);
        }
        held.release().await.unwrap();
    }
    for client in [&holder, &ours, &theirs] {
        idle(client).await;
    }
    nothing_left(&server).await;
}
