//! The multi-lock: the cost of several locks as one for the caller, without contention.
//!
//! A cycle takes all members and releases them. It is compared with the cycle of one lock, and with the cycles of all
//! members one after the other, in rounds of short blocks that take turns.

mod support;

use std::time::{Duration, Instant};

use lockset::{Client, MultiLock, ReentrantLock};
use lockset_testkit::Server;

use support::arguments::Arguments;
use support::rounds::{median_micros, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const ROUNDS: usize = 9;

/// The subjects take turns after this many cycles; blocks of each subject in a round.
const BLOCK: usize = 50;
const BLOCKS: usize = 12;

const MEMBERS: [usize; 2] = [3, 10];

fn main() {
    let arguments = Arguments::of_this_run();
    let name = |members: usize, flavour: Flavour| {
        format!("multilock/{members} members/{}", flavour.name())
    };
    let all = MEMBERS.map(|members| Flavour::ALL.map(|flavour| name(members, flavour)));
    if arguments.listed(
        &all.as_flattened()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    ) {
        return;
    }
    let server = place::server();
    for members in MEMBERS {
        for flavour in Flavour::ALL {
            let name = name(members, flavour);
            if arguments.wants(&name) {
                cycles(&arguments, &server, members, flavour, &name);
            }
        }
    }
}

/// Three ways to take these locks.
#[derive(Clone)]
struct Subjects {
    single: ReentrantLock,
    each: Vec<ReentrantLock>,
    all: MultiLock,
}

impl Subjects {
    fn of(client: &Client, members: usize) -> Self {
        let locks = |what: &str| -> Vec<ReentrantLock> {
            let name = |member| format!("multilock:{what}:{member}");
            (0..members)
                .map(|member| client.lock(name(member)))
                .collect()
        };
        Self {
            single: client.lock("multilock:single"),
            each: locks("each"),
            all: MultiLock::new(locks("all")).expect("members that can be taken together"),
        }
    }

    async fn cycle(&self, way: usize) {
        match way {
            0 => {
                let guard = self.all.lock().await.expect("the locks");
                guard.release().await.expect("holds that were kept");
            }
            1 => one(&self.single).await,
            _ => {
                for lock in &self.each {
                    one(lock).await;
                }
            }
        }
    }
}

async fn one(lock: &ReentrantLock) {
    let guard = lock.lock().await.expect("the lock");
    guard.release().await.expect("a hold that was kept");
}

fn cycles(arguments: &Arguments, server: &Server, members: usize, flavour: Flavour, name: &str) {
    let runtime = flavour.runtime();
    let client = runtime.block_on(lockset_client(&server.url()));
    let subjects = Subjects::of(&client, members);
    let (blocks, block) = (arguments.scaled(BLOCKS), arguments.scaled(BLOCK));
    let results = rounds(arguments, ROUNDS, name, |_| {
        let subjects = subjects.clone();
        in_a_task(&runtime, async move {
            let mut times: [Vec<Duration>; 3] = Default::default();
            for first in 0..blocks {
                // None of them always follows the same other one.
                for way in (first..first + 3).map(|way| way % 3) {
                    for _ in 0..block {
                        let started = Instant::now();
                        subjects.cycle(way).await;
                        times[way].push(started.elapsed());
                    }
                }
            }
            times.map(|times| median_micros(&times))
        })
    });
    for (way, what) in [
        (1, "cycle p50, all/one lock".to_owned()),
        (2, format!("cycle p50, all/{members} cycles in a row")),
    ] {
        let ratios: Vec<f64> = results.iter().map(|times| times[0] / times[way]).collect();
        report(arguments, name, &what, &ratios);
    }
}
