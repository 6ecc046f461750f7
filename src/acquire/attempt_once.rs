//! A single attempt, for a caller that asks several servers at once and can use an answer for a short
//! time only.
//!
//! The future owns all it needs, so that another task may drive it to its end. Invariant: dropped, it is
//! undone as every attempt is.

use std::time::Duration;

use super::attempt::{Attempt, Outcome};
use super::{LockRequest, Party, ensure_open};
use crate::conn::Lane;
use crate::error::Result;
use crate::script::CallBudget;

/// Asks once, for at most `limit`; `None` if there is no answer by then.
///
/// A connection that breaks under the attempt is replaced and the server asked once more; one that
/// cannot be made is an error at once.
pub(crate) async fn attempt_once(request: LockRequest, limit: Duration) -> Result<Option<Outcome>> {
    ensure_open(&request)?;
    let clock = request.core.clock;
    // What its replicas may take comes on top.
    let limit = limit
        + request
            .options
            .replication
            .map_or(Duration::ZERO, |wanted| wanted.within);
    let end = clock.now().after(limit);
    // A server that is slower than the limit is not dead: its connection stays.
    let budget = CallBudget::once(request.core.timing.reply);
    let local = request
        .core
        .locals
        .get_or_insert(request.protocol.kind(), request.name.key());
    let (requests, locals) = ([request], [local]);
    let party = Party {
        requests: &requests,
        locals: &locals,
        bound: super::bound(&requests, super::Wait::Never),
    };
    let attempt = async {
        let mut attempt = Attempt::single(party);
        party.left(end).await;
        let mut outcome = attempt.ask(0, Lane::Command, budget).await;
        if outcome.is_err() && attempt.is_in_doubt() {
            attempt.start_over();
            party.left(end).await;
            outcome = attempt.ask(0, Lane::Command, budget).await;
        }
        outcome
    };
    clock.within(limit, attempt).await.transpose()
}
