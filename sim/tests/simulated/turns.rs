//! Clients that all want one lock, at several distances from the server: how long a hand-over takes, in round
//! trips, and whether each client has its share. In virtual time, so that the figures are exact:
//!
//! `cargo test --package lockset-sim --test simulated -- --nocapture turns::`

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockset::{Client, Member, MultiLock};
use lockset_sim::Server;
use tokio::task::JoinSet;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// There and back, in ms. Times below 2 cannot be shown: the runtime's timers count whole milliseconds each way.
const ROUND_TRIPS: [u32; 3] = [2, 10, 50];

/// With 1, 10 and 50 ms there, and as much back.
const FAR: [u32; 5] = [2, 10, 20, 50, 100];

async fn at_distance(round_trip: Duration, clients: usize) -> (Server, Vec<Client>) {
    let server = Server::new();
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(server.client().await);
    }
    server.delay(round_trip / 2);
    (server, all)
}

type Taken = Pin<Box<dyn Future<Output = Box<dyn Released>> + Send>>;

trait Released: Send {
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

macro_rules! released {
    ($($guard:ty)*) => { $(impl Released for $guard {
        fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(async move { (*self).release().await.unwrap() })
        }
    })* };
}
released!(lockset::ReentrantGuard lockset::FairGuard lockset::WriteGuard lockset::MultiGuard);

/// Takes a lock of this kind.
fn take(kind: &str, client: &Client) -> Taken {
    match kind {
        "reentrant" => {
            let lock = client.lock("a");
            Box::pin(async move { Box::new(lock.lock().await.unwrap()) as _ })
        }
        "fair" => {
            let lock = client.fair_lock("a");
            Box::pin(async move { Box::new(lock.lock().await.unwrap()) as _ })
        }
        "write" => {
            let lock = client.rw_lock("a");
            Box::pin(async move { Box::new(lock.write().await.unwrap()) as _ })
        }
        _ => {
            let members = ["a", "b"].map(|name| Member::from(client.lock(name)));
            let lock = MultiLock::new(members).unwrap();
            Box::pin(async move { Box::new(lock.lock().await.unwrap()) as _ })
        }
    }
}

/// How long it takes from the call of a release until another client has the lock.
async fn handover(kind: &'static str, round_trip: Duration) -> Duration {
    let (server, clients) = at_distance(round_trip, 2).await;
    let held = take(kind, &clients[0]).await;
    let waiting = take(kind, &clients[1]);
    let waiting = tokio::spawn(async move {
        let next = waiting.await;
        (Instant::now(), next)
    });
    // Long enough to be refused and to listen, and no poll is near.
    server.advance(20 * round_trip + SECOND / 4).await;
    let released = Instant::now();
    held.release().await;
    let (granted, next) = waiting.await.unwrap();
    next.release().await;
    granted - released
}

#[tokio::test(start_paused = true)]
async fn a_handover_takes_two_round_trips_and_of_a_fair_lock_one() {
    let far = FAR.map(|trip| format!(" {trip} ms |")).concat();
    println!(
        "| hand-over, round trips |{far}\n| --- |{}",
        " ---: |".repeat(FAR.len())
    );
    for (kind, most) in [
        ("reentrant", 2.0),
        ("fair", 1.0),
        ("write", 2.0),
        ("multi", 2.0),
    ] {
        let mut row = format!("| {kind} |");
        for round_trip in FAR.map(|trip| trip * MS) {
            let took = handover(kind, round_trip).await;
            let trips = took.as_secs_f64() / round_trip.as_secs_f64();
            row += &format!(" {trips:.2} |");
            // A timer of the runtime may be 1 ms late, twice for each trip.
            let most = most + 4.0 * MS.as_secs_f64() / round_trip.as_secs_f64();
            assert!(
                trips <= most,
                "{kind} at {round_trip:?}: {trips} round trips"
            );
        }
        println!("{row}");
    }
}

/// The grants of one lock to a crowd.
#[derive(Debug)]
struct Crowd {
    /// The least that a client had, of what would be its share.
    least_share: f64,
    longest_wait: Duration,
    /// Round trips for each turn of a client: 17 holds, or one of each task where those are 8 to 17 and many others
    /// wait.
    trips_a_turn: f64,
    commands_a_turn: f64,
}

/// This many clients with this many tasks, each of which takes the lock, keeps it for `work`, and drops its guard. In
/// addition, `stopped` clients wait for it in paused processes.
async fn crowd(
    (clients, tasks, stopped): (usize, usize, usize),
    round_trip: Duration,
    work: Duration,
) -> Crowd {
    let (server, mut clients) = at_distance(round_trip, clients + stopped).await;
    let stopped: Vec<Client> = clients.drain(..stopped).collect();
    let held = clients[0].lock("a").lock().await.unwrap();
    // The futures of these tasks are not polled once their process is paused.
    let mut waiting = Vec::new();
    for client in &stopped {
        let lock = client.lock("a");
        let mut wait = Box::pin(async move { lock.lock().await });
        let waited = tokio::time::timeout(20 * round_trip, &mut wait).await;
        assert!(waited.is_err(), "it is held");
        server.pause(client);
        waiting.push(wait);
    }
    held.release().await.unwrap();
    let waits = Arc::new(Mutex::new(vec![Vec::new(); clients.len()]));
    // The first turns depend on the order of arrival.
    let begin = Instant::now() + 20 * round_trip;
    let end = begin + 400 * clients.len() as u32 * (round_trip + work);
    let mut running = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for _ in 0..tasks {
            let (lock, waits) = (client.lock("a"), Arc::clone(&waits));
            running.spawn(async move {
                while Instant::now() < end {
                    let asked = Instant::now();
                    let guard = lock.lock().await.unwrap();
                    if asked >= begin {
                        waits.lock().unwrap()[number].push(asked.elapsed());
                    }
                    if work.is_zero() {
                        tokio::task::yield_now().await;
                    } else {
                        tokio::time::sleep(work).await;
                    }
                    drop(guard);
                }
            });
        }
    }
    tokio::time::sleep_until(begin).await;
    let before = server.commands();
    while running.join_next().await.is_some() {}
    let commands = server.commands() - before;
    let waits = waits.lock().unwrap();
    let holds: Vec<usize> = waits.iter().map(Vec::len).collect();
    let all: usize = holds.iter().sum();
    let share = all as f64 / clients.len() as f64;
    let is_many = clients.len() + stopped.len() > 4;
    let turn = if is_many && tasks >= 8 {
        tasks.min(17)
    } else {
        17
    };
    let turns = all as f64 / turn as f64;
    let trips = (end - begin).as_secs_f64() / round_trip.as_secs_f64();
    Crowd {
        least_share: *holds.iter().min().unwrap() as f64 / share,
        longest_wait: *waits.iter().flatten().max().unwrap(),
        trips_a_turn: trips / turns,
        commands_a_turn: commands as f64 / turns,
    }
}

#[tokio::test(start_paused = true)]
async fn clients_have_a_hot_lock_in_turns() {
    println!(
        "| clients x tasks | round trip | work | least share | longest wait, rounds \
         | round trips a turn | commands a turn |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for (clients, tasks) in [(4, 1), (8, 2), (2, 8), (4, 16), (8, 8)] {
        for round_trip in ROUND_TRIPS.map(|trip| trip * MS) {
            for work in [Duration::ZERO, MS, 20 * MS] {
                if work > MS && (clients, tasks) != (8, 2) {
                    continue;
                }
                let crowd = crowd((clients, tasks, 0), round_trip, work).await;
                // All clients have had a turn.
                let round = clients as f64 * crowd.trips_a_turn * round_trip.as_secs_f64();
                let longest = crowd.longest_wait.as_secs_f64() / round;
                println!(
                    "| {clients} x {tasks} | {round_trip:?} | {work:?} | {:.2} | {longest:.1} \
                     | {:.2} | {:.1} |",
                    crowd.least_share, crowd.trips_a_turn, crowd.commands_a_turn
                );
                // A single task is not passed the lock by others of its client: each of its holds ends with
                // a message, which is all that others count.
                // Nor is it passed on often that is held for long.
                let least = match (tasks, work > MS) {
                    (1, _) => 0.2,
                    (_, true) => 0.5,
                    _ => 0.9,
                };
                assert!(crowd.least_share >= least, "{crowd:?}");
                assert!(longest <= 4.0, "{longest} rounds: {crowd:?}");
                if work.is_zero() && tasks > 1 {
                    // One takes it and two give it back, however many wait; a trip for each of the two.
                    assert!(crowd.commands_a_turn <= 3.5, "{crowd:?}");
                    assert!(crowd.trips_a_turn <= 2.2, "{crowd:?}");
                }
            }
        }
    }
}

/// How often each client writes in five seconds, when all its tasks mostly read.
async fn writes_among_readers(clients: usize, round_trip: Duration) -> Vec<usize> {
    let (_server, clients) = at_distance(round_trip, clients).await;
    let end = Instant::now() + 5 * SECOND;
    let writes = Arc::new(Mutex::new(vec![0; clients.len()]));
    let mut running = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for task in 0..8 {
            let (lock, writes) = (client.rw_lock("a"), Arc::clone(&writes));
            running.spawn(async move {
                let turns = (task * 31..).map(|turn| turn * 7 % 100);
                for turn in turns.take_while(|_| Instant::now() < end) {
                    if turn < 5 {
                        let guard = lock.write().await.unwrap();
                        writes.lock().unwrap()[number] += 1;
                        tokio::time::sleep(MS).await;
                        guard.release().await.unwrap();
                    } else {
                        let guard = lock.read().await.unwrap();
                        tokio::time::sleep(MS).await;
                        guard.release().await.unwrap();
                    }
                }
            });
        }
    }
    while running.join_next().await.is_some() {}
    Arc::into_inner(writes).unwrap().into_inner().unwrap()
}

/// Messages arrive in one order, so the first client to get one asks first.
#[tokio::test(start_paused = true)]
async fn clients_write_among_readers_in_turns() {
    for (clients, round_trip) in [(4, 2), (8, 2), (4, 10), (2, 10)] {
        fastrand::seed(7);
        let writes = writes_among_readers(clients, round_trip * MS).await;
        println!("{clients} clients, {round_trip} ms: {writes:?}");
        let all: usize = writes.iter().sum();
        let least = writes.iter().min().unwrap() * clients;
        // All are in step here: of two that ask in one moment, the same one always comes first.
        assert!(least * 10 >= all * 2, "{writes:?}");
    }
}

/// The tasks of one client that read and write hand the lock off to each other.
#[tokio::test(start_paused = true)]
async fn readers_and_writers_of_one_client_cost_few_commands() {
    const TASKS: usize = 16;
    const TURNS: usize = 100;
    let (server, clients) = at_distance(2 * MS, 1).await;
    let before = server.commands();
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let lock = clients[0].rw_lock("a");
        running.spawn(async move {
            for turn in 0..TURNS {
                if (task + turn) % 10 == 0 {
                    lock.write().await.unwrap().release().await.unwrap();
                } else {
                    lock.read().await.unwrap().release().await.unwrap();
                }
            }
        });
    }
    running.join_all().await;
    let commands = server.commands() - before;
    println!("{commands} commands for {} turns", TASKS * TURNS);
    assert!(commands as usize * 10 <= TASKS * TURNS, "{commands}");
}

/// Of one other it is seen after three times that it does not come. Several others wait for it once a round: they
/// cannot tell whose message they lack. How often each of them does depends on the order in which they came, so that is
/// different in each crowd: the least share was 0.40 to 0.83 in 48 crowds, and the longest wait 28 to 61 round trips.
#[tokio::test(start_paused = true)]
async fn who_is_stopped_while_it_waits_delays_the_others_for_a_bounded_time() {
    let mut shares = Vec::new();
    for (clients, round_trip, trips) in [
        (1, 2, 1.1),
        (3, 2, 4.5),
        (3, 10, 4.5),
        (5, 2, 4.5),
        (5, 10, 4.5),
    ] {
        for tasks in [6, 8, 10, 12] {
            let crowd = crowd((clients, tasks, 1), round_trip * MS, Duration::ZERO).await;
            println!("{clients} x {tasks} and one that is stopped, {round_trip} ms: {crowd:?}");
            assert!(crowd.least_share >= 1.0 / 3.0, "{crowd:?}");
            assert!(crowd.trips_a_turn <= trips, "{crowd:?}");
            assert!(crowd.longest_wait <= 70 * round_trip * MS, "{crowd:?}");
            shares.push(crowd.least_share);
        }
    }
    shares.sort_by(f64::total_cmp);
    assert!(shares[shares.len() / 2] >= 0.5, "{shares:?}");
}

/// How long a client that listens, but no longer wants the lock, keeps another one from it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_for_long_is_not_left_free_for_as_long() {
    let (_server, clients) = at_distance(Duration::ZERO, 2).await;
    let [ours, theirs] = [0, 1].map(|client| clients[client].lock("a"));
    for span in [SECOND, 10 * SECOND] {
        let held = ours.lock().await.unwrap();
        // It has left when the lock is released, and still listens.
        assert!(theirs.try_lock_for(span).await.unwrap().is_none());
        held.release().await.unwrap();
    }
    let asked = Instant::now();
    ours.lock().await.unwrap().release().await.unwrap();
    assert!(asked.elapsed() < 20 * MS, "{:?}", asked.elapsed());
}

/// A client that has had its turn, whose next waiter backs off for one that listens and is frozen.
async fn beside_a_frozen_client() -> (Server, Vec<Client>) {
    let (server, clients) = at_distance(50 * MS, 2).await;
    let lock = clients[0].lock("a");
    let held = lock.lock().await.unwrap();
    let waiting = clients[1].lock("a");
    tokio::spawn(async move { waiting.lock().await.map(drop) });
    server.advance(2 * SECOND).await;
    server.pause(&clients[1]);
    held.release().await.unwrap();
    // After the first turn it knows how far the server is; the second begins with the third hold.
    for _ in 0..3 {
        let held = lock.lock().await.unwrap();
        server.advance(SECOND).await;
        drop(held);
    }
    (server, clients)
}

#[tokio::test(start_paused = true)]
async fn who_has_little_time_asks_within_it() {
    let (_server, clients) = beside_a_frozen_client().await;
    let asked = Instant::now();
    let free = clients[0].lock("a").try_lock_for(130 * MS).await.unwrap();
    assert!(asked.elapsed() < 130 * MS, "{:?}", asked.elapsed());
    free.expect("nobody has it").release().await.unwrap();
}

/// While it backs off it asks nothing, and the server is not silent.
#[tokio::test(start_paused = true)]
async fn who_gives_up_soon_counts_from_when_it_asks() {
    let (_server, clients) = beside_a_frozen_client().await;
    let lock = clients[0].lock("a").give_up_after(120 * MS);
    lock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_backs_off_takes_what_it_is_handed() {
    let (_server, clients) = beside_a_frozen_client().await;
    let lock = clients[0].lock("a");
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let at = Instant::now();
            guard.release().await.unwrap();
            at
        })
    };
    tokio::task::yield_now().await;
    let held = lock.try_lock().await.unwrap().expect("it is free");
    let handed = Instant::now();
    held.release().await.unwrap();
    let taken = waiting.await.unwrap();
    assert!(taken - handed < 10 * MS, "{:?}", taken - handed);
}
