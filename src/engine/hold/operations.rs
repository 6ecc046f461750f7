//! Operations on a hold at the server, one at a time.
//!
//! Invariant: an operation that others may wait for is driven by the client, not by a caller's future.

use std::future::Future;

use super::shell::Hold;
use crate::api::error::{Error, Kind, Result};
use crate::engine::operation::Operation;
use crate::script::CallBudget;

impl Hold {
    /// Begins an operation. `None` while another is under way.
    pub(super) fn begin_operation(&self) -> Option<Operation<'_>> {
        self.operations.begin()
    }

    /// Waits for the operations that began before.
    pub(super) async fn one_at_a_time(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Operation<'_>> {
        loop {
            if let Some(begun) = self.begin_operation() {
                return Ok(begun);
            }
            tokio::select! {
                biased;
                () = self.operations.ended() => {}
                () = self.core.clock.sleep_until(budget.deadline) => {
                    let message = "an earlier operation on this hold has no answer yet; check that \
                                   the server is up and reachable";
                    return Err(Error::new(Kind::Io, operation, message).of_lock(self.name()));
                }
            }
        }
    }

    /// Makes the client drive an operation on this hold to its end. The caller only waits for the outcome, so a
    /// future that is not polled delays no other.
    pub(super) fn driven<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> {
        // Handed over before the caller waits, so that its future stays small.
        let finished = self.core.watchdog.finish(work);
        async move {
            finished.await.unwrap_or_else(|| {
                let error = Error::orphaned(operation).of_lock(self.name());
                Err(error.at(self.core.scripts.transport.address()))
            })
        }
    }
}
