//! The cost of a queue: waiters do not spin, grants cost the same for any queue length, and only
//! the server's clock is used.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use lockset_testkit::{Redisson, stalls};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{Scene, done, wait_for};
use crate::support::{SOON, idle, listening, patient_client};

const LEASE: Duration = Duration::from_secs(30);

/// The number of script calls during three poll intervals of a second. Counts again after a stall, in which answers
/// are late, so that waiters ask once more by themselves.
async fn calls_meanwhile(scene: &Scene) -> u64 {
    let mut tries = 0;
    loop {
        let began = Instant::now();
        scene.server.reset_stats().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let stats = scene.server.commandstats().await;
        tries += 1;
        if tries == 5 || stalls::between(began, Instant::now()).is_zero() {
            return stats.get("evalsha").copied().unwrap_or_default();
        }
    }
}

#[tokio::test]
async fn waiters_for_a_held_lock_ask_once_a_poll() {
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let client = patient_client(&scene.server.url()).await;
    let waiters: Vec<_> = (0..5).map(|_| wait_for(&scene.lock_of(&client))).collect();
    scene.queued(5).await;
    let calls = calls_meanwhile(&scene).await;
    // One call per poll and waiter to keep its place. On a slow machine, one more may fall into the
    // window.
    assert!((5 * 2..=5 * 4).contains(&calls), "{calls}");
    held.release().await.unwrap();
    for waiter in waiters {
        done(waiter).await.release().await.unwrap();
    }
}

/// One script keeps the places of a crowd, and each of them gets the lock in turn.
#[tokio::test]
async fn a_crowd_of_one_client_asks_together() {
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let client = patient_client(&scene.server.url()).await;
    let waiters: Vec<_> = (0..60).map(|_| wait_for(&scene.lock_of(&client))).collect();
    scene.queued(60).await;
    // Each asks once more by itself, before the first answer for all.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let calls = calls_meanwhile(&scene).await;
    // The heartbeats of all, and the polls of the first. By themselves they would make 180. On a slow machine, some ask
    // before an answer has come.
    assert!((4..=80).contains(&calls), "{calls}");
    scene.queued(60).await;
    held.release().await.unwrap();
    for waiter in waiters {
        done(waiter).await.release().await.unwrap();
    }
}

/// The lock is free, but the head of the queue does not take it.
#[tokio::test]
async fn waiters_behind_a_silent_head_ask_once_a_poll() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    assert_eq!(
        peer.fair_acquire(&scene.name, 1, LEASE, LEASE).await,
        None,
        "held"
    );
    let queued = peer.fair_acquire(&scene.name, 2, LEASE, LEASE).await;
    assert!(queued.is_some());
    let client = patient_client(&scene.server.url()).await;
    let waiters: Vec<_> = (0..5).map(|_| wait_for(&scene.lock_of(&client))).collect();
    scene.queued(6).await;
    assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
    let calls = calls_meanwhile(&scene).await;
    assert!((5 * 2..=5 * 4).contains(&calls), "{calls}");
    peer.fair_give_up(&scene.name, 2, LEASE).await;
    for waiter in waiters {
        done(waiter).await.release().await.unwrap();
    }
}

/// The commands that the server executes from one holder's release to the next, with `behind`
/// waiters in the queue. `None` if a poll fell into the window, or if it took longer than a
/// heartbeat.
async fn commands_of_a_turn(behind: usize) -> Option<BTreeMap<String, u64>> {
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let lock = scene.lock_of(&client);
    let stranger = patient_client(&scene.server.url()).await;
    let held = scene.lock_of(&stranger).lock().await.unwrap();
    let waiter = wait_for(&lock);
    scene.queued(1).await;
    listening(&scene.server).await;
    scene.put(behind, "waiter", 3_000).await;
    scene.server.reset_stats().await;
    held.release().await.unwrap();
    done(waiter).await.release().await.unwrap();
    idle(&client).await;
    idle(&stranger).await;
    let mut commands = scene.server.commandstats().await;
    commands.retain(|name, _| {
        let looks = ["info", "config|resetstat", "client|setname"];
        !looks.contains(&&**name)
    });
    let are_alive = scene.queue().await.len() == behind;
    // The release that hands the lock over, and the last release.
    (are_alive && commands["evalsha"] == 2).then_some(commands)
}

#[tokio::test]
async fn a_turn_costs_the_same_however_many_wait() {
    let mut costs = Vec::new();
    for behind in [1, 100, 10_000] {
        let mut tries = 0..20;
        costs.push(loop {
            assert!(
                tries.next().is_some(),
                "no turn without a poll, and within a heartbeat"
            );
            if let Some(commands) = commands_of_a_turn(behind).await {
                break commands;
            }
        });
    }
    assert_eq!(costs[0], costs[1]);
    assert_eq!(costs[0], costs[2]);
    assert!(!costs[0].contains_key("zincrby"), "{:?}", costs[0]);
}

/// Whether a word is a current timestamp, in any unit.
fn is_a_time(word: &str) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("it is after 1970").as_secs_f64();
    let year = 366.0 * 86_400.0;
    word.parse::<f64>().is_ok_and(|number| {
        [1.0, 1e3, 1e6, 1e9]
            .iter()
            .any(|unit| (number / unit - now).abs() < year)
    })
}

/// Clients' clocks are not used: clients send no timestamps, and scripts write them.
#[tokio::test]
async fn clients_send_no_time() {
    let scene = Scene::new().await;
    let stream = tokio::net::TcpStream::connect(scene.server.addr()).await;
    let mut monitor = BufReader::new(stream.unwrap());
    monitor.write_all(b"MONITOR\r\n").await.unwrap();
    let mut line = String::new();
    monitor.read_line(&mut line).await.unwrap();
    assert_eq!(line.trim(), "+OK");

    let lock = scene.lock().await.fenced();
    let held = lock.lock().await.unwrap();
    held.reenter().await.unwrap().release().await.unwrap();
    let wait = Duration::from_millis(200);
    assert!(lock.try_lock_for(wait).await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none());
    let waiter = wait_for(&lock);
    scene.queued(1).await;
    lock.waiters().await.unwrap();
    held.release().await.unwrap();
    done(waiter).await.forget();
    lock.force_unlock().await.unwrap();
    let _: String = scene.ask(&["PING", "no more calls"]).await;

    let (mut calls, mut times_written) = (0, 0);
    loop {
        line.clear();
        let read = lockset_testkit::within(SOON, monitor.read_line(&mut line)).await;
        assert!(read.unwrap() > 0);
        if line.contains("no more calls") {
            break;
        }
        // The line begins with the server's timestamp and the address.
        let (_, command) = line.split_once("] ").expect("an address");
        let mut words = command.split('"').skip(1).step_by(2);
        if line.contains(" lua] ") {
            times_written += words.filter(|word| is_a_time(word)).count();
        } else if words.clone().any(|word| word == "EVALSHA") {
            calls += 1;
            assert_eq!(words.find(|word| is_a_time(word)), None, "{line}");
        }
    }
    assert!(calls >= 9, "{calls} calls were looked at");
    assert!(times_written > 0, "none would be recognized");
}
