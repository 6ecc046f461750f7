//! Bounded waits and unique names.
//!
//! Every wait ends with its result, or with a panic that names the caller and the condition.

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

/// The interval between two checks of [`eventually`].
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The interval between two checks of [`reached`]. A check may query many servers.
const WIDE_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// `prefix` followed by a random part: a name unique across tests, processes and runs.
#[must_use]
pub fn unique_name(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// Awaits `future` for at most `bound`.
///
/// # Panics
///
/// If the bound passes first, with "not within `bound`" and the caller's location. This is not an
/// `async fn`, which could not carry `#[track_caller]`.
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

/// Calls `check` every 5 ms until it returns `true`, for at most `bound`.
///
/// A call in progress when the bound passes is dropped. The check is called at least once.
///
/// # Panics
///
/// If the bound passes first, with `what`, the bound and the caller's location.
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

/// Calls `look` until it succeeds, for at most `bound`. Returns the last error after that.
///
/// A call in progress when the bound passes is dropped.
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
