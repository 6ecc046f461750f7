//! Tasks of tests.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// Spawns a task, as `tokio::spawn` does.
///
/// Boxed: the runtime's code for a task is compiled once for each type of future, and tests have a thousand of them.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    let work: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(work);
    tokio::spawn(work)
}
