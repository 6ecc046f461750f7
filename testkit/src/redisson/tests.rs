//! Redisson's scripts step by step on a real server: replies, keys and messages.

use std::collections::BTreeMap;

use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::*;
use crate::{eventually, within};

const LEASE: Duration = Redisson::WATCHDOG_TIMEOUT;
const WAIT: Duration = Redisson::FAIR_WAIT;
const SOON: Duration = Duration::from_secs(5);

/// Long enough for a waiter to be asleep, where nothing else shows it.
const PARKED: Duration = Duration::from_millis(200);

/// A server, two processes, and a view of the keys and messages.
struct Scene {
    server: Server,
    admin: MultiplexedConnection,
    peer: Redisson,
    other: Redisson,
    // Only kept open.
    _ear: MultiplexedConnection,
    heard: UnboundedReceiver<PushInfo>,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let (sender, heard) = unbounded_channel();
        let url = format!("{}?protocol=resp3", server.url());
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let mut ear = Client::open(url)
            .unwrap()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap();
        ear.psubscribe("*").await.unwrap();
        Self {
            admin: server.admin().await,
            peer: Redisson::connect(&server).await,
            other: Redisson::connect(&server).await,
            server,
            _ear: ear,
            heard,
        }
    }

    async fn ask<T: FromRedisValue>(&mut self, line: &str) -> T {
        let mut words = line.split(' ');
        let mut command = cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        let answer = command.query_async(&mut self.admin).await;
        answer.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    async fn hash(&mut self, key: &str) -> BTreeMap<String, String> {
        self.ask(&format!("HGETALL {key}")).await
    }

    async fn pttl(&mut self, key: &str) -> i64 {
        self.ask(&format!("PTTL {key}")).await
    }

    async fn scores(&mut self, name: &str) -> BTreeMap<String, i64> {
        let key = Redisson::fair_deadlines(name);
        self.ask(&format!("ZRANGE {key} 0 -1 WITHSCORES")).await
    }

    async fn queue(&mut self, name: &str) -> Vec<String> {
        let key = Redisson::fair_queue(name);
        self.ask(&format!("LRANGE {key} 0 -1")).await
    }

    /// The messages published since the last call, as `CHANNEL PAYLOAD`.
    async fn messages(&mut self) -> Vec<String> {
        // The test's own message marks the end.
        let _: i64 = self.ask("PUBLISH now end").await;
        let mut messages = Vec::new();
        loop {
            let push = within(SOON, self.heard.recv()).await.unwrap();
            if push.kind != PushKind::PMessage {
                continue;
            }
            let text = |value: &Value| String::from_redis_value_ref(value).unwrap();
            let (channel, payload) = (text(&push.data[1]), text(&push.data[2]));
            if channel == "now" {
                return messages;
            }
            messages.push(format!("{channel} {payload}"));
        }
    }

    async fn evals(&self) -> u64 {
        let stats = self.server.commandstats().await;
        stats.get("eval").copied().unwrap_or(0)
    }

    /// Waits until the attempts of all waiters are finished and the waiters are asleep.
    async fn asleep(&self, evals: u64) {
        eventually(SOON, "the waiters have asked", async || {
            self.evals().await >= evals
        })
        .await;
        sleep(PARKED).await;
    }
}

/// A few round trips have passed since the value was exactly `expected`.
#[track_caller]
fn just_under(expected: i64, actual: Option<i64>) {
    let actual = actual.expect("a number");
    assert!(
        (expected - 5_000..=expected).contains(&actual),
        "{actual} instead of {expected}"
    );
}

fn fields<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .into()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn epoch_ms(peer: &Redisson) -> i64 {
    peer.now().parse().unwrap()
}

#[tokio::test]
async fn plain_lock_step_by_step() {
    let mut scene = Scene::new().await;
    let (peer, other) = (scene.peer.clone(), scene.other.clone());
    let h = peer.holder(1);
    let (uuid, thread) = h.split_once(':').unwrap();
    assert!(Uuid::parse_str(uuid).is_ok() && thread == "1", "{h}");

    assert_eq!(peer.lock_acquire("L", 1, LEASE).await, None);
    assert_eq!(scene.hash("L").await, fields([(&h, "1")]));
    just_under(30_000, Some(scene.pttl("L").await));
    just_under(30_000, other.lock_acquire("L", 1, LEASE).await);
    just_under(30_000, peer.lock_acquire("L", 2, LEASE).await);

    // A shorter inner lease shortens the outer one.
    assert_eq!(peer.lock_acquire("L", 1, secs(10)).await, None);
    assert_eq!(scene.hash("L").await, fields([(&h, "2")]));
    just_under(10_000, Some(scene.pttl("L").await));

    let latch = Latch::new("L");
    assert!(
        latch.key.starts_with("redisson_unlock_latch:{L}:"),
        "{latch:?}"
    );
    assert_eq!(peer.lock_release_once("L", 1, &latch).await, Some(0));
    assert_eq!(scene.hash("L").await, fields([(&h, "1")]));
    just_under(30_000, Some(scene.pttl("L").await));
    let stored: String = scene.ask(&format!("GET {}", latch.key)).await;
    assert_eq!(stored, "0");
    let kept = scene.pttl(&latch.key).await;
    assert!((11_000..=20_000).contains(&kept), "{kept}");
    assert_eq!(peer.lock_release_once("L", 1, &latch).await, Some(0));
    assert_eq!(scene.hash("L").await, fields([(&h, "1")]), "asked twice");
    assert_eq!(scene.messages().await, [""; 0]);
    peer.forget(latch).await;

    assert_eq!(peer.lock_release("L", 1).await, Some(1));
    assert_eq!(scene.messages().await, ["redisson_lock__channel:{L} 0"]);
    assert_eq!(peer.lock_release("L", 1).await, None);
    assert_eq!(scene.messages().await, [""; 0]);
    assert_eq!(scene.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn plain_lock_without_a_lease_is_reported_as_such() {
    let mut scene = Scene::new().await;
    let _: i64 = scene.ask("HSET L someone:1 1").await;
    assert_eq!(scene.peer.lock_acquire("L", 1, LEASE).await, Some(-1));
}

#[tokio::test]
async fn force_unlock_frees_and_notifies() {
    let mut scene = Scene::new().await;
    let (peer, other) = (scene.peer.clone(), scene.other.clone());
    assert!(!other.force_unlock("L").await);
    peer.lock_acquire("L", 1, LEASE).await;
    assert!(other.force_unlock("L").await);
    assert_eq!(scene.messages().await, ["redisson_lock__channel:{L} 0"]);

    peer.fair_acquire("F", 1, LEASE, WAIT).await;
    peer.fair_acquire("F", 2, LEASE, WAIT).await;
    assert!(other.fair_force_unlock("F").await);
    assert!(!other.fair_force_unlock("F").await);
    let head = Redisson::fair_channel("F", &peer.holder(2));
    assert_eq!(scene.messages().await, [format!("{head} 0")]);

    peer.read_acquire("W", 1, LEASE).await;
    assert!(!other.write_force_unlock("W").await);
    assert!(other.read_force_unlock("W").await);
    peer.write_acquire("W", 1, LEASE).await;
    assert!(!other.read_force_unlock("W").await);
    assert!(other.write_force_unlock("W").await);
    let told = ["redisson_rwlock:{W} 0", "redisson_rwlock:{W} 1"];
    assert_eq!(scene.messages().await, told);
}

#[tokio::test]
async fn fair_lock_step_by_step() {
    let mut scene = Scene::new().await;
    let (holder, peer) = (scene.other.clone(), scene.peer.clone());
    let [h1, h2, h3] = [1, 2, 3].map(|thread| peer.holder(thread));
    let before = epoch_ms(&peer);

    assert_eq!(holder.fair_acquire("F", 1, LEASE, WAIT).await, None);
    just_under(30_000, peer.fair_acquire("F", 1, LEASE, WAIT).await);
    just_under(330_000, peer.fair_acquire("F", 2, LEASE, WAIT).await);
    just_under(30_000, peer.fair_acquire("F", 2, LEASE, WAIT).await);
    assert_eq!(scene.queue("F").await, [&*h1, &*h2]);
    let scores = scene.scores("F").await;
    assert_eq!(scores.len(), 2);
    let late = epoch_ms(&peer) - before;
    for (waiter, ahead) in [(&h1, 330_000), (&h2, 630_000)] {
        let ahead_of_start = scores[waiter] - before;
        assert!(
            (ahead - 5_000..=ahead + late).contains(&ahead_of_start),
            "{waiter}: {ahead_of_start} after {late}"
        );
    }
    assert_eq!(scores[&h2] - scores[&h1], 300_000);
    assert_eq!(scene.pttl("redisson_lock_queue:{F}").await, -1);
    assert_eq!(scene.pttl("redisson_lock_timeout:{F}").await, -1);

    // Held by another thread, and then free, each with its reply.
    assert_eq!(peer.fair_release("F", 1).await, None);
    assert_eq!(holder.fair_release("F", 1).await, Some(1));
    let head = format!("redisson_lock__channel:{{F}}:{h1} 0");
    assert_eq!(scene.messages().await, [&*head]);
    assert_eq!(peer.fair_acquire("F", 2, LEASE, WAIT).await, Some(0));
    just_under(630_000, peer.fair_acquire("F", 3, LEASE, WAIT).await);
    assert!(!peer.fair_try("F", 4, LEASE).await, "others were first");
    assert_eq!(holder.fair_release("F", 7).await, Some(1), "a stranger");
    assert_eq!(scene.messages().await, [&*head]);

    let before = scene.scores("F").await;
    assert_eq!(peer.fair_acquire("F", 1, LEASE, WAIT).await, None);
    assert_eq!(scene.queue("F").await, [&*h2, &*h3]);
    let mut after = scene.scores("F").await;
    after.values_mut().for_each(|score| *score += 300_000);
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|(waiter, score)| before[waiter] == *score));

    // A re-entry, and the stored answer to a repeated request.
    assert_eq!(peer.fair_acquire("F", 1, LEASE, WAIT).await, None);
    assert!(peer.fair_try("F", 1, LEASE).await);
    assert_eq!(scene.hash("F").await, fields([(&h1, "3")]));
    let latch = Latch::new("F");
    assert_eq!(peer.fair_release_once("F", 1, &latch).await, Some(0));
    assert_eq!(peer.fair_release_once("F", 1, &latch).await, Some(0));
    assert_eq!(scene.hash("F").await, fields([(&h1, "2")]));
    peer.forget(latch).await;
    assert_eq!(scene.messages().await, [""; 0]);
}

#[tokio::test]
async fn fair_waiters_who_leave_move_the_others_up() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let wait = secs(5);
    assert!(peer.fair_try("F", 1, LEASE).await);
    for (thread, ttl) in [(2, 30_000), (3, 35_000), (4, 40_000), (5, 45_000)] {
        just_under(ttl, peer.fair_acquire("F", thread, LEASE, wait).await);
    }
    let before = scene.scores("F").await;
    peer.fair_give_up("F", 3, wait).await;
    peer.fair_give_up("F", 3, wait).await;
    let left = [2, 4, 5].map(|thread| peer.holder(thread));
    assert_eq!(scene.queue("F").await, left);
    let after = scene.scores("F").await;
    let moved = left.map(|waiter| before[&waiter] - after[&waiter]);
    assert_eq!((after.len(), moved), (3, [0, 5_000, 5_000]));
    assert_eq!(scene.messages().await, [""; 0], "no message");
}

#[tokio::test]
async fn fair_entry_without_a_deadline_blocks_for_ever() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone().clock_offset_ms(1_000_000_000);
    let _: i64 = scene.ask("RPUSH redisson_lock_queue:{F} ghost:1").await;
    assert_eq!(peer.fair_acquire("F", 1, LEASE, WAIT).await, Some(-2));
    assert_eq!(peer.fair_acquire("F", 1, LEASE, WAIT).await, Some(0));
    assert!(!peer.fair_try("F", 2, LEASE).await);
    assert_eq!(
        scene.queue("F").await,
        ["ghost:1".to_owned(), peer.holder(1)]
    );
}

#[tokio::test]
async fn fair_waiters_are_evicted_by_a_clock_that_is_ahead() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let ahead = scene.other.clone().clock_offset_ms(331_000);
    peer.fair_acquire("F", 1, LEASE, WAIT).await;
    peer.fair_acquire("F", 2, LEASE, WAIT).await;
    peer.fair_acquire("F", 3, LEASE, WAIT).await;
    assert!(!ahead.fair_try("F", 1, LEASE).await);
    assert_eq!(scene.queue("F").await, [peer.holder(3)]);
    assert_eq!(scene.messages().await, [""; 0], "no message");
}

#[tokio::test]
async fn write_holds_add_their_leases() {
    let mut scene = Scene::new().await;
    let (peer, other) = (scene.peer.clone(), scene.other.clone());
    let h = peer.holder(1);
    let writer = peer.write_holder(1);
    assert_eq!(peer.write_acquire("W", 1, LEASE).await, None);
    assert_eq!(peer.write_acquire("W", 1, LEASE).await, None);
    let twice = fields([("mode", "write"), (&format!("{h}:write"), "2")]);
    assert_eq!(scene.hash("W").await, twice);
    just_under(60_000, Some(scene.pttl("W").await));
    just_under(60_000, other.write_acquire("W", 1, LEASE).await);
    just_under(60_000, other.read_acquire("W", 1, LEASE).await);

    let latch = Latch::new("W");
    assert_eq!(peer.write_release_once("W", 1, &latch).await, Some(0));
    assert_eq!(peer.write_release_once("W", 1, &latch).await, Some(0));
    peer.forget(latch).await;
    let once = fields([("mode", "write"), (&*writer, "1")]);
    assert_eq!(scene.hash("W").await, once);
    just_under(30_000, Some(scene.pttl("W").await));
    assert_eq!(other.write_release("W", 1).await, None);
    assert_eq!(other.read_release("W", 1).await, None);
    assert_eq!(scene.messages().await, [""; 0]);
    assert_eq!(peer.write_release("W", 1).await, Some(1));
    assert_eq!(scene.messages().await, ["redisson_rwlock:{W} 1"]);
    assert_eq!(scene.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn downgrade_publishes_nothing() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let h = peer.holder(1);
    peer.write_acquire("W", 1, LEASE).await;
    assert_eq!(peer.read_acquire("W", 1, LEASE).await, None);
    let writer = peer.write_holder(1);
    let both = fields([("mode", "write"), (&writer, "1"), (&h, "1")]);
    assert_eq!(scene.hash("W").await, both);
    let hold = Redisson::read_hold("W", &h, 1);
    assert_eq!(hold, format!("{{W}}:{h}:rwlock_timeout:1"));
    just_under(30_000, Some(scene.pttl(&hold).await));
    let stored: String = scene.ask(&format!("GET {hold}")).await;
    assert_eq!(stored, "1");

    assert_eq!(peer.write_release("W", 1).await, Some(1));
    assert_eq!(scene.hash("W").await, fields([("mode", "read"), (&h, "1")]));
    assert_eq!(scene.messages().await, [""; 0]);
    // No upgrade, not even for the only reader.
    just_under(30_000, peer.write_acquire("W", 1, LEASE).await);
    assert_eq!(peer.write_release("W", 1).await, None);
    assert_eq!(peer.read_release("W", 1).await, Some(1));
    assert_eq!(scene.messages().await, ["redisson_rwlock:{W} 0"]);
    assert_eq!(scene.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_read_inside_a_write_leaves_the_write() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    peer.write_acquire("W", 1, LEASE).await;
    peer.read_acquire("W", 1, LEASE).await;
    assert_eq!(peer.read_release("W", 1).await, Some(0));
    let writer = peer.write_holder(1);
    let write = fields([("mode", "write"), (&writer, "1")]);
    assert_eq!(scene.hash("W").await, write);
    assert_eq!(scene.messages().await, [""; 0]);
}

#[tokio::test]
async fn the_lock_lives_as_long_as_its_longest_reader() {
    let mut scene = Scene::new().await;
    let (peer, other) = (scene.peer.clone(), scene.other.clone());
    assert_eq!(peer.read_acquire("W", 1, secs(60)).await, None);
    assert_eq!(other.read_acquire("W", 1, secs(5)).await, None);
    just_under(60_000, Some(scene.pttl("W").await));
    just_under(60_000, other.write_acquire("W", 1, LEASE).await);
    assert_eq!(other.read_acquire("W", 1, secs(20)).await, None);
    let latch = Latch::new("W");
    assert_eq!(peer.read_release_once("W", 1, &latch).await, Some(0));
    assert_eq!(peer.read_release_once("W", 1, &latch).await, Some(0));
    peer.forget(latch).await;
    just_under(20_000, Some(scene.pttl("W").await));
    // The holds of one thread end with the last one taken.
    assert_eq!(other.read_release("W", 1).await, Some(0));
    just_under(5_000, Some(scene.pttl("W").await));
    let hold = Redisson::read_hold("W", &other.holder(1), 1);
    assert_eq!(scene.server.keys().await, ["W", &hold]);

    // The next thread that leaves removes a reader whose hold keys are gone.
    peer.read_acquire("W", 1, secs(60)).await;
    let _: i64 = scene.ask(&format!("DEL {hold}")).await;
    assert_eq!(peer.read_release("W", 1).await, Some(1));
    assert_eq!(other.read_release("W", 1).await, None);
}

#[tokio::test]
async fn releasing_a_missing_lock_still_publishes() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let latch = Latch::new("W");
    assert_eq!(peer.read_release_once("W", 1, &latch).await, None);
    let stored: String = scene.ask(&format!("GET {}", latch.key)).await;
    assert_eq!(stored, "1");
    assert_eq!(peer.read_release_once("W", 1, &latch).await, Some(1));
    peer.forget(latch).await;
    assert_eq!(peer.write_release("W", 1).await, None);
    let told = ["redisson_rwlock:{W} 0", "redisson_rwlock:{W} 1"];
    assert_eq!(scene.messages().await, told);
    assert_eq!(scene.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn renewals_step_by_step() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    peer.lock_acquire("k1", 1, secs(60)).await;
    let renewed = peer.lock_renew(&[("k1", 1), ("k2", 1)], LEASE).await;
    assert_eq!(renewed, [true, false]);
    just_under(30_000, Some(scene.pttl("k1").await));

    assert!(!peer.read_renew("W", &[1, 2], LEASE).await);
    for _ in 0..2 {
        peer.read_acquire("W", 1, secs(10)).await;
    }
    scene.other.read_acquire("W", 1, secs(10)).await;
    assert!(peer.read_renew("W", &[2, 1], LEASE).await);
    just_under(30_000, Some(scene.pttl("W").await));
    for number in [1, 2] {
        let hold = Redisson::read_hold("W", &peer.holder(1), number);
        just_under(30_000, Some(scene.pttl(&hold).await));
    }
    let foreign = Redisson::read_hold("W", &scene.other.holder(1), 1);
    just_under(10_000, Some(scene.pttl(&foreign).await));

    peer.write_acquire("V", 1, secs(60)).await;
    assert!(peer.write_renew("V", 1, LEASE).await);
    assert!(!peer.write_renew("V", 2, LEASE).await);
    just_under(30_000, Some(scene.pttl("V").await));
}

#[tokio::test]
async fn kinds_share_a_name_as_they_do() {
    let mut scene = Scene::new().await;
    let (peer, other) = (scene.peer.clone(), scene.other.clone());
    peer.lock_acquire("N", 1, LEASE).await;
    just_under(30_000, other.fair_acquire("N", 1, LEASE, WAIT).await);
    // A reentrant hold has no mode, so a writer takes the lock for free.
    assert_eq!(other.write_acquire("N", 1, LEASE).await, None);
    let writer = other.write_holder(1);
    let both = fields([(&*peer.holder(1), "1"), ("mode", "write"), (&writer, "1")]);
    assert_eq!(scene.hash("N").await, both);
}

#[tokio::test]
async fn names_with_a_brace_get_none() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let h = peer.holder(1);
    peer.lock_acquire("a{b}c", 1, LEASE).await;
    peer.fair_acquire("a{b}c", 2, LEASE, WAIT).await;
    peer.read_acquire("r{b", 1, LEASE).await;
    let hold = format!("r{{b:{h}:rwlock_timeout:1");
    let keys = [
        "a{b}c",
        "redisson_lock_queue:a{b}c",
        "redisson_lock_timeout:a{b}c",
        "r{b",
        &hold,
    ];
    assert_eq!(scene.server.keys().await, keys);
    let latch = Latch::new("a{b}c");
    assert!(latch.key.starts_with("redisson_unlock_latch:a{b}c:"));
    peer.lock_release("a{b}c", 1).await;
    peer.fair_release("a{b}c", 1).await;
    assert_eq!(peer.read_acquire("r{b", 1, secs(60)).await, None);
    assert_eq!(peer.read_release("r{b", 1).await, Some(0));
    just_under(30_000, Some(scene.pttl("r{b").await));
    assert_eq!(peer.read_release("r{b", 1).await, Some(1));
    let head = peer.holder(2);
    let told = [
        "redisson_lock__channel:a{b}c 0",
        &format!("redisson_lock__channel:a{{b}}c:{head} 0"),
        "redisson_rwlock:r{b 0",
    ];
    assert_eq!(scene.messages().await, told);
}

#[tokio::test]
async fn every_release_lets_one_waiter_of_a_process_in() {
    let scene = Scene::new().await;
    let peer = scene.peer.clone();
    peer.lock_acquire("L", 1, LEASE).await;
    let waiters: Vec<_> = (2..5)
        .map(|thread| {
            let peer = peer.clone();
            tokio::spawn(async move {
                assert!(peer.lock("L", thread, LEASE, secs(10)).await);
                peer.lock_release("L", thread).await
            })
        })
        .collect();
    scene.asleep(7).await;
    assert_eq!(
        scene.server.pubsub_channels().await,
        ["redisson_lock__channel:{L}"]
    );
    assert_eq!(peer.lock_release("L", 1).await, Some(1));
    for waiter in waiters {
        assert_eq!(within(SOON, waiter).await.unwrap(), Some(1));
    }
    // One release each, and one attempt for each release except the last.
    assert_eq!(scene.evals().await, 7 + 4 + 3);
    eventually(SOON, "the subscription is closed", async || {
        scene.server.pubsub_channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_writer_lets_all_readers_in_and_a_reader_one() {
    let scene = Scene::new().await;
    let peer = scene.peer.clone();
    let other = scene.other.clone();
    let wait_all = |write: bool| {
        let peer = peer.clone();
        (2..6)
            .map(|thread| {
                let peer = peer.clone();
                tokio::spawn(async move {
                    if write {
                        peer.write_lock("W", thread, LEASE, secs(3)).await
                    } else {
                        peer.read_lock("W", thread, LEASE, secs(10)).await
                    }
                })
            })
            .collect::<Vec<_>>()
    };
    other.write_acquire("W", 1, LEASE).await;
    let readers = wait_all(false);
    scene.asleep(1 + 8).await;
    assert_eq!(other.write_release("W", 1).await, Some(1));
    for reader in readers {
        assert!(within(SOON, reader).await.unwrap());
    }

    let before = scene.evals().await;
    let writers = wait_all(true);
    scene.asleep(before + 8).await;
    for thread in 2..6 {
        peer.read_release("W", thread).await;
    }
    let mut entered = 0;
    for writer in writers {
        entered += u32::from(within(SOON, writer).await.unwrap());
    }
    assert_eq!(entered, 1, "the first of them never left");
}

#[tokio::test]
async fn fair_waiters_enter_in_order_each_by_its_own_message() {
    let mut scene = Scene::new().await;
    let peers = [scene.peer.clone(), scene.other.clone()];
    peers[0].fair_acquire("F", 1, LEASE, WAIT).await;
    let (sender, mut order) = unbounded_channel();
    let mut told = Vec::new();
    for (thread, peer) in (2..6).zip(peers.iter().cycle()) {
        told.push(format!(
            "{} 0",
            Redisson::fair_channel("F", &peer.holder(thread))
        ));
        let (peer, sender) = (peer.clone(), sender.clone());
        let before = scene.evals().await;
        tokio::spawn(async move {
            if peer.fair_lock("F", thread, LEASE, secs(20)).await {
                sender.send(thread).unwrap();
                peer.fair_release("F", thread).await;
            }
        });
        scene.asleep(before + 2).await;
    }
    assert_eq!(peers[0].fair_release("F", 1).await, Some(1));
    for thread in 2..6 {
        assert_eq!(within(SOON, order.recv()).await, Some(thread));
    }
    eventually(SOON, "all is over", async || {
        scene.server.keys().await.is_empty()
    })
    .await;
    assert_eq!(scene.messages().await, told);
}

#[tokio::test]
async fn fair_waiters_leave_their_place_or_remove_it() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    let limit = Duration::from_millis(100);
    peer.fair_acquire("F", 1, LEASE, WAIT).await;
    assert!(!peer.fair_lock("F", 2, LEASE, limit).await);
    assert!(!peer.fair_lock_within("F", 3, LEASE, limit).await);
    let dropped = peer.fair_lock("F", 4, LEASE, SOON);
    assert!(tokio::time::timeout(PARKED, dropped).await.is_err());
    let places = [peer.holder(2), peer.holder(4)];
    assert_eq!(scene.queue("F").await, places);
    assert_eq!(scene.scores("F").await.len(), 2);
    eventually(SOON, "the subscriptions are closed", async || {
        scene.server.pubsub_channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn fair_waiters_behind_a_dead_one_ask_without_a_pause() {
    let scene = Scene::new().await;
    let peer = scene.peer.clone();
    peer.fair_acquire("F", 1, LEASE, WAIT).await;
    peer.fair_acquire("F", 2, LEASE, WAIT).await;
    peer.fair_release("F", 1).await;
    let before = scene.evals().await;
    let limit = secs(2);
    assert!(!peer.fair_lock("F", 3, LEASE, limit).await);
    // The first answer was the time for its place in the queue. All later answers were 0.
    let asked = scene.evals().await - before;
    assert!(asked > 20, "{asked} attempts");
}

#[tokio::test]
async fn a_waiter_asks_again_after_the_reported_lease() {
    let scene = Scene::new().await;
    let peer = scene.peer.clone();
    let started = Instant::now();
    peer.write_acquire("W", 1, secs(2)).await;
    peer.read_acquire("W", 1, secs(2)).await;
    let other = scene.other.clone();
    let reader = tokio::spawn(async move { other.read_lock("W", 1, LEASE, SOON).await });
    scene.asleep(2 + 2).await;
    // Now readers could enter, but there is no message.
    peer.write_release("W", 1).await;
    assert!(within(SOON, reader).await.unwrap());
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(1_950), "{waited:?}");
}

#[tokio::test]
async fn messages_are_counted_and_nonsense_is_noted() {
    let mut scene = Scene::new().await;
    let peer = scene.peer.clone();
    peer.lock_acquire("L", 1, LEASE).await;
    let waiting = peer.clone();
    let waiter = tokio::spawn(async move { waiting.lock("L", 2, LEASE, SOON).await });
    scene.asleep(3).await;
    for payload in ["nonsense", "7", "-1", "1.5"] {
        let _: i64 = scene
            .ask(&format!("PUBLISH redisson_lock__channel:{{L}} {payload}"))
            .await;
    }
    sleep(PARKED).await;
    assert_eq!(scene.evals().await, 3, "nothing leads to another look");
    assert_eq!(
        peer.undecodable(),
        [
            "redisson_lock__channel:{L} \"nonsense\"",
            "redisson_lock__channel:{L} \"1.5\""
        ]
    );
    let _: i64 = scene.ask("PUBLISH redisson_lock__channel:{L} 0").await;
    scene.asleep(4).await;
    assert!(!waiter.is_finished(), "a look, and the lock is not free");
    peer.lock_release("L", 1).await;
    assert!(within(SOON, waiter).await.unwrap());
}

#[tokio::test]
async fn an_error_of_the_server_is_a_panic_that_says_which() {
    let mut scene = Scene::new().await;
    let () = scene.ask("SET L text").await;
    let peer = scene.peer.clone();
    let attempt = tokio::spawn(async move { peer.lock_acquire("L", 1, LEASE).await });
    let panic = attempt.await.unwrap_err().into_panic();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("lock_acquire"), "{message}");
    assert!(message.contains("WRONGTYPE"), "{message}");
}
