//! The memory of a lock: a handle, a hold, a waiter; in the client and at the server.
//!
//! Bytes that are allocated and not freed again, by a counting allocator here and by `used_memory`
//! there, for many of a kind; how often a cycle asks the allocator, beside the floor's; and what is left
//! after a million cycles, which has to be nothing.

mod support;

use std::alloc::System;
use std::time::Duration;

use lockset::{Client, ReentrantLock};
use lockset_testkit::{Server, eventually};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::task::JoinHandle;

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, FloorLock, Nagle};
use support::{Flavour, lockset_client, place};

#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NAME: &str = "memory";

/// Enough of a kind to make shared memory negligible.
const MANY: usize = 10_000;

/// Cycles that must leave no memory behind, and the number of their tasks.
const CYCLES: usize = 1_000_000;
const TASKS: usize = 64;

/// The memory that may remain, as tables of a fixed size may have grown.
const LEFT_MAX: i64 = 64 * 1024;

const A_WHILE: Duration = Duration::from_secs(60);

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let server = place::server();
    let (many, cycles) = match arguments.effort {
        Effort::Test => (100, 1_000),
        Effort::Quick => (MANY, CYCLES / 10),
        Effort::Full => (MANY, CYCLES),
    };
    let runtime = Flavour::MultiThread.runtime();
    let url = server.url();
    runtime.block_on(async move {
        let client = lockset_client(&url).await;
        let mut server = AtServer {
            floor: Floor::connect(&url, Nagle::Off).await,
            _process: server,
        };
        println!("| {many} of each, of fair waiters a tenth | bytes here | bytes at the server |");
        println!("| --- | ---: | ---: |");
        handles(&client, many).await;
        holds(&client, &mut server, many).await;
        waiters(&client, &mut server, many).await;
        fair_waiters(&client, &mut server, many / 10).await;
        allocations(&client, &mut server, many).await;
        growth(&client, &mut server, cycles).await;
    });
}

struct AtServer {
    floor: Floor,
    _process: Server,
}

impl AtServer {
    async fn bytes(&mut self) -> i64 {
        self.floor.used_memory().await
    }
}

/// Bytes that this process has allocated and not freed.
fn bytes_here() -> i64 {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

fn row(what: &str, here: i64, there: Option<i64>, many: usize) {
    let each = |bytes: i64| bytes / many as i64;
    let there = there.map_or("-".to_owned(), |there| each(there).to_string());
    println!("| {what} | {} | {there} |", each(here));
}

async fn handles(client: &Client, many: usize) {
    let mut handles: Vec<ReentrantLock> = Vec::with_capacity(many);
    let before = bytes_here();
    handles.extend((0..many).map(|number| client.lock(name("handle", number))));
    row("a handle", bytes_here() - before, None, many);
}

async fn holds(client: &Client, server: &mut AtServer, many: usize) {
    let mut guards = Vec::with_capacity(many);
    let (before, before_there) = (bytes_here(), server.bytes().await);
    for number in 0..many {
        let lock = client.lock(name("hold", number));
        guards.push(lock.lock().await.expect("the lock"));
    }
    let (here, there) = (bytes_here() - before, server.bytes().await - before_there);
    row("a hold", here, Some(there), many);
    for guard in guards {
        guard.release().await.expect("a hold that was kept");
    }
    idle(client).await;
}

/// Tasks of one client that wait for one lock. Each is a task of the runtime, too.
async fn waiters(client: &Client, server: &mut AtServer, many: usize) {
    let lock = client.lock("memory:crowd");
    let held = lock.lock().await.expect("the lock");
    let wait = || {
        let lock = lock.clone();
        async move { drop(lock.lock().await.expect("the lock")) }
    };
    let all_wait = async || client.stats().waiters == many;
    let what = "a waiter, its task included";
    let tasks = measured(server, what, many, wait, all_wait).await;
    held.release().await.expect("a hold that was kept");
    end(tasks).await;
    idle(client).await;
}

/// Tasks that wait for one fair lock: each has a place at the server, and a channel.
async fn fair_waiters(client: &Client, server: &mut AtServer, many: usize) {
    let lock = client.fair_lock("memory:queue");
    let held = lock.lock().await.expect("the lock");
    let wait = || {
        let lock = lock.clone();
        async move { drop(lock.lock().await.expect("the lock")) }
    };
    // Nothing is under way: each has its place, listens, and sleeps.
    let all_wait = async || {
        let stats = client.stats();
        stats.subscriptions == many
            && stats.background == 0
            && lock.waiters().await.expect("the queue").len() == many
    };
    let what = "a fair waiter, likewise";
    let tasks = measured(server, what, many, wait, all_wait).await;
    held.release().await.expect("a hold that was kept");
    end(tasks).await;
    idle(client).await;
}

/// The memory of many tasks, once they have reached their state.
async fn measured<F: Future<Output = ()> + Send + 'static>(
    server: &mut AtServer,
    what: &str,
    many: usize,
    task: impl FnMut() -> F,
    are_there: impl AsyncFnMut() -> bool,
) -> Vec<JoinHandle<()>> {
    let (before, before_there) = (bytes_here(), server.bytes().await);
    let tasks = crowd(many, task);
    eventually(A_WHILE, "all are there", are_there).await;
    let (here, there) = (bytes_here() - before, server.bytes().await - before_there);
    row(what, here, Some(there), many);
    tasks
}

/// How often one task that takes and releases a free lock asks the allocator, and for how much.
async fn allocations(client: &Client, server: &mut AtServer, cycles: usize) {
    println!("| of {cycles} cycles of one task, each | allocations | bytes |");
    println!("| --- | ---: | ---: |");
    let lock = client.lock("memory:cycle");
    let mut floor = server.floor.lock("memory:floor", "owner:0123456789abcdef");
    // Allocates everything that is made once.
    lockset_cycles(&lock, cycles).await;
    asked("floor", cycles, floor_cycles(&mut floor, cycles)).await;
    asked("lockset", cycles, lockset_cycles(&lock, cycles)).await;
}

async fn asked(what: &str, cycles: usize, work: impl Future<Output = ()>) {
    let before = ALLOCATED.stats();
    work.await;
    let asked = ALLOCATED.stats() - before;
    let each = |count: usize| count as f64 / cycles as f64;
    let times = each(asked.allocations + asked.reallocations);
    let bytes = each(asked.bytes_allocated);
    println!("| {what} | {times:.1} | {bytes:.0} |");
}

async fn lockset_cycles(lock: &ReentrantLock, cycles: usize) {
    for _ in 0..cycles {
        let guard = lock.lock().await.expect("the lock");
        guard.release().await.expect("a hold that was kept");
    }
}

async fn floor_cycles(lock: &mut FloorLock, cycles: usize) {
    for _ in 0..cycles {
        lock.cycle().await;
    }
}

/// Takes and releases locks, half of the times one that all want, and says what is left of it.
async fn growth(client: &Client, server: &mut AtServer, cycles: usize) {
    // Allocates everything that is made once.
    cycle(client, TASKS * 100).await;
    let (before, before_there) = (bytes_here(), server.bytes().await);
    cycle(client, cycles).await;
    let (here, there) = (bytes_here() - before, server.bytes().await - before_there);
    println!(
        "left after {cycles} cycles of {TASKS} tasks: {here} bytes here, {there} at the server"
    );
    assert!(here < LEFT_MAX && there < LEFT_MAX, "it grows");
}

async fn cycle(client: &Client, cycles: usize) {
    let mut number = 0;
    let tasks = crowd(TASKS, || {
        number += 1;
        let locks = [client.lock("memory:hot"), client.lock(name("own", number))];
        async move {
            for turn in 0..cycles / TASKS {
                let guard = locks[turn % 2].lock().await.expect("the lock");
                guard.release().await.expect("a hold that was kept");
            }
        }
    });
    end(tasks).await;
    idle(client).await;
}

fn crowd<F: Future<Output = ()> + Send + 'static>(
    many: usize,
    mut task: impl FnMut() -> F,
) -> Vec<JoinHandle<()>> {
    (0..many).map(|_| tokio::spawn(task())).collect()
}

async fn end(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no task panics");
    }
}

async fn idle(client: &Client) {
    eventually(A_WHILE, "nothing is in hand", async || {
        client.stats().is_idle()
    })
    .await;
}

fn name(what: &str, number: usize) -> String {
    format!("memory:{what}:{number:06}")
}
