//! A million locks held by one client, a hundred thousand different names a second, and ten thousand waiters.
//!
//! Of the holds: bytes here and at the server, what renewing all of them takes of both, and how long the client's end
//! takes. Of the names: the memory of the client must not grow with those it has seen, so the peak of the second half
//! of the time may not be above the first half's. The floor with as many tasks says what the machine can do. Of the
//! waiters for one fair lock: what keeping their places takes of the server.

mod support;

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use lockset::{Client, ReentrantGuard};
use lockset_testkit::Server;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::time::sleep;

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, Nagle};
use support::place::cpu;
use support::{Flavour, LEASE, TAKERS, in_a_task, lockset_client, place, slow};

#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HOLDS: &str = "many/holds";
const NAMES: &str = "many/names";
const WAITERS: &str = "many/waiters";

const MANY: usize = 1_000_000;

/// Clients with waiters.
const CLIENTS: usize = 10;

/// How long names are used, and between two looks at the memory.
const SPAN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// The second half's peak may be above the first half's by this, as tables of a fixed size may have grown.
const GROWTH_MAX: f64 = 1.03;
const GROWTH_BYTES: i64 = 64 * 1024;

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[HOLDS, NAMES, WAITERS]) {
        return;
    }
    let server = Arc::new(place::server());
    let (many, span) = match arguments.effort {
        Effort::Test => (1_000, Duration::from_millis(200)),
        Effort::Quick => (MANY / 10, SPAN / 10),
        Effort::Full => (MANY, SPAN),
    };
    let runtime = Flavour::MultiThread.runtime();
    if arguments.wants(HOLDS) {
        let renewed = arguments.effort != Effort::Test;
        in_a_task(&runtime, holds(Arc::clone(&server), many, renewed));
    }
    if arguments.wants(NAMES) {
        in_a_task(&runtime, names(server.url(), span));
    }
    if arguments.wants(WAITERS) {
        let of_each = many / 1_000;
        in_a_task(&runtime, waiters(server, of_each, span / 3));
    }
}

/// This many waiters of each of several clients, for one fair lock that another client holds.
async fn waiters(server: Arc<Server>, of_each: usize, span: Duration) {
    let mut admin = Floor::connect(&server.url(), Nagle::Off).await;
    let holder = lockset_client(&server.url()).await;
    let held = holder.fair_lock("waited for").lock().await;
    let held = held.expect("the lock");
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let client = lockset_client(&server.url()).await;
        for _ in 0..of_each {
            let lock = client.fair_lock("waited for");
            tasks.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
        }
        clients.push(client);
    }
    let queue = redis::cmd("LLEN")
        .arg("redisson_lock_queue:{waited for}")
        .clone();
    while admin.ask(&queue).await != redis::Value::Int((CLIENTS * of_each) as i64) {
        sleep(LOOK).await;
    }
    // Each asks by itself at first.
    sleep(span / 2).await;
    server.reset_stats().await;
    let before = cpu::of_server(&server).unwrap_or_default();
    let started = Instant::now();
    sleep(span).await;
    let used = (cpu::of_server(&server).unwrap_or_default() - before) as f64 / 1e9;
    let took = started.elapsed().as_secs_f64();
    let scripts = server
        .commandstats()
        .await
        .get("evalsha")
        .copied()
        .unwrap_or(0);
    println!(
        "{} waiters of {CLIENTS} clients for one fair lock: {:.1} % of a processor at the server, {:.0} scripts a second",
        CLIENTS * of_each,
        used / took * 100.0,
        scripts as f64 / took,
    );
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    for client in clients {
        client.shutdown().await.expect("nothing is left");
    }
    held.release().await.expect("a hold that was kept");
}

/// Bytes that this process has allocated and not freed.
fn bytes_here() -> i64 {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

/// The resident memory of a process in KiB.
fn resident(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}

async fn holds(server: Arc<Server>, many: usize, renewed: bool) {
    let mut admin = Floor::connect(&server.url(), Nagle::Off).await;
    let client = lockset_client(&server.url()).await;
    let (here, there) = (bytes_here(), admin.used_memory().await);
    let resident_before = [std::process::id(), server.pid()].map(resident);
    let started = Instant::now();
    let guards = take(&client, many).await;
    println!(
        "{many} holds taken at {:.0} a second",
        many as f64 / started.elapsed().as_secs_f64()
    );
    let each = |bytes: i64| bytes / many as i64;
    let resident_now = [std::process::id(), server.pid()].map(resident);
    println!("| bytes of a hold | allocated | resident |");
    println!("| --- | ---: | ---: |");
    for (who, allocated, at) in [
        ("client", bytes_here() - here, 0),
        ("server", admin.used_memory().await - there, 1),
    ] {
        let resident = (resident_now[at] - resident_before[at]) * 1024;
        println!("| {who} | {} | {} |", each(allocated), each(resident));
    }
    if renewed {
        passes(&server, &mut admin, &guards).await;
    }
    assert!(guards.iter().all(|guard| !guard.is_lost()), "all are kept");
    let mut guards = guards;
    let started = Instant::now();
    guards.truncate(many - many / 10);
    while client.stats().holds > guards.len() {
        sleep(Duration::from_millis(1)).await;
    }
    say("a tenth of the guards dropped and released", started);
    let started = Instant::now();
    let ended = client.shutdown().await;
    say("the client's end with the others kept", started);
    ended.expect("nothing of it is left");
    let started = Instant::now();
    drop(guards);
    say("the others dropped", started);
    admin.ask(redis::cmd("FLUSHALL").arg("ASYNC")).await;
}

fn say(what: &str, since: Instant) {
    println!("{what}: {:.2} s", since.elapsed().as_secs_f64());
}

async fn take(client: &Client, holds: usize) -> Vec<ReentrantGuard> {
    let takes = (0..holds).map(|hold| {
        let lock = client.lock(format!("many:{hold:07}"));
        async move { lock.lock().await.expect("the lock") }
    });
    stream::iter(takes).buffer_unordered(TAKERS).collect().await
}

/// Looks at the renewals for two thirds of a lease, in which each hold has two.
async fn passes(server: &Server, admin: &mut Floor, guards: &[ReentrantGuard]) {
    let part = LEASE / 3;
    // Until the first pass is over.
    sleep(part * 2).await;
    slow::note(admin, Duration::from_micros(100)).await;
    server.reset_stats().await;
    let processors = || [cpu::of_server(server), cpu::of_clients()].map(Option::unwrap_or_default);
    let before = processors();
    let (mut counts, mut renewed) = (Vec::new(), 0);
    for _ in 0..20 {
        sleep(part / 10).await;
        let all = server.commandstats().await;
        let now = all.get("pexpire").copied().unwrap_or(0);
        counts.push(now - renewed);
        renewed = now;
    }
    let after = processors();
    let scripts = server.commandstats().await["evalsha"];
    let of_pass =
        |who: usize| (after[who] - before[who]) as f64 / 1e9 * guards.len() as f64 / renewed as f64;
    let busiest = counts.iter().max().copied().unwrap_or(0) as f64 / (part / 10).as_secs_f64();
    let looked = Instant::now();
    let left = guards
        .iter()
        .map(ReentrantGuard::remaining)
        .min()
        .unwrap_or_default();
    println!(
        "a pass of all: {:.2} s of the server, {:.2} s of the client, every {} s; {:.0} holds in a script",
        of_pass(0),
        of_pass(1),
        part.as_secs(),
        renewed as f64 / scripts as f64
    );
    println!(
        "busiest second: {busiest:.0} renewals; longest script: {:.2} ms; shortest lease left: {:.1} of {} s (a look at all took {:.2} s)",
        slow::longest_script(admin).await.as_secs_f64() * 1e3,
        left.as_secs_f64(),
        LEASE.as_secs(),
        looked.elapsed().as_secs_f64()
    );
}

/// Uses a new name for each lock.
async fn names(url: String, span: Duration) {
    let mut floor = Floor::connect(&url, Nagle::Off).await;
    let client = lockset_client(&url).await;
    let floors = floor_names(&floor, span / 10).await;
    let (stop, number) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let tasks: Vec<_> = (0..TAKERS)
        .map(|_| {
            let (client, stop, number) = (client.clone(), Arc::clone(&stop), Arc::clone(&number));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let name = number.fetch_add(1, Ordering::Relaxed);
                    let guard = client.lock(format!("names:{name:09}")).lock().await;
                    guard
                        .expect("the lock")
                        .release()
                        .await
                        .expect("a hold that was kept");
                }
            })
        })
        .collect();
    // Allocates everything that is made once.
    sleep(span / 20).await;
    let (from, started) = (number.load(Ordering::Relaxed), Instant::now());
    let mut peaks = [[0_i64; 2]; 2];
    for peak in &mut peaks {
        let half = Instant::now();
        while half.elapsed() < span / 2 {
            peak[0] = peak[0].max(bytes_here());
            peak[1] = peak[1].max(floor.used_memory().await);
            sleep(LOOK).await;
        }
    }
    let used = number.load(Ordering::Relaxed) - from;
    let rate = used as f64 / started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no task panics");
    }
    let ratio = rate / floors;
    println!("{used} names, {rate:.0} a second: {ratio:.2}x the floor, which had {floors:.0}");
    for (who, at) in [("client", 0), ("server", 1)] {
        let [first, second] = [peaks[0][at], peaks[1][at]];
        println!("{who}: peak of the first half {first} bytes, of the second {second}");
        let most = (first as f64 * GROWTH_MAX) as i64 + GROWTH_BYTES;
        assert!(second <= most, "the memory of the {who} grows");
    }
    client.shutdown().await.expect("nothing is left");
}

/// The floor's rate with as many tasks, each with a new name for each lock.
async fn floor_names(floor: &Floor, span: Duration) -> f64 {
    let started = Instant::now();
    let tasks: Vec<_> = (0..TAKERS)
        .map(|task| {
            let floor = floor.clone();
            tokio::spawn(async move {
                let mut cycles = 0;
                while started.elapsed() < span {
                    let key = format!("floor:{task}:{cycles:09}");
                    floor.lock(&key, "owner:0123456789abcdef").cycle().await;
                    cycles += 1;
                }
                cycles
            })
        })
        .collect();
    let mut cycles = 0;
    for task in tasks {
        cycles += task.await.expect("no task panics");
    }
    f64::from(cycles) / started.elapsed().as_secs_f64()
}
