//! Futures dropped at every await point leave nothing behind.
//!
//! Each case polls a future `k` times, for every `k` until it completes, then drops it; with
//! replies that arrive, arrive late, or never arrive. Afterwards the client is idle, the server has
//! no key and no subscription, and another client gets the lock at once. Keys must be gone at once,
//! not only after they expire: no hold, no place in a queue, and no heartbeat.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lockset::{Client, FairLock, Owner, ReadSide, WriteSide};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::impatient::taken;
use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{
    BY_MESSAGE, PATIENCE, SOON, hasty_client, hold_counts, idle, keys_left, lock_keys,
    nothing_left, patient_client, took_less, waiting,
};

/// No future here needs more polls.
const POLLS_MAX: usize = 40;

/// Polls a future each time it is woken, at most `polls` times, then waits for a moment and drops
/// it. Returns `None` if the future did not complete.
pub(crate) async fn poll_times<F: Future>(
    work: F,
    (polls, moment): (usize, Duration),
) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut left = polls;
    let ended = std::future::poll_fn(|context| {
        left -= 1;
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if ended.is_none() && !moment.is_zero() {
        // The server executes the commands sent by the last poll.
        tokio::time::sleep(moment).await;
    }
    ended
}

/// How long a future stays unpolled before it is dropped: not at all, so that its last command may
/// not have been sent; or until the server has certainly executed the command.
const MOMENTS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(5)];

#[derive(Clone, Copy, Debug)]
enum Replies {
    Normal,
    Late,
    Lost,
}

const REPLIES: [Replies; 3] = [Replies::Normal, Replies::Late, Replies::Lost];

struct World {
    server: Server,
    proxy: Proxy,
    /// Connects to the server through the proxy.
    ours: Client,
    theirs: Client,
}

impl World {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.addr()).await;
        let ours = hasty_client(&proxy.url()).await;
        let theirs = patient_client(&server.url()).await;
        Self {
            server,
            proxy,
            ours,
            theirs,
        }
    }

    /// A lock of our client whose lease is long, so that a leftover is noticed.
    fn lock<P: Primitive>(&self, name: &str) -> P {
        P::of(&self.ours, name).lease(Duration::from_secs(60))
    }

    /// The rival at the other client, which blocks ours.
    fn rival<P: Primitive>(&self, name: &str) -> P::Rival {
        P::rival(&self.theirs, name)
    }

    fn set(&self, replies: Replies) {
        match replies {
            Replies::Normal => self.proxy.pass(),
            Replies::Late => self.proxy.delay_replies(Duration::from_millis(20)),
            Replies::Lost => self.proxy.drop_replies(),
        }
    }

    /// Checks once: a key that is left once the client is idle would stay for long.
    async fn no_key_is_left(&self) {
        assert_eq!(keys_left(&self.server).await, [""; 0]);
    }

    async fn check_nothing_is_left<P: Primitive>(&self, name: &str) {
        self.proxy.pass();
        idle(&self.ours).await;
        idle(&self.theirs).await;
        self.no_key_is_left().await;
        nothing_left(&self.server).await;
        let next = self.rival::<P>(name).try_lock().await.unwrap();
        let next = next.expect("another client gets it at once");
        next.release().await.unwrap();
        // The client itself still works.
        let lock = P::of(&self.ours, name).give_up_after(PATIENCE);
        let guard = within(SOON, lock.lock()).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Drops a call at each of its polls. `prepare` makes what the call needs, which is dropped after
/// the call.
async fn at_every_poll<P: Primitive, S>(
    prepare: impl AsyncFn(&World, &str) -> S,
    call: impl AsyncFn(&World, &str, &S, (usize, Duration)) -> bool,
) {
    let cases = REPLIES
        .into_iter()
        .flat_map(|replies| MOMENTS.map(|moment| (replies, moment)));
    for (replies, moment) in cases {
        let world = World::new().await;
        for polls in 1.. {
            let name = unique_name("lock");
            let prepared = prepare(&world, &name).await;
            world.set(replies);
            let ended = within(SOON, call(&world, &name, &prepared, (polls, moment))).await;
            world.proxy.pass();
            drop(prepared);
            world.check_nothing_is_left::<P>(&name).await;
            if ended {
                break;
            }
            assert!(polls < POLLS_MAX, "{replies:?}: it never ends");
        }
    }
}

async fn an_acquire_of_a_free_lock<P: Primitive>() {
    at_every_poll::<P, _>(
        async |_, _| (),
        async |world, name, (), polls| {
            let lock = world.lock::<P>(name);
            let done = poll_times(lock.lock(), polls).await;
            done.is_some()
        },
    )
    .await;
}

async fn a_fenced_acquire_with_an_owner<P: Primitive>() {
    at_every_poll::<P, _>(
        async |_, _| (),
        async |world, name, (), polls| {
            let lock = world.lock::<P>(name).fenced();
            let lock = lock.owner(&Owner::new());
            poll_times(lock.try_lock(), polls).await.is_some()
        },
    )
    .await;
}

/// Held by another client until the end of the call, which passes through the subscription, the
/// second attempt and the waits.
async fn a_wait_for_another_client<P: Primitive>() {
    at_every_poll::<P, _>(
        async |world, name| world.rival::<P>(name).lock().await.unwrap(),
        async |world, name, _, polls| {
            let lock = world.lock::<P>(name);
            let wait = lock.try_lock_for(Duration::from_millis(30));
            poll_times(wait, polls).await.is_some()
        },
    )
    .await;
}

/// Held by another client and released during the wait, so the call passes through the grant after
/// a message.
async fn a_wait_that_ends_with_a_grant<P: Primitive>() {
    at_every_poll::<P, _>(
        async |world, name| {
            let held = world.rival::<P>(name).lock().await.unwrap();
            std::sync::Mutex::new(Some(held))
        },
        async |world, name, held, polls| {
            let lock = world.lock::<P>(name);
            let release = async {
                tokio::time::sleep(Duration::from_millis(8)).await;
                let held = held.lock().unwrap().take().expect("taken once");
                held.release().await.unwrap();
            };
            let (done, ()) = tokio::join!(poll_times(lock.lock(), polls), release);
            done.is_some()
        },
    )
    .await;
}

/// Held by another task of this client.
async fn a_wait_for_the_same_client<P: Primitive>() {
    at_every_poll::<P, _>(
        async |world, name| taken(&P::rival(&world.ours, name)).await,
        async |world, name, _, polls| {
            let lock = world.lock::<P>(name);
            let wait = lock.try_lock_for(Duration::from_millis(10));
            poll_times(wait, polls).await.is_some()
        },
    )
    .await;
}

/// Another task of this client releases the lock while this one waits with a third behind it: the
/// lock passes from the first to the second, and on to the third, in memory or by a script.
async fn a_wait_that_ends_with_a_pass<P: Primitive>() {
    for is_fixed in [false, true] {
        let terms = |world: &World, name: &str| {
            let lock = world.lock::<P>(name);
            if is_fixed {
                lock.fixed_lease(Duration::from_secs(60))
            } else {
                lock
            }
        };
        at_every_poll::<P, _>(
            async |world, name| {
                let held = taken(&terms(world, name)).await;
                std::sync::Mutex::new(Some(held))
            },
            async |world, name, held, polls| {
                let (lock, behind) = (terms(world, name), terms(world, name));
                let give = async {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    drop(held.lock().unwrap().take().expect("taken once"));
                };
                let behind = async {
                    // Makes it the second in the queue.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let wait = Duration::from_millis(60);
                    tokio::time::timeout(wait, behind.lock()).await.is_ok()
                };
                let wait = poll_times(lock.lock(), polls);
                let (done, _, ()) = tokio::join!(wait, behind, give);
                done.is_some()
            },
        )
        .await;
    }
}

async fn a_re_entry<P: Primitive>() {
    at_every_poll::<P, _>(
        async |world, name| taken(&world.lock::<P>(name)).await,
        async |_, _, guard, polls| {
            let done = poll_times(guard.reenter(), polls).await;
            let ended = done.is_some();
            drop(done);
            assert_eq!(guard.hold_count(), 1);
            ended
        },
    )
    .await;
}

async fn a_release<P: Primitive>() {
    at_every_poll::<P, _>(
        async |world, name| {
            let guard = taken(&world.lock::<P>(name)).await;
            std::sync::Mutex::new(Some(guard))
        },
        async |_, _, guard, polls| {
            let guard = guard.lock().unwrap().take().expect("taken once");
            poll_times(guard.release(), polls).await.is_some()
        },
    )
    .await;
}

/// What is left of a re-entry changes nothing for the other guard.
async fn an_inner_release_keeps_the_outer<P: Primitive>() {
    let world = World::new().await;
    let name = unique_name("lock");
    let owner = Owner::new();
    let lock = world.lock::<P>(&name).owner(&owner);
    let outer = lock.give_up_after(PATIENCE).lock().await.unwrap();
    for moment in MOMENTS {
        let inner = outer.reenter().await.unwrap();
        poll_times(inner.release(), (1, moment)).await;
        // A renewal before a re-entry, that is left.
        let longer = world.lock::<P>(&name).owner(&owner).lease(SOON * 20);
        world.set(Replies::Late);
        assert!(poll_times(longer.lock(), (1, moment)).await.is_none());
        world.proxy.pass();
    }
    let names = P::names(&name);
    eventually(SOON, "the server counts one hold", async || {
        hold_counts(&world.server, &names).await == vec![1; names.len()]
    })
    .await;
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
    world.check_nothing_is_left::<P>(&name).await;
}

/// Many callers, dropped at arbitrary times, while another client acquires and releases.
async fn a_storm_of_dropped_waits<P: Primitive>() {
    let world = World::new().await;
    let name = unique_name("lock");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let traffic = async {
        let lock = world.rival::<P>(&name);
        let mut grants = 0_u32;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            within(SOON, lock.lock())
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            grants += 1;
        }
        grants
    };
    let storm = async {
        for round in 0..40_u64 {
            let waits = (0..10_u64).map(|n| {
                let lock = world.lock::<P>(&name);
                let patience = Duration::from_micros(round * 37 + n * 211);
                async move { tokio::time::timeout(patience, lock.lock()).await.is_ok() }
            });
            futures_util::future::join_all(waits).await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (grants, ()) = tokio::join!(traffic, storm);
    assert!(grants > 0);
    world.check_nothing_is_left::<P>(&name).await;
}

async fn aborted_tasks_leave_nothing<P: Primitive>() {
    let world = World::new().await;
    let name = unique_name("lock");
    let held = world.rival::<P>(&name).lock().await.unwrap();
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let lock = world.lock::<P>(&name);
            lockset_testkit::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    waiting(&world.ours, 5).await;
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    idle(&world.ours).await;
    held.release().await.unwrap();
    world.check_nothing_is_left::<P>(&name).await;
}

// On one thread, so that a call dropped at once has certainly not been sent.
for_every_primitive! {"current_thread":
    an_acquire_of_a_free_lock
    a_fenced_acquire_with_an_owner
    a_wait_for_another_client
    a_wait_that_ends_with_a_grant
    a_wait_for_the_same_client
    a_wait_that_ends_with_a_pass
    a_re_entry
    a_release
    an_inner_release_keeps_the_outer
    a_storm_of_dropped_waits
    aborted_tasks_leave_nothing
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    an_acquire_of_a_free_lock
    a_fenced_acquire_with_an_owner
    a_wait_for_another_client
    a_wait_that_ends_with_a_grant
    a_wait_for_the_same_client
    a_re_entry
    a_release
    an_inner_release_keeps_the_outer
    aborted_tasks_leave_nothing
}

/// The first in the queue of a fair lock is dropped: the next gets a message at once.
#[tokio::test]
async fn a_place_in_the_fair_queue() {
    at_every_poll::<FairLock, _>(
        async |world, name| {
            let held = world.theirs.fair_lock(name).lock().await.unwrap();
            std::sync::Mutex::new(Some(held))
        },
        async |world, name, held, polls| {
            let lock = world.lock::<FairLock>(name);
            let next = world.theirs.fair_lock(name);
            let next = async {
                // It queues behind our call, if that call is sent at all.
                tokio::time::sleep(Duration::from_millis(4)).await;
                next.lock().await.unwrap()
            };
            let wait = poll_times(lock.try_lock_for(Duration::from_millis(40)), polls);
            let release = async {
                let done = wait.await;
                world.proxy.pass();
                idle(&world.ours).await;
                waiting(&world.theirs, 1).await;
                let queue = world.theirs.fair_lock(name).waiters().await.unwrap();
                assert!(queue.len() <= 1, "ours has left: {queue:?}");
                let held = held.lock().unwrap().take().expect("taken once");
                held.release().await.unwrap();
                (done, std::time::Instant::now())
            };
            let (next, (done, released)) = tokio::join!(next, release);
            // The timers of its client take a second.
            took_less(released, BY_MESSAGE);
            next.release().await.unwrap();
            done.is_some()
        },
    )
    .await;
}

/// A writer that waits for a reader blocks new readers, until it is dropped.
#[tokio::test]
async fn a_writer_that_waits() {
    at_every_poll::<WriteSide, _>(
        async |world, name| {
            let lock = world.theirs.rw_lock(name);
            lock.read().await.unwrap()
        },
        async |world, name, _, polls| {
            let lock = world.lock::<WriteSide>(name);
            let wait = lock.try_lock_for(Duration::from_millis(30));
            let done = poll_times(wait, polls).await;
            world.proxy.pass();
            idle(&world.ours).await;
            assert_eq!(lock_keys(&world.server).await, [name], "no writer waits");
            let reader = world.theirs.rw_lock(name).try_read().await.unwrap();
            drop(reader.expect("a reader lets no writer go first"));
            done.is_some()
        },
    )
    .await;
}

/// As above, with a reader that queues behind the writer: it is woken.
#[tokio::test]
async fn a_writer_that_readers_let_go_first() {
    at_every_poll::<WriteSide, _>(
        async |world, name| {
            let lock = world.theirs.rw_lock(name);
            lock.read().await.unwrap()
        },
        async |world, name, _, polls| {
            let lock = world.lock::<WriteSide>(name);
            let reader = world.theirs.rw_lock(name);
            let reader = async {
                tokio::time::sleep(Duration::from_millis(4)).await;
                within(SOON, reader.read()).await.unwrap()
            };
            let write = async {
                let wait = lock.try_lock_for(Duration::from_millis(40));
                let done = poll_times(wait, polls).await;
                world.proxy.pass();
                idle(&world.ours).await;
                (done, std::time::Instant::now())
            };
            let (reader, (done, left)) = tokio::join!(reader, write);
            // The timers of its client take a second.
            took_less(left, BY_MESSAGE);
            drop(reader);
            done.is_some()
        },
    )
    .await;
}

#[tokio::test]
async fn a_downgrade() {
    at_every_poll::<ReadSide, _>(
        async |world, name| {
            let guard = taken(&world.lock::<WriteSide>(name)).await;
            std::sync::Mutex::new(Some(guard))
        },
        async |_, _, guard, polls| {
            let guard = guard.lock().unwrap().take().expect("taken once");
            poll_times(guard.downgrade(), polls).await.is_some()
        },
    )
    .await;
}

/// The owner's other write hold is unchanged.
#[tokio::test]
async fn a_downgrade_of_one_of_two() {
    at_every_poll::<ReadSide, _>(
        async |world, name| {
            let outer = taken(&world.lock::<WriteSide>(name)).await;
            let inner = outer.reenter().await.unwrap();
            (outer, std::sync::Mutex::new(Some(inner)))
        },
        async |world, name, (outer, inner), polls| {
            let inner = inner.lock().unwrap().take().expect("taken once");
            let done = poll_times(inner.downgrade(), polls).await;
            let ended = done.is_some();
            drop(done);
            world.proxy.pass();
            let names = WriteSide::names(name);
            eventually(SOON, "the server counts one hold", async || {
                hold_counts(&world.server, &names).await == [1]
            })
            .await;
            assert!(!outer.is_lost());
            assert_eq!(outer.hold_count(), 1);
            ended
        },
    )
    .await;
}
