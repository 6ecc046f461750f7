//! Rust tasks and Java threads increment a counter that only the lock protects.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lockset_testkit::unique_name;

use crate::kind::{Kind, for_kinds};
use crate::pair::Pair;

/// Tasks or threads per side.
const CROWD: u64 = 4;
const ROUNDS: u64 = 20_000 / (2 * CROWD);

/// The longest acceptable wait for one grant on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A Java writer sometimes misses the message of the previous writer of either side, and then
/// sleeps until that lease would have ended (`docs/redisson.md`).
const JAVA_WRITE_WAIT_MAX: Duration = Duration::from_secs(30 + 10);

/// As above, for a multi-lock: a Java thread that misses a message sleeps for 7.5 s with the
/// members it holds. Twice in a row is rare.
const MULTI_WAIT_MAX: Duration = Duration::from_secs(30);

/// The file has three big-endian numbers: the count, the last side that counted, and how often the
/// side changed.
fn add_one(file: &File) {
    let mut bytes = [0; 24];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let [count, last, changes] = numbers(&bytes);
    // Gives other threads a chance to interfere.
    std::thread::yield_now();
    let changes = changes + u64::from(last == JAVA);
    let new = [count + 1, RUST, changes].map(u64::to_be_bytes);
    file.write_all_at(new.as_flattened(), 0).unwrap();
}

const RUST: u64 = 0;
const JAVA: u64 = 1;

fn numbers(bytes: &[u8; 24]) -> [u64; 3] {
    let mut numbers = bytes
        .chunks_exact(8)
        .map(|eight| u64::from_be_bytes(eight.try_into().unwrap()));
    [(); 3].map(|()| numbers.next().unwrap())
}

async fn an_unprotected_counter_is_exact(kind: Kind) {
    exact(kind, ROUNDS, 0).await;
}

for_kinds! {
    an_unprotected_counter_is_exact: lock fenced fair write;
}

/// Java threads keep the members they have while they wait for the next one, so Java threads that
/// lock without a pause always hold some members. Our multi-lock takes all members or none, and
/// would starve. So everyone here pauses for four times the duration of a turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JDK: make interop"]
async fn an_unprotected_counter_is_exact_under_a_multi_lock() {
    exact(Kind::Multi, ROUNDS / 10, 4).await;
}

async fn exact(kind: Kind, rounds: u64, rests: u32) {
    let pair = Pair::start().await;
    let name = unique_name("lock");
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    std::fs::write(&path, [0; 24]).unwrap();
    let count = format!("{} {} {rounds} {rests}", kind.java(&name), path.display());
    let javas = (1..=CROWD).map(|thread| pair.java.tell(thread, "count", &count));
    let javas: Vec<_> = javas.collect();
    let rusts = (0..CROWD).map(|_| {
        let lock = kind.rust(&pair.rust, &name);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..rounds {
                let asked = Instant::now();
                let guard = lock.lock().await;
                longest = longest.max(asked.elapsed());
                add_one(&file);
                guard.release().await.unwrap();
                if rests > 0 {
                    tokio::time::sleep(asked.elapsed() * rests).await;
                }
            }
            longest
        })
    });
    let rusts: Vec<_> = rusts.collect();
    let (mut rust_wait, mut java_wait) = (Duration::ZERO, Duration::ZERO);
    for task in rusts {
        rust_wait = rust_wait.max(task.await.unwrap());
    }
    for thread in javas {
        java_wait = java_wait.max(Duration::from_millis(thread.await.parse().unwrap()));
    }
    let bytes = std::fs::read(&path).unwrap().try_into().unwrap();
    std::fs::remove_file(&path).unwrap();
    let [count, _, changes] = numbers(&bytes);
    println!("longest wait: Rust {rust_wait:?}, Java {java_wait:?}; {changes} hand-overs");
    assert_eq!(count, 2 * CROWD * rounds);
    assert!(changes >= rounds / 5, "{changes} hand-overs are no mix");
    let (rust_wait_max, java_wait_max) = match kind {
        Kind::Multi => (MULTI_WAIT_MAX, MULTI_WAIT_MAX),
        Kind::Write => (WAIT_MAX, JAVA_WRITE_WAIT_MAX),
        _ => (WAIT_MAX, WAIT_MAX),
    };
    assert!(rust_wait < rust_wait_max, "Rust waited {rust_wait:?}");
    assert!(java_wait < java_wait_max, "Java waited {java_wait:?}");
    pair.nothing_left().await;
}
