//! One round: every server is asked for its vote at once, until the outcome is decided.
//!
//! Invariants: a vote counts only if its server cannot have forgotten an earlier one; a grant that is not used is
//! released when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};

use super::servers::Servers;
use super::tally::{Tally, VoteOutcome, quorum};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::engine::acquire::{self, LockRequest};
use crate::engine::clock::Clock;
use crate::engine::hold::{Hold, Share, SharedHold};

/// A grant counts only if at least this part of its lease is left when all votes are in.
const USEFUL_PART: u32 = 8;

/// One call's requests to the servers. They differ only in their clients.
#[derive(Clone, Debug)]
pub(super) struct QuorumRequest {
    pub(super) requests: Arc<[LockRequest]>,
    /// The time that a server has to answer.
    pub(super) vote_timeout: Duration,
    pub(super) servers: Arc<Servers>,
}

/// A server's grant, or why there is none.
pub(super) type Vote = Result<Share, VoteOutcome>;

/// The votes that are under way, by server. Each future owns all it needs.
type Pending = Vec<(usize, BoxFuture<'static, Vote>)>;

/// The grant of a majority.
pub(super) struct QuorumGrant {
    /// By server.
    pub(super) shares: Vec<(usize, Share)>,
    pub(super) token: Option<FencingToken>,
    pub(super) pending: Pending,
}

impl QuorumRequest {
    /// The request to the first server, for what all have in common.
    pub(super) fn first(&self) -> &LockRequest {
        &self.requests[0]
    }

    pub(super) fn clock(&self) -> Clock {
        self.first().core.clock
    }

    /// The number of votes that is a majority.
    pub(super) fn quorum(&self) -> usize {
        quorum(self.requests.len())
    }

    /// Makes the error that says why there is no majority.
    pub(super) fn error(&self, tally: &Tally) -> Error {
        let first = self.first();
        self.servers.error(first.operation, &first.name, tally)
    }

    /// Asks all servers at once, with this limit for each. Does not wait for a minority that is dead or slow.
    pub(super) async fn round(&self, limit: Duration) -> Result<QuorumGrant, Tally> {
        let mut tally = Tally::new(self.requests.len());
        let (mut shares, pending) = self.collect_votes(limit, &mut tally).await;
        // The answers of other servers may disqualify an earlier vote.
        tally.retain(&mut shares, |server, _| self.servers.disqualified(server));
        if shares.len() < self.quorum() {
            return Err(tally);
        }
        let token = self
            .fence(&mut shares, Share::fencing_token, Share::hold, &mut tally)
            .await;
        let lease = self.first().policy.lease();
        let useful_until = self.clock().now().after(lease / USEFUL_PART);
        let is_late = |share: &Share| share.is_lost() || share.deadline() <= useful_until;
        tally.retain(&mut shares, |_, share| {
            is_late(share).then_some(VoteOutcome::GrantedTooLate(lease))
        });
        if shares.len() < self.quorum() {
            return Err(tally);
        }
        Ok(QuorumGrant {
            shares,
            token,
            pending,
        })
    }

    /// Collects votes until the outcome is decided. Returns the grants, and the votes that are still under way.
    async fn collect_votes(
        &self,
        limit: Duration,
        tally: &mut Tally,
    ) -> (Vec<(usize, Share)>, Pending) {
        let mut pending = Pending::new();
        for server in 0..self.requests.len() {
            self.servers.check_silence(server, self.vote_timeout);
            if self.servers.is_down(server) {
                tally.record(server, VoteOutcome::Down);
            } else {
                let request = self.clone();
                let vote = async move { request.ask(server, limit).await };
                pending.push((server, vote.boxed()));
            }
        }
        let mut shares = Vec::new();
        // A round that cannot be won waits for all votes, because only they tell contention from an error. If the votes
        // for others are enough to tell, it ends earlier.
        while !pending.is_empty() && !tally.is_contended() && self.needs_more(&shares) {
            if !tally.can_still_win() {
                // These grants are useless. They are released now, so that others need not wait for the rest of the
                // round.
                shares.clear();
            }
            let votes = pending.iter_mut().map(|(_, vote)| vote);
            let (vote, at, _) = select_all(votes).await;
            let (server, _) = pending.swap_remove(at);
            shares.extend(tally.record_vote(server, vote));
        }
        (shares, pending)
    }

    /// Whether more votes are needed, because the grants do not include a majority of servers that cannot have
    /// forgotten another holder.
    fn needs_more(&self, shares: &[(usize, Share)]) -> bool {
        let votes = shares.iter();
        let certain = votes.filter(|(server, _)| !self.servers.may_have_forgotten(*server));
        certain.count() < self.quorum()
    }

    /// Asks one server for its vote, within this limit. Silence within a limit shorter than the vote time-out does not
    /// mark the server down.
    pub(super) async fn ask(&self, server: usize, limit: Duration) -> Vote {
        if let Some(reason) = self.servers.too_young(server) {
            return Err(reason);
        }
        self.servers.note_request(server);
        // Both are sent together.
        let attempt = acquire::attempt_once(self.requests[server].clone(), limit);
        let replicas = self.has_unconfirmed_replicas(server, limit);
        let (attempted, has_replicas) = tokio::join!(biased; attempt, replicas);
        let vote = match attempted {
            Ok(Some(Ok(_))) if has_replicas => Err(VoteOutcome::HasReplicas),
            Ok(Some(Ok(share))) => self.servers.disqualified(server).map_or(Ok(share), Err),
            Ok(Some(Err(remaining))) => {
                self.servers.observe_lease(remaining.unwrap_or_default());
                Err(VoteOutcome::HeldElsewhere(remaining))
            }
            Ok(None) => Err(VoteOutcome::NoAnswer(limit)),
            Err(error) => Err(VoteOutcome::Failed(error)),
        };
        match &vote {
            Err(VoteOutcome::NoAnswer(limit)) if *limit < self.vote_timeout => {}
            Err(outcome) if outcome.is_unreachable() => self.servers.mark_down(server),
            _ => self.servers.mark_up(server),
        }
        vote
    }

    /// Whether a server has replicas that do not have to confirm this call's vote.
    async fn has_unconfirmed_replicas(&self, server: usize, limit: Duration) -> bool {
        let is_confirmed = self.requests[server].options.replication.is_some();
        !is_confirmed && self.servers.has_replicas(server, limit).await
    }

    /// Raises the counters of these servers to the largest of their tokens, and returns that token, which counts for
    /// all. Every later majority includes one of these servers and gets a larger token there. Keeps the grants whose
    /// counter is known to have been raised while the lock was held, and records the others. `None` if there is no
    /// token.
    pub(super) async fn fence<T>(
        &self,
        granted: &mut Vec<(usize, T)>,
        token_of: impl Fn(&T) -> Option<FencingToken>,
        hold_of: impl Fn(&T) -> &Arc<Hold>,
        tally: &mut Tally,
    ) -> Option<FencingToken> {
        let token = granted
            .iter()
            .filter_map(|(_, grant)| token_of(grant))
            .max()?;
        let raising = (granted.iter()).map(|(_, grant)| self.raise_token(hold_of(grant), token));
        let mut raised = join_all(raising).await.into_iter();
        tally.retain(granted, |_, _| {
            raised.next()?.err().map(VoteOutcome::Unfenced)
        });
        Some(token)
    }

    /// Raises the counter of one server to at least `token`.
    ///
    /// # Errors
    /// The reason, if the counter is not known to have been raised while the lock was held there.
    pub(super) async fn raise_token(&self, hold: &Hold, token: FencingToken) -> Result<(), String> {
        let raising = hold.raise_token(token, self.first().operation);
        match self.clock().within(self.vote_timeout, raising).await {
            Some(Err(error)) => Err(error.message().to_owned()),
            None => Err(format!("no answer within {:?}", self.vote_timeout)),
            Some(Ok(())) if hold.is_held() => Ok(()),
            Some(Ok(())) => Err("its lease was over by then".to_owned()),
        }
    }
}
