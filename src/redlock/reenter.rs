//! Another share for an owner that holds the lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use super::guard::QuorumShare;
use super::hold::QuorumHold;
use super::round::QuorumRequest;
use super::tally::{Tally, VoteOutcome};
use crate::api::error::Result;
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::reenter::{self, Entrance, LeaseSource};

/// Asks all servers of the hold at once, and waits for a majority of all, within the limit of the call. `None` if the
/// hold is lost or over, also because another task of its owner has released it in the meantime: then the caller has to
/// start over.
///
/// If this is dropped or fails, the guards are as before. Renewals under way go on in the background.
pub(super) async fn reenter(
    request: &QuorumRequest,
    hold: &Arc<QuorumHold>,
    entry: LeaseSource,
    bound: Option<&Bound>,
) -> Result<Option<QuorumShare>> {
    let asks_for_token =
        matches!(entry, LeaseSource::Asked(_)) && request.requests[0].options.fenced;
    let reentry = Reentry {
        request,
        hold,
        entry,
        fenced: asks_for_token && hold.token().is_none(),
        bound,
    };
    let mut tally = Tally::new(request.requests.len(), request.quorum);
    let entrances = reentry.collect(&mut tally).await;
    let is_enough = entrances.len() >= request.quorum;
    let mut shares = Vec::new();
    if is_enough && reentry.fence(&entrances, &mut tally).await {
        // Enters when all are ready, so that a call that is left alone before has entered no member.
        shares = enter_all(entrances, &mut tally);
    }
    if shares.len() >= request.quorum {
        let kept_until = match entry {
            LeaseSource::Asked(_) => request.requests[0].kept_until(),
            LeaseSource::Like(_) => Tick::ZERO,
        };
        let shares = shares.into_iter();
        let shares =
            shares.map(|(server, share)| (server, share.guarded(Tick::ZERO, Duration::ZERO)));
        let shares = shares.collect();
        return Ok(QuorumShare::of_members(request, hold, shares, kept_until));
    }
    if !hold.is_held() {
        // The servers' answers about a hold that has ended in the meantime are not errors.
        return Ok(None);
    }
    Err(request.error(&tally))
}

impl QuorumShare {
    /// One more share, with the lease of this one.
    pub(super) async fn reenter(&self) -> Result<Self> {
        let hold = &self.hold;
        if let Some(reason) = self.loss() {
            return Err(hold.not_held("reenter", reason));
        }
        let entry = LeaseSource::Like(self.lease());
        let share = reenter(&self.request, hold, entry, None).await?;
        share.ok_or_else(|| {
            let reason = hold.loss().unwrap_or(LostReason::Revoked);
            hold.not_held("reenter", reason)
        })
    }
}

struct Reentry<'a> {
    request: &'a QuorumRequest,
    hold: &'a Arc<QuorumHold>,
    entry: LeaseSource,
    /// Whether the hold needs a token, because it has none yet.
    fenced: bool,
    bound: Option<&'a Bound>,
}

impl Reentry<'_> {
    /// Gets one more share ready at each server, until a majority has it or no majority is possible.
    async fn collect(&self, tally: &mut Tally) -> Vec<(usize, Entrance)> {
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
                let reentry = reenter::Reentry {
                    owner: member.owner(),
                    mode: Mode::Exclusive,
                    entry,
                    fenced,
                    operation,
                };
                (*server, member.entrance(reentry, bound).await)
            }
            .boxed()
        });
        let mut pending: Vec<_> = entering.collect();
        let mut entrances = Vec::new();
        while entrances.len() < request.quorum && entrances.len() + pending.len() >= request.quorum
        {
            let answered = clock.within(clock.now().until(end), select_all(pending));
            let Some(((server, entered), _, rest)) = answered.await else {
                break;
            };
            pending = rest;
            match entered {
                Ok(Some(entrance)) => {
                    tally.record(server, VoteOutcome::Granted);
                    entrances.push((server, entrance));
                }
                Ok(None) => tally.record(server, VoteOutcome::HeldElsewhere(None)),
                Err(error) => tally.record(server, VoteOutcome::Failed(error)),
            }
        }
        entrances
    }

    /// Gives a hold without a token the largest token that came with these, once a majority of the counters has reached
    /// it. Returns false if no majority does.
    async fn fence(&self, entrances: &[(usize, Entrance)], tally: &mut Tally) -> bool {
        let tokens = entrances
            .iter()
            .filter_map(|(_, entrance)| entrance.token());
        let Some(token) = tokens.max().filter(|_| self.fenced) else {
            return true;
        };
        let request = self.request;
        let raising = entrances
            .iter()
            .map(|(_, entrance)| request.raised(entrance.raise_token(token, request.operation())));
        let raised = join_all(raising).await;
        let mut raised_at = Vec::new();
        for ((server, _), raised) in entrances.iter().zip(raised) {
            match raised {
                Ok(()) => raised_at.push(*server),
                Err(why) => tally.record(*server, VoteOutcome::Unfenced(why)),
            }
        }
        self.hold.fence(token, &raised_at)
    }
}

/// Enters at these servers.
fn enter_all(entrances: Vec<(usize, Entrance)>, tally: &mut Tally) -> Vec<(usize, Share)> {
    let mut shares = Vec::new();
    for (server, entrance) in entrances {
        match Share::entered(entrance) {
            Ok(Some(share)) => shares.push((server, share)),
            Ok(None) => tally.record(server, VoteOutcome::HeldElsewhere(None)),
            Err(error) => tally.record(server, VoteOutcome::Failed(error)),
        }
    }
    shares
}
