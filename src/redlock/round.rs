//! One round: every server is asked for its vote at once, until the outcome is decided.
//!
//! Invariants: a vote counts only if its server cannot have forgotten an earlier one; a grant that is not used is
//! released when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, join_all, select_all};

use super::servers::Servers;
use super::tally::{Tally, VoteOutcome, quorum};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::engine::acquire::{self, LockRequest};
use crate::engine::clock::Clock;
use crate::engine::hold::{Hold, Share};

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

    /// Asks all servers at once. Does not wait for a minority that is dead or slow.
    pub(super) async fn round(&self) -> Result<QuorumGrant, Tally> {
        let mut tally = Tally::new(self.requests.len());
        let (mut shares, pending) = self.collect_votes(&mut tally).await;
        // The answers of the other servers may disqualify one.
        tally.retain(&mut shares, |server, _| self.servers.disqualified(server));
        if shares.len() < self.quorum() {
            return Err(tally);
        }
        // The largest token is the token of all. A later majority includes one of these servers, and its token there is
        // larger.
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        let token = tokens.max();
        if let Some(token) = token {
            let holds = shares.iter().map(|(server, share)| (*server, share.hold()));
            let raised = self.raise_tokens(token, holds, &mut tally).await;
            shares.retain(|(server, _)| raised.contains(server));
        }
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

    /// Returns the grants until the outcome is decided, and the votes that are still under way.
    async fn collect_votes(&self, tally: &mut Tally) -> (Vec<(usize, Share)>, Pending) {
        let servers = 0..self.requests.len();
        for server in servers.clone() {
            self.servers.check_silence(server, self.vote_timeout);
        }
        let may_skip = self.servers.is_majority_up(None);
        let (skipped, asked): (Vec<_>, Vec<_>) =
            servers.partition(|server| may_skip && self.servers.is_down(*server));
        for server in skipped {
            tally.record(server, VoteOutcome::Down);
        }
        let vote = |server: usize| {
            let request = self.clone();
            (server, async move { request.ask(server).await }.boxed())
        };
        let mut pending: Pending = asked.into_iter().map(vote).collect();
        let mut shares = Vec::new();
        // All votes together say whether a failed round is contended or an error, unless the votes for others decide
        // it.
        while !pending.is_empty() && !tally.is_contended() && self.needs_more(&shares) {
            if !tally.can_still_win() {
                // Released now, because they are useless: others need not wait for the rest.
                shares.clear();
            }
            let votes = pending.iter_mut().map(|(_, vote)| vote);
            let (vote, at, _) = select_all(votes).await;
            let (server, _) = pending.swap_remove(at);
            shares.extend(tally.record_vote(server, vote).map(|share| (server, share)));
        }
        (shares, pending)
    }

    /// Whether to wait for more votes: until a majority has granted that cannot have forgotten another holder, or all
    /// servers have answered.
    fn needs_more(&self, shares: &[(usize, Share)]) -> bool {
        let may_have_forgotten = |server| self.servers.may_have_forgotten(server);
        let certain = shares
            .iter()
            .filter(|(server, _)| !may_have_forgotten(*server));
        certain.count() < self.quorum()
    }

    /// Asks one server.
    pub(super) async fn ask(&self, server: usize) -> Vote {
        if let Some(reason) = self.servers.too_young(server) {
            return Err(reason);
        }
        self.servers.note_request(server);
        let attempt = acquire::attempt_once(self.requests[server].clone(), self.vote_timeout);
        // Sent together.
        let (attempted, has_replicas) = join(attempt, self.has_unconfirmed_replicas(server)).await;
        let vote = match attempted {
            Ok(Some(Ok(_))) if has_replicas => Err(VoteOutcome::HasReplicas),
            Ok(Some(Ok(share))) => match self.servers.disqualified(server) {
                Some(reason) => Err(reason),
                None => Ok(share),
            },
            Ok(Some(Err(remaining))) => {
                self.servers.observe_lease(remaining.unwrap_or_default());
                Err(VoteOutcome::HeldElsewhere(remaining))
            }
            Ok(None) => Err(VoteOutcome::NoAnswer(self.vote_timeout)),
            Err(error) => Err(VoteOutcome::Failed(error)),
        };
        match &vote {
            Err(outcome) if outcome.is_unreachable() => self.servers.mark_down(server),
            _ => self.servers.mark_up(server),
        }
        vote
    }

    /// Whether a server has replicas that do not have to confirm this call's vote.
    async fn has_unconfirmed_replicas(&self, server: usize) -> bool {
        let is_confirmed = self.requests[server].options.replication.is_some();
        !is_confirmed && self.servers.has_replicas(server, self.vote_timeout).await
    }

    /// Raises the counters at the servers of these holds to at least `token`. Returns the servers where that is known to
    /// have happened while they were held, and records the others.
    pub(super) async fn raise_tokens<'a>(
        &self,
        token: FencingToken,
        holds: impl Iterator<Item = (usize, &'a Arc<Hold>)>,
        tally: &mut Tally,
    ) -> Vec<usize> {
        let raising =
            holds.map(async |(server, hold)| (server, self.raise_token(hold, token).await));
        let mut servers = Vec::new();
        for (server, raised) in join_all(raising).await {
            match raised {
                Ok(()) => servers.push(server),
                Err(why) => tally.record(server, VoteOutcome::Unfenced(why)),
            }
        }
        servers
    }

    /// Raises the counter of one server to at least `token`.
    ///
    /// # Errors
    /// The reason if that is not known to have happened while the lock was held there.
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
