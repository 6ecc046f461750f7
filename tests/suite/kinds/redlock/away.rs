//! The cost of a dead or silent minority for a busy client, and how soon a server is used again.
//!
//! Memory and processor time are measured per process, so each probe runs in its own process.
//! `LOCKSET_PROBE_SECONDS=60` and `--nocapture` run it for that long under full load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockset::Redlock;
use lockset_testkit::{Server, eventually, unique_name};

use super::{LONG, Nodes, held_on};
use crate::support::{alone, is_alone, took_less};

/// The resident memory of this process.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().next());
    kb.unwrap().parse().unwrap()
}

/// The processor time of all threads of this process, in hundredths of a second.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Tasks that each acquire and release a lock in a loop.
struct Load {
    locks: Arc<AtomicU64>,
    tasks: tokio::task::JoinSet<()>,
}

/// The measurements of one phase.
struct Part {
    locks: u64,
    cpu_per_lock: f64,
}

impl Load {
    fn start(redlock: &Redlock, tasks: usize, pause: Duration) -> Self {
        let locks = Arc::<AtomicU64>::default();
        let mut set = tokio::task::JoinSet::new();
        for _ in 0..tasks {
            let lock = redlock.lock(unique_name("redlock"));
            let locks = Arc::clone(&locks);
            set.spawn(async move {
                loop {
                    let guard = lock.lock().await.unwrap();
                    // With a bare majority, a release fails when one server dies, or returns
                    // without its data.
                    let released = guard.release().await;
                    if let Err(error) = released {
                        assert!(error.is_io() || error.is_not_held(), "{error}");
                    }
                    locks.fetch_add(1, Ordering::Relaxed);
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                }
            });
        }
        Self { locks, tasks: set }
    }

    async fn part(&mut self, span: Duration) -> Part {
        let before = (self.locks.load(Ordering::Relaxed), cpu());
        tokio::time::sleep(span).await;
        if let Some(ended) = self.tasks.try_join_next() {
            panic!("a call failed: {ended:?}");
        }
        let locks = self.locks.load(Ordering::Relaxed) - before.0;
        #[allow(clippy::cast_precision_loss, reason = "a figure")]
        let cpu_per_lock = (cpu() - before.1) as f64 * 10_000.0 / locks as f64;
        Part {
            locks,
            cpu_per_lock,
        }
    }
}

/// Servers that are `away` cost next to nothing, and are used again once they are `back`.
async fn probe(away: impl Fn(&Server), back: impl Fn(&Server)) {
    let nodes = Nodes::start(3).await;
    // Full speed only on request, because other tests need the machine too.
    let whole = std::env::var("LOCKSET_PROBE_SECONDS").ok();
    let span = whole.as_ref().map_or(3, |span| span.parse().unwrap());
    let pause = Duration::from_millis(if whole.is_some() { 0 } else { 100 });
    let span = Duration::from_secs(span);
    let mut load = Load::start(&nodes.redlock, 64, pause);
    load.part(span / 4).await;
    let well = load.part(span / 2).await;
    let before = resident_kb();
    away(&nodes.servers[2]);
    let mut most = before;
    let mut parts = Vec::new();
    for _ in 0..10 {
        parts.push(load.part(span / 10).await);
        most = most.max(resident_kb());
    }
    let last = parts.last().unwrap();
    println!(
        "well: {} locks, {:.1} us of CPU each; away: {} locks a tenth, {:.1} us, memory {} KB -> {} KB; {:?}",
        well.locks,
        well.cpu_per_lock,
        last.locks,
        last.cpu_per_lock,
        before,
        most,
        nodes.clients[2].stats(),
    );
    back(&nodes.servers[2]);
    let returned = Instant::now();
    let name = unique_name("redlock");
    let server = std::slice::from_ref(&nodes.servers[2]);
    eventually(LONG, "it is used again", async || {
        let guard = nodes.redlock.lock(&name).lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let is_used = held_on(server, &name).await == 1;
        guard.release().await.unwrap();
        is_used
    })
    .await;
    println!("used again after {:?}", returned.elapsed());
    load.part(Duration::ZERO).await;
    load.tasks.shutdown().await;
    assert!(most - before < 20_000, "{before} KB -> {most} KB");
    took_less(returned, Duration::from_secs(5));
    nodes.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_minority_costs_next_to_nothing() {
    if is_alone() {
        probe(Server::stop, Server::cont).await
    } else {
        alone("kinds::redlock::away::a_silent_minority_costs_next_to_nothing")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_minority_costs_next_to_nothing() {
    if is_alone() {
        probe(Server::kill, Server::restart).await
    } else {
        alone("kinds::redlock::away::a_dead_minority_costs_next_to_nothing")
    }
}
