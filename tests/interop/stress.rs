//! Tasks of ours and threads of Java on one counter that nothing but the lock protects.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lockset_testkit::unique_name;

use crate::kind::{Kind, for_kinds};
use crate::pair::Pair;

/// Of each side.
const CROWD: u64 = 4;
const ROUNDS: u64 = 20_000 / (2 * CROWD);

/// The longest that anybody waited for one grant, on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// For a thread of Java that writes: now and then it misses the message of the last one that has written, whoever
/// sent it, and sleeps until that lease would have ended (`docs/redisson.md`).
const JAVA_WRITE_WAIT_MAX: Duration = Duration::from_secs(30 + 10);

/// The same under a multi-lock. Now and then a thread of Java misses the message of another that has
/// written, and sleeps through its 7.5 s with the members that it has; twice in a row is rare.
const MULTI_WAIT_MAX: Duration = Duration::from_secs(30);

/// Three big-endian numbers in a file: the count, who counted last, and how often that changed.
fn add_one(file: &File) {
    let mut bytes = [0; 24];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let [count, last, changes] = numbers(&bytes);
    // Room for another in between.
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

/// Threads of Java that ask for several locks without a rest always hold some of them, as they hold
/// those they have while they wait for the next; so ours, which are taken all or none, would wait
/// until they are done. Here everybody rests for four times as long as a turn took.
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
