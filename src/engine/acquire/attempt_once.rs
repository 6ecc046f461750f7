//! Makes a single attempt: for a caller that asks several servers at once and can use an answer only for a short time,
//! or for one that wants to know how long a refusal will last.
//!
//! Invariant: if the future is dropped, the attempt is undone like any other.

use std::time::Duration;

use super::attempt::Attempt;
use super::request::{Attempted, ExpiredGrants, LockRequest, Requests, WaitLimit, bound};
use super::wait::all;
use crate::api::error::Result;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hold::Share;
use crate::script::CallBudget;

/// Asks once, for at most `limit`. Returns `None` if there is no answer in that time. The future owns everything it
/// needs, so that another task may drive it to its end.
///
/// If the connection breaks during the attempt, it is replaced and the server is asked once more. If no connection can
/// be made, the call fails at once.
pub(crate) async fn attempt_once(
    request: LockRequest,
    limit: Duration,
) -> Result<Option<Attempted>> {
    request.ensure_open()?;
    let clock = request.core.clock;
    // The time for the replicas is added to the limit.
    let replication = request.options.replication;
    let limit = limit + replication.map_or(Duration::ZERO, |wanted| wanted.within);
    let now = clock.now();
    let end = now.after(limit);
    // A server that is slower than the limit is not dead, so its connection stays.
    let budget = CallBudget::once(request.core.timing.reply);
    let all = [request];
    let bound = bound(&all, WaitLimit::Never, now);
    let requests = Requests {
        all: &all,
        bound: &bound,
    };
    let asking = async {
        let mut attempt = Attempt::single(requests);
        drop(requests.all[0].local.take_sticky());
        let now = requests.releases_sent(end, now).await;
        let mut outcome = attempt.ask(now, 0, Lane::Command, budget).await;
        if outcome.is_err() && attempt.is_in_doubt() {
            let now = attempt.start_behind(end).await;
            outcome = attempt.ask(now, 0, Lane::Command, budget).await;
        }
        outcome
    };
    clock.within(limit, asking).await.transpose()
}

/// Takes the lock if it is free, in one attempt and never by entering a hold again. Otherwise returns the rest of the
/// holder's lease.
pub(crate) async fn one_or_remaining(
    request: &LockRequest,
    began: Tick,
) -> Result<Result<Share, Duration>> {
    request.ensure_open()?;
    let requests = std::slice::from_ref(request);
    let bound = bound(requests, WaitLimit::Never, began);
    let mut expired = ExpiredGrants::default();
    loop {
        let mut shares = match all(requests, WaitLimit::Never, &bound).await? {
            Attempted::Granted(shares) => shares,
            Attempted::Refused { remaining, .. } => return Ok(Err(remaining.unwrap_or_default())),
        };
        if let Some(share) = shares.pop()
            && !expired.must_retry(std::iter::once((request, &share)))?
        {
            return Ok(Ok(share));
        }
    }
}
