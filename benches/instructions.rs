//! The client's instructions for a cycle: acquire and release a free lock, beside the floor's; and several locks as
//! one, beside one lock.
//!
//! Times of a shared machine tell little of a few microseconds; a count of instructions is the same each
//! time. The program runs itself under `valgrind` on one thread, twice, with more cycles the second time: the
//! difference is the cost of these cycles, without all one-time costs. How often they read the clock is counted by the
//! same tool.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use lockset::MultiLock;
use lockset_testkit::Server;

use support::arguments::{Arguments, Effort};
use support::floor::{Floor, Nagle};
use support::{Flavour, in_a_task, lockset_client};

const NAME: &str = "instructions";

/// The words after which the program does the cycles, and nothing else: who, tasks or members, cycles of each
/// task, URL.
const WORK: &str = "--cycles";

const TASKS: [usize; 3] = [1, 64, 512];
const MEMBERS: [usize; 2] = [3, 10];

const LOCKSET: &str = "lockset";
const FLOOR: &str = "floor";
/// As [`LOCKSET`], with guards that are dropped.
const DROPPED: &str = "dropped";
/// One task that takes several locks as one.
const MULTI: &str = "multi";

/// Of all tasks together: not counted, and counted.
const BEFORE: usize = 1_024;
const COUNTED: usize = 4_096;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, who, size, cycles, url] = &words[..]
        && first == WORK
    {
        let number = |word: &String| word.parse().expect("a number");
        work(who, number(size), number(cycles), url);
        return;
    }
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let server = Server::start();
    let url = server.url();
    if arguments.effort == Effort::Test {
        for who in [LOCKSET, FLOOR, DROPPED, MULTI] {
            work(who, 2, 2, &url);
        }
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("there is no valgrind to count by");
        return;
    }
    println!("| tasks | lockset | floor | ratio | clock reads of lockset | of the floor |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for tasks in TASKS {
        let [ours, floor] = [LOCKSET, FLOOR].map(|who| counted(who, tasks, &url));
        println!(
            "| {tasks} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} |",
            ours.instructions,
            floor.instructions,
            ours.instructions / floor.instructions,
            ours.clock_reads,
            floor.clock_reads,
        );
    }
    println!("\n| tasks | guards that are dropped |");
    println!("| ---: | ---: |");
    for tasks in TASKS {
        let dropped = counted(DROPPED, tasks, &url).instructions;
        println!("| {tasks} | {dropped:.0} |");
    }
    println!("\n| members | all as one | one lock | ratio |");
    println!("| ---: | ---: | ---: | ---: |");
    let one = counted(LOCKSET, 1, &url).instructions;
    for members in MEMBERS {
        let all = counted(MULTI, members, &url).instructions;
        println!("| {members} | {all:.0} | {one:.0} | {:.2} |", all / one);
    }
}

/// Each task takes and releases a lock of its own, over and over; or one takes several as one.
fn work(who: &str, size: usize, cycles: usize, url: &str) {
    let (who, url) = (who.to_owned(), url.to_owned());
    in_a_task(&Flavour::CurrentThread.runtime(), async move {
        let name = |task: usize| format!("cycle:{task}");
        let mut running = Vec::new();
        if who == FLOOR {
            let floor = Floor::connect(&url, Nagle::Off).await;
            for task in 0..size {
                let mut lock = floor.lock(&name(task), "somebody");
                running.push(tokio::spawn(async move {
                    for _ in 0..cycles {
                        lock.cycle().await;
                    }
                }));
            }
        } else {
            let client = lockset_client(&url).await;
            let locks = (0..size).map(|task| client.lock(name(task)));
            if who == MULTI {
                let all = MultiLock::new(locks).expect("members that can be taken together");
                for _ in 0..cycles {
                    let guard = all.lock().await.expect("free locks");
                    guard.release().await.expect("holds that were kept");
                }
            } else {
                running.extend(locks.map(|lock| {
                    if who == DROPPED {
                        return tokio::spawn(async move {
                            for _ in 0..cycles {
                                drop(lock.lock().await.expect("a free lock"));
                            }
                        });
                    }
                    tokio::spawn(async move {
                        for _ in 0..cycles {
                            let guard = lock.lock().await.expect("a free lock");
                            guard.release().await.expect("a hold that was kept");
                        }
                    })
                }));
            }
        }
        for task in running {
            task.await.expect("no task panics");
        }
    });
}

/// For one cycle.
struct Counted {
    instructions: f64,
    clock_reads: f64,
}

fn counted(who: &str, size: usize, url: &str) -> Counted {
    let tasks = if who == MULTI { 1 } else { size };
    let [few, many] = [BEFORE, BEFORE + COUNTED].map(|cycles| {
        let each = cycles / tasks;
        (each * tasks, profile(who, size, each, url))
    });
    let cycles = (many.0 - few.0) as f64;
    let per_cycle = |count: fn(&Profile) -> u64| (count(&many.1) - count(&few.1)) as f64 / cycles;
    Counted {
        instructions: per_cycle(|profile| profile.instructions),
        clock_reads: per_cycle(|profile| profile.clock_reads),
    }
}

/// The result of a run.
struct Profile {
    instructions: u64,
    clock_reads: u64,
}

fn profile(who: &str, size: usize, cycles: usize, url: &str) -> Profile {
    let file = std::env::temp_dir().join(format!("lockset-instructions-{}", std::process::id()));
    let program = std::env::current_exe().expect("the path of this program");
    let out = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([WORK, who, &size.to_string(), &cycles.to_string(), url])
        .output()
        .expect("valgrind");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let profile = read_profile(&file);
    std::fs::remove_file(&file).expect("a file that was written");
    profile
}

/// Reads callgrind's format: `summary: instructions`; and before each count of calls `cfn=(id) name`, where the
/// name stands once.
fn read_profile(file: &Path) -> Profile {
    let text = std::fs::read_to_string(file).expect("a profile");
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut called = "";
    let (mut instructions, mut clock_reads) = (0, 0);
    for line in text.lines() {
        if let Some(count) = line.strip_prefix("summary: ") {
            instructions = count.trim().parse().expect("a number");
        } else if let Some(function) = line.strip_prefix("cfn=").or(line.strip_prefix("fn=")) {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            called = names.get(id).copied().unwrap_or_default();
        } else if let Some(calls) = line.strip_prefix("calls=")
            && is_clock(called)
        {
            let count = calls.split(' ').next().unwrap_or_default();
            clock_reads += count.parse::<u64>().expect("a number");
        }
    }
    Profile {
        instructions,
        clock_reads,
    }
}

fn is_clock(function: &str) -> bool {
    function.contains("system_now") || function.starts_with("clock_gettime")
}
