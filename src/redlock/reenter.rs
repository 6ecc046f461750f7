//! One more hold for an owner that has the lock.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use super::round::QuorumRequest;
use super::tally::{Tally, VoteOutcome};
use crate::counts::Mode;
use crate::error::Result;
use crate::hold::bound::Bound;
use crate::hold::quorum::{QuorumHold, QuorumShare};
use crate::hold::reenter::Entry;

/// Asks all servers of the quorum at once, and waits for a majority of all, for as long as the call that
/// this is a part of may go on. `None`: it is lost or over, also if another task of its owner has given
/// it back meanwhile, and the caller is a newcomer.
///
/// If this is dropped or fails, the counts that servers may have raised are put right in the
/// background.
pub(super) async fn reenter(
    request: &QuorumRequest,
    quorum: &Arc<QuorumHold>,
    entry: Entry,
    bound: Option<&Bound>,
) -> Result<Option<QuorumShare>> {
    let ask = &request.asks[0];
    let clock = request.clock();
    let fenced = matches!(entry, Entry::Asked(_)) && ask.options.fenced && quorum.token().is_none();
    let mut tally = Tally::new(request.asks.len(), request.quorum);
    let holds = quorum.holds();
    let entering = holds.iter().map(|(server, hold)| {
        async move {
            // Each vote has an owner of its own; what belongs to a quorum does not pass to another.
            let (owner, mode) = (hold.owner(), Mode::Exclusive);
            let entering = hold.reenter(&owner, mode, entry, fenced, ask.operation, bound);
            (*server, entering.await)
        }
        .boxed()
    });
    let mut pending: Vec<_> = entering.collect();
    let mut shares = Vec::new();
    // As long as one server would be given: a majority does not take longer.
    let end = match bound {
        Some(bound) => bound.end(clock.now()),
        None => clock.now().after(ask.give_up()),
    };
    while shares.len() < request.quorum && shares.len() + pending.len() >= request.quorum {
        let answered = clock.within(clock.now().until(end), select_all(pending));
        let Some(((server, entered), _, rest)) = answered.await else {
            break;
        };
        pending = rest;
        match entered {
            Ok(Some(share)) => {
                tally.record(server, VoteOutcome::Granted);
                shares.push((server, share));
            }
            Ok(None) => tally.record(server, VoteOutcome::HeldElsewhere(None)),
            Err(error) => tally.record(server, VoteOutcome::Failed(error)),
        }
    }
    // What the servers say of a hold that has ended meanwhile is no failure of theirs.
    let failed = |tally: Tally| match quorum.is_held() {
        true => {
            let error = tally.error(ask.operation, request.addresses());
            Err(error.of_lock(ask.name.as_str()))
        }
        false => Ok(None),
    };
    if shares.len() < request.quorum {
        return failed(tally);
    }
    if fenced {
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        if let Some(token) = tokens.max() {
            let each = shares
                .iter()
                .map(|(_, share)| request.raise_one(share, token));
            let raised = join_all(each).await;
            let mut fenced_at = Vec::new();
            for ((server, _), raised) in shares.iter().zip(raised) {
                match raised {
                    Ok(()) => fenced_at.push(*server),
                    Err(why) => tally.record(*server, VoteOutcome::Unfenced(why)),
                }
            }
            if !quorum.fence(token, &fenced_at) {
                return failed(tally);
            }
        }
    }
    Ok(quorum.add_guard(shares))
}
