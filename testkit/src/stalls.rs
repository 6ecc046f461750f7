//! Notes the times when the machine does not let this process run.
//!
//! A thread notes them: it sleeps for a moment again and again, and sees when it wakes up much later. So a bound on
//! what the library takes need not contain what a busy machine takes.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const MOMENT: Duration = Duration::from_millis(10);

/// A shorter one is no stall.
const STALL_MIN: Duration = Duration::from_millis(50);

/// When each stall ended, and how long it was.
static STALLS: LazyLock<Mutex<Vec<(Instant, Duration)>>> = LazyLock::new(|| {
    thread::spawn(watch);
    Mutex::default()
});

fn watch() {
    loop {
        let began = Instant::now();
        thread::sleep(MOMENT);
        let (end, late) = (Instant::now(), began.elapsed().saturating_sub(MOMENT));
        if late >= STALL_MIN {
            let mut stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
            stalls.push((end, late));
        }
    }
}

/// Begins to watch, unless another test has.
pub fn begin() {
    LazyLock::force(&STALLS);
}

/// For how long the process did not run between these.
pub fn between(began: Instant, ended: Instant) -> Duration {
    // The thread notes the last one a moment after its end.
    thread::sleep(2 * MOMENT);
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let within = stalls.iter().map(|(end, length)| {
        let (from, to) = ((*end - *length).max(began), (*end).min(ended));
        to.saturating_duration_since(from)
    });
    within.sum()
}

/// Asserts that less than `bound` has passed. The times when the machine did not let this process run do not count, from
/// [`begin`] on.
///
/// # Panics
///
/// If it took longer.
#[track_caller]
pub fn took_less(since: Instant, bound: Duration) {
    took_less_until(Instant::now(), since, bound);
}

/// As [`took_less`], for what has ended before.
///
/// # Panics
///
/// If it took longer.
#[track_caller]
pub fn took_less_until(end: Instant, since: Instant, bound: Duration) {
    let took = end - since;
    if took >= bound {
        let stalled = between(since, end);
        let ran = took.saturating_sub(stalled);
        assert!(
            ran < bound,
            "it took {took:?} with stalls of {stalled:?}, not less than {bound:?}"
        );
    }
}
