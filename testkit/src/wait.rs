//! Bounded waiting and unique names.
//!
//! Every wait here ends: with its result, or with a panic that says where it was started and what it
//! waited for.

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

/// How long [`eventually`] rests between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long [`reached`] rests between two looks, each of which may go to many servers.
const WIDE_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// `prefix` followed by a random part: a name that no other test, process or run uses.
#[must_use]
pub fn unique_name(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// Awaits `future` for at most `bound`.
///
/// # Panics
///
/// With "not within `bound`" and the caller's place when the bound passes first.
// Not an `async fn`: those cannot carry `#[track_caller]`.
#[track_caller]
pub fn within<T>(bound: Duration, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        match timeout(bound, future).await {
            Ok(value) => value,
            Err(_) => panic!("not within {bound:?}, at {caller}"),
        }
    }
}

/// Calls `check` every 5 ms until it answers `true`, for at most `bound`.
///
/// A call still under way when the bound passes is dropped. The check is called at least once.
///
/// # Panics
///
/// With `what`, the bound and the caller's place when the bound passes first.
#[track_caller]
pub fn eventually<C>(bound: Duration, what: &str, mut check: C) -> impl Future<Output = ()>
where
    C: AsyncFnMut() -> bool,
{
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + bound;
        loop {
            if let Ok(true) = timeout_at(deadline, check()).await {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: not within {bound:?}, at {caller}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Calls `look` until it succeeds, for at most `bound`; then gives the reason why it did not last time.
///
/// A look still under way when the bound passes is dropped.
pub(crate) async fn reached<T, L>(bound: Duration, mut look: L) -> Result<T, String>
where
    L: AsyncFnMut() -> Result<T, String>,
{
    let deadline = Instant::now() + bound;
    let mut last = "the first look did not end".to_owned();
    loop {
        match timeout_at(deadline, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(reason)) => last = reason,
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(format!("not within {bound:?}: {last}"));
        }
        sleep(WIDE_POLL_INTERVAL).await;
    }
}
