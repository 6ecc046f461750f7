//! A single attempt, for a caller that asks several servers at once and can use an answer for a short
//! time only.
//!
//! The future owns all it needs, so that another task may drive it to its end. Invariant: dropped, it is
//! undone as every attempt is.

use std::time::Duration;

use super::attempt::Attempt;
use super::request::{LockRequest, Outcome, Requests, Wait, bound};
use crate::conn::Lane;
use crate::error::Result;
use crate::script::CallBudget;

/// Asks once, for at most `limit`; `None` if there is no answer by then.
///
/// A connection that breaks under the attempt is replaced and the server asked once more; one that
/// cannot be made is an error at once.
pub(crate) async fn attempt_once(request: LockRequest, limit: Duration) -> Result<Option<Outcome>> {
    request.ensure_open()?;
    let clock = request.core.clock;
    // The time that its replicas may take comes on top.
    let replication = request.options.replication;
    let limit = limit + replication.map_or(Duration::ZERO, |wanted| wanted.within);
    let now = clock.now();
    let end = now.after(limit);
    // A server that is slower than the limit is not dead: its connection stays.
    let budget = CallBudget::once(request.core.timing.reply);
    let all = [request];
    let bound = bound(&all, Wait::Never, now);
    let requests = Requests {
        all: &all,
        bound: &bound,
    };
    let asking = async {
        let mut attempt = Attempt::single(requests);
        drop(requests.all[0].local.sticky.take());
        requests.releases_sent(end).await;
        let mut outcome = attempt.ask(0, Lane::Command, budget).await;
        if outcome.is_err() && attempt.is_in_doubt() {
            attempt.start_over();
            requests.releases_sent(end).await;
            outcome = attempt.ask(0, Lane::Command, budget).await;
        }
        outcome
    };
    clock.within(limit, asking).await.transpose()
}
