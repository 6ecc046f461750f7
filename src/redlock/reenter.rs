//! Another share for an owner that holds the lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use super::round::QuorumRequest;
use super::tally::{Tally, VoteOutcome};
use crate::api::error::Result;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::quorum::{QuorumHold, QuorumShare};
use crate::engine::hold::reenter::Entry;

/// Asks all servers of the hold at once, and waits for a majority of all, within the limit of the call. `None` if the
/// hold is lost or over, also because another task of its owner has released it in the meantime: then the caller has to
/// start over.
///
/// If this is dropped or fails, counts that the servers may have raised are corrected in the background.
pub(super) async fn reenter(
    request: &QuorumRequest,
    hold: &Arc<QuorumHold>,
    entry: Entry,
    bound: Option<&Bound>,
) -> Result<Option<QuorumShare>> {
    let asks_for_token = matches!(entry, Entry::Asked(_)) && request.requests[0].options.fenced;
    let reentry = Reentry {
        request,
        hold,
        entry,
        fenced: asks_for_token && hold.token().is_none(),
        bound,
    };
    let mut tally = Tally::new(request.requests.len(), request.quorum);
    let shares = reentry.collect_shares(&mut tally).await;
    if shares.len() >= request.quorum && reentry.fence(&shares, &mut tally).await {
        let kept_until = match entry {
            Entry::Asked(_) => request.requests[0].kept_until(),
            Entry::Like(_) => Tick::ZERO,
        };
        let shares = shares.into_iter();
        let shares =
            shares.map(|(server, share)| (server, share.guarded(Tick::ZERO, Duration::ZERO)));
        let shares = shares.collect();
        return Ok(QuorumShare::of_members(hold, shares, kept_until));
    }
    if !hold.is_held() {
        // The servers' answers about a hold that has ended in the meantime are not errors.
        return Ok(None);
    }
    Err(request.error(&tally))
}

struct Reentry<'a> {
    request: &'a QuorumRequest,
    hold: &'a Arc<QuorumHold>,
    entry: Entry,
    /// Whether the hold needs a token, because it has none yet.
    fenced: bool,
    bound: Option<&'a Bound>,
}

impl Reentry<'_> {
    /// Enters at each server once more, until a majority has granted it or no majority is possible.
    async fn collect_shares(&self, tally: &mut Tally) -> Vec<(usize, Share)> {
        let (request, clock) = (self.request, self.request.clock());
        // As long as for a single server, because a majority does not take longer.
        let end = match self.bound {
            Some(bound) => bound.end(clock.now()),
            None => clock.now().after(request.requests[0].give_up()),
        };
        let (entry, fenced, operation, bound) =
            (self.entry, self.fenced, request.operation(), self.bound);
        let members = self.hold.members();
        let entering = members.iter().map(|(server, member)| {
            async move {
                // A member has an owner of its own, and is never handed off.
                let owner = member.owner();
                let mode = Mode::Exclusive;
                let entered =
                    Share::reentered(member, &owner, mode, entry, fenced, operation, bound);
                (*server, entered.await)
            }
            .boxed()
        });
        let mut pending: Vec<_> = entering.collect();
        let mut shares = Vec::new();
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
        shares
    }

    /// Gives a hold without a token the largest token of `shares`, once a majority of the counters has reached it.
    /// Returns false if no majority does.
    async fn fence(&self, shares: &[(usize, Share)], tally: &mut Tally) -> bool {
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        let Some(token) = tokens.max().filter(|_| self.fenced) else {
            return true;
        };
        let raising = shares
            .iter()
            .map(|(_, share)| self.request.raise_token(share, token));
        let raised = join_all(raising).await;
        let mut raised_at = Vec::new();
        for ((server, _), raised) in shares.iter().zip(raised) {
            match raised {
                Ok(()) => raised_at.push(*server),
                Err(why) => tally.record(*server, VoteOutcome::Unfenced(why)),
            }
        }
        self.hold.fence(token, &raised_at)
    }
}
