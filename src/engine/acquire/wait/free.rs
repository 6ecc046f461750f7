//! The way of a call to a lock that is probably free: one plain command, and none of the waits of other calls.
//!
//! Invariant: a call goes this way only if no task of its client has the lock or waits for it, and no client elsewhere
//! is known to listen. A refusal leads back to the loop.

use super::{Step, WaitLoop};
use crate::api::error::Result;

impl WaitLoop<'_> {
    /// Takes the lock if it is free.
    pub(super) async fn take_free(&mut self) -> Result<Step> {
        let (request, now) = (self.request(), self.clock().now());
        let (Some(place), Some(restore)) = (&self.place, self.attempt.plain(now)) else {
            return Ok(Step::Continue(()));
        };
        if request.options.owner.is_some() || !request.local.lock().begin_free(place.number(), now)
        {
            return Ok(Step::Continue(()));
        }
        request.ensure_open()?;
        let marks = self.waiter.marks();
        let budget = self.begin_asking(now)?;
        let asking = (self.attempt).ask(Some(&restore), now, self.at, budget);
        let outcome = asking.await?;
        let remaining = match self.answered(outcome, false) {
            Ok(step) => return Ok(step),
            Err(remaining) => remaining,
        };
        self.sleep(marks, remaining).await
    }
}
