//! One round: every server is asked for its vote at once, until the outcome is decided.
//!
//! Invariants: a vote counts only if its server cannot have forgotten an earlier one; a grant that is not used is
//! released when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, join_all, select_all};

use super::servers::Servers;
use super::tally::{Tally, VoteOutcome};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::engine::acquire::{self, Attempted, LockRequest};
use crate::engine::clock::Clock;
use crate::engine::hold::Share;

/// A majority counts only if at least this part of its lease is left when all votes are in.
const USEFUL_PART: u32 = 8;

/// One call's requests to the servers. They differ only in their clients.
#[derive(Clone, Debug)]
pub(super) struct QuorumRequest {
    pub(super) requests: Arc<[LockRequest]>,
    /// The number of votes that is a majority.
    pub(super) quorum: usize,
    /// The time that a server has to answer.
    pub(super) vote_timeout: Duration,
    pub(super) servers: Arc<Servers>,
}

/// The outcome of a server's vote, and its grant.
type Answer = (VoteOutcome, Option<Share>);

/// A vote that is under way.
pub(super) struct Pending {
    pub(super) server: usize,
    answer: BoxFuture<'static, Answer>,
}

impl Future for Pending {
    type Output = (usize, VoteOutcome, Option<Share>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let server = self.server;
        let answer = self.answer.poll_unpin(context);
        answer.map(|(outcome, share)| (server, outcome, share))
    }
}

/// The grant of a majority.
pub(super) struct QuorumGrant {
    /// By server.
    pub(super) shares: Vec<(usize, Share)>,
    pub(super) token: Option<FencingToken>,
    /// The votes that are still under way.
    pub(super) pending: Vec<Pending>,
}

impl QuorumRequest {
    pub(super) fn clock(&self) -> Clock {
        self.requests[0].core.clock
    }

    pub(super) fn name(&self) -> &str {
        self.requests[0].name.as_str()
    }

    /// The method that was called, for errors.
    pub(super) fn operation(&self) -> &'static str {
        self.requests[0].operation
    }

    pub(super) fn lease(&self) -> Duration {
        self.requests[0].policy.lease()
    }

    /// Makes the error that says why there is no majority.
    pub(super) fn error(&self, tally: &Tally) -> Error {
        let error = tally.error(self.operation(), self.servers.addresses());
        error.of_lock(self.name())
    }

    /// Asks all servers at once. Does not wait for a minority that is dead or slow.
    pub(super) async fn round(&self) -> Result<QuorumGrant, Tally> {
        let mut tally = Tally::new(self.requests.len(), self.quorum);
        let (mut shares, pending) = self.collect_votes(&mut tally).await;
        // The answers of the other servers may disqualify one.
        shares.retain(|(server, _)| match self.servers.disqualified(*server) {
            Some(reason) => {
                tally.record(*server, reason);
                false
            }
            None => true,
        });
        if shares.len() < self.quorum {
            return Err(tally);
        }
        let token = self.raise_tokens(&mut shares, &mut tally).await;
        if shares.len() < self.quorum || !self.is_useful(&shares, &mut tally) {
            return Err(tally);
        }
        Ok(QuorumGrant {
            shares,
            token,
            pending,
        })
    }

    /// Returns the grants until the outcome is decided, and the votes that are still under way.
    async fn collect_votes(&self, tally: &mut Tally) -> (Vec<(usize, Share)>, Vec<Pending>) {
        let health = &self.servers.health;
        let servers = 0..self.requests.len();
        for server in servers.clone() {
            health.check_silence(server, self.vote_timeout);
        }
        let may_skip = health.is_majority_up();
        let (skipped, asked): (Vec<_>, Vec<_>) =
            servers.partition(|server| may_skip && health.is_down(*server));
        for server in skipped {
            tally.record(server, VoteOutcome::Down);
        }
        let mut pending: Vec<_> = asked.into_iter().map(|server| self.vote(server)).collect();
        let mut shares = Vec::new();
        // All votes together say whether a failed round is contended or an error, unless the votes for others decide
        // it.
        while !pending.is_empty() && !tally.is_contended() && self.needs_more(&shares) {
            if !tally.can_still_win() {
                // Released now, because they are useless: others need not wait for the rest.
                shares.clear();
            }
            let ((server, outcome, share), _, rest) = select_all(pending).await;
            pending = rest;
            tally.record(server, outcome);
            shares.extend(share.map(|share| (server, share)));
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
        certain.count() < self.quorum
    }

    /// Asks one server. The future owns all it needs.
    fn vote(&self, server: usize) -> Pending {
        let request = self.clone();
        let answer = async move { request.ask(server).await }.boxed();
        Pending { server, answer }
    }

    /// Asks one server.
    pub(super) async fn ask(&self, server: usize) -> Answer {
        if let Some(reason) = self.servers.too_young(server) {
            return (reason, None);
        }
        self.servers.health.note_request(server);
        let attempt = acquire::attempt_once(self.requests[server].clone(), self.vote_timeout);
        // Sent together.
        let (attempted, has_replicas) = join(attempt, self.has_unconfirmed_replicas(server)).await;
        let answer = match attempted {
            Ok(Some(Attempted::Granted(_))) if has_replicas => (VoteOutcome::HasReplicas, None),
            Ok(Some(Attempted::Granted(mut shares))) => match self.servers.disqualified(server) {
                Some(reason) => (reason, None),
                None => (VoteOutcome::Granted, shares.pop()),
            },
            Ok(Some(Attempted::Refused { remaining, .. })) => {
                self.servers.observe_lease(remaining.unwrap_or_default());
                (VoteOutcome::HeldElsewhere(remaining), None)
            }
            Ok(None) => (VoteOutcome::NoAnswer(self.vote_timeout), None),
            Err(error) => (VoteOutcome::Failed(error), None),
        };
        self.servers.health.note_outcome(server, &answer.0);
        answer
    }

    /// Whether a server has replicas that do not have to confirm this call's vote.
    async fn has_unconfirmed_replicas(&self, server: usize) -> bool {
        let is_confirmed = self.requests[server].options.replication.is_some();
        !is_confirmed && self.servers.has_replicas(server, self.vote_timeout).await
    }

    /// Whether a majority of the shares lasts long enough to be used. Records the others.
    fn is_useful(&self, shares: &[(usize, Share)], tally: &mut Tally) -> bool {
        let lease = self.lease();
        let end = self.clock().now().after(lease / USEFUL_PART);
        let is_late = |share: &Share| share.is_lost() || share.deadline() <= end;
        let late = shares.iter().filter(|(_, share)| is_late(share));
        let mut useful = shares.len();
        for (server, _) in late {
            tally.record(*server, VoteOutcome::GrantedTooLate(lease));
            useful -= 1;
        }
        useful >= self.quorum
    }

    /// Makes the largest token the token of all, at each server that counts. A later majority includes one of these
    /// servers, and its token there is larger. Removes the shares whose counter is not known to have been raised while
    /// they were held.
    async fn raise_tokens(
        &self,
        shares: &mut Vec<(usize, Share)>,
        tally: &mut Tally,
    ) -> Option<FencingToken> {
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        let token = tokens.max()?;
        let raising = shares
            .iter()
            .map(|(_, share)| self.raise_token(share, token));
        let raised = join_all(raising).await;
        for ((server, share), raised) in std::mem::take(shares).into_iter().zip(raised) {
            match raised {
                Ok(()) => shares.push((server, share)),
                Err(why) => tally.record(server, VoteOutcome::Unfenced(why)),
            }
        }
        Some(token)
    }

    /// Raises the counter of one server to at least `token`.
    ///
    /// # Errors
    /// The reason if that is not known to have happened while the share was held.
    pub(super) async fn raise_token(
        &self,
        share: &Share,
        token: FencingToken,
    ) -> Result<(), String> {
        let raising = share.raise_token(token, self.operation());
        self.raised(raising).await?;
        if share.is_lost() {
            return Err("its lease was over by then".to_owned());
        }
        Ok(())
    }

    /// Waits until the counter of one server is raised.
    ///
    /// # Errors
    /// The reason if that is not known to have happened.
    pub(super) async fn raised(
        &self,
        raising: impl Future<Output = Result<()>>,
    ) -> Result<(), String> {
        match self.clock().within(self.vote_timeout, raising).await {
            Some(raised) => raised.map_err(|error| error.message().to_owned()),
            None => Err(format!("no answer within {:?}", self.vote_timeout)),
        }
    }
}
