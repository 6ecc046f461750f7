//! One round: every server is asked for its vote at once, until it is decided.
//!
//! Invariants: a vote counts only if its server cannot have forgotten an earlier one; what is not
//! used is given back by whoever drops it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};

use super::servers::Servers;
use super::tally::{Tally, VoteOutcome};
use crate::acquire::{self, LockRequest, Outcome};
use crate::clock::Clock;
use crate::fencing::FencingToken;
use crate::hold::Share;

/// A grant with less than this part of its lease left is not worth having.
const WORTH: u32 = 8;

/// What one verb asks of each server.
#[derive(Clone, Debug)]
pub(super) struct QuorumRequest {
    pub(super) asks: Arc<[LockRequest]>,
    /// So many votes are enough.
    pub(super) quorum: usize,
    /// A server has so long to answer.
    pub(super) vote_timeout: Duration,
    pub(super) servers: Arc<Servers>,
}

/// What a server said, and what it granted.
type Answer = (VoteOutcome, Option<Share>);

/// An answer under way.
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

/// A majority.
pub(super) struct QuorumGrant {
    pub(super) shares: Vec<(usize, Share)>,
    pub(super) token: Option<FencingToken>,
    /// Those that have not answered yet.
    pub(super) pending: Vec<Pending>,
}

impl QuorumRequest {
    pub(super) fn clock(&self) -> Clock {
        self.asks[0].core.clock
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.servers.addresses()
    }

    /// Asks all of them at once. The time that a dead or slow minority takes is not waited for.
    pub(super) async fn round(&self) -> Result<QuorumGrant, Tally> {
        let (servers, all) = (&self.servers, 0..self.asks.len());
        let mut tally = Tally::new(self.asks.len(), self.quorum);
        let mut pending = Vec::with_capacity(self.asks.len());
        all.clone()
            .for_each(|server| servers.check_silence(server, self.vote_timeout));
        let is_majority_up = servers.is_majority_up();
        for server in all {
            match is_majority_up && servers.is_down(server) {
                true => tally.record(server, VoteOutcome::Down),
                false => pending.push(self.vote(server)),
            }
        }
        let mut shares = Vec::new();
        // Whether it is contended or an error depends on all of them, unless those who have it
        // elsewhere decide it.
        while !pending.is_empty() && !tally.is_contended() && self.goes_on(&shares) {
            if !tally.can_still_win() {
                // Of no use any more: others need not wait for the rest.
                shares.clear();
            }
            let ((server, outcome, share), _, rest) = select_all(pending).await;
            pending = rest;
            tally.record(server, outcome);
            shares.extend(share.map(|share| (server, share)));
        }
        // What the others said may be a reason not to count them.
        shares.retain(|(server, _)| match servers.disqualified(*server) {
            Some(reason) => {
                tally.record(*server, reason);
                false
            }
            None => true,
        });
        if shares.len() < self.quorum {
            return Err(tally);
        }
        let token = self.raise(&mut shares, &mut tally).await;
        if shares.len() < self.quorum || !self.is_worth_having(&shares, &mut tally) {
            return Err(tally);
        }
        Ok(QuorumGrant {
            shares,
            token,
            pending,
        })
    }

    /// Whether more answers are waited for.
    fn goes_on(&self, shares: &[(usize, Share)]) -> bool {
        let servers = shares.iter().map(|(server, _)| *server);
        shares.len() < self.quorum || self.servers.may_have_forgotten(servers)
    }

    /// Asks one of them; owns all it needs.
    pub(super) fn vote(&self, server: usize) -> Pending {
        let request = self.clone();
        let answer = async move { request.ask(server).await }.boxed();
        Pending { server, answer }
    }

    pub(super) async fn ask(&self, server: usize) -> Answer {
        if let Some(reason) = self.servers.too_young(server) {
            return (reason, None);
        }
        self.servers.note_request(server);
        let answer = match acquire::attempt_once(self.asks[server].clone(), self.vote_timeout).await
        {
            Ok(Some(Outcome::Granted(mut shares))) => match self.servers.disqualified(server) {
                Some(reason) => (reason, None),
                None => (VoteOutcome::Granted, shares.pop()),
            },
            Ok(Some(Outcome::Refused { remaining, .. })) => {
                self.servers.observe_lease(remaining.unwrap_or_default());
                (VoteOutcome::HeldElsewhere(remaining), None)
            }
            Ok(None) => (VoteOutcome::NoAnswer(self.vote_timeout), None),
            Err(error) => (VoteOutcome::Failed(error), None),
        };
        self.servers.note_outcome(server, &answer.0);
        answer
    }

    /// Whether a majority of them lasts long enough to be used; notes those that do not.
    fn is_worth_having(&self, shares: &[(usize, Share)], tally: &mut Tally) -> bool {
        let lease = self.asks[0].term.lease();
        let end = self.clock().now().after(lease / WORTH);
        let is_late = |share: &Share| share.is_lost() || share.deadline() <= end;
        let late = shares.iter().filter(|(_, share)| is_late(share));
        let mut lasting = shares.len();
        for (server, _) in late {
            tally.record(*server, VoteOutcome::GrantedTooLate(lease));
            lasting -= 1;
        }
        lasting >= self.quorum
    }

    /// Makes the largest token the token of all, at each server that is to count: whoever gets a
    /// majority later meets one of these servers, and its own token there is larger. Takes out those
    /// where that is not known to have happened while they held the lock.
    async fn raise(
        &self,
        shares: &mut Vec<(usize, Share)>,
        tally: &mut Tally,
    ) -> Option<FencingToken> {
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        let token = tokens.max()?;
        let raised = join_all(shares.iter().map(|(_, share)| self.raise_one(share, token)));
        let raised = raised.await;
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for ((server, share), raised) in shares.drain(..).zip(raised) {
            match raised {
                Ok(()) => kept.push((server, share)),
                Err(why) => {
                    tally.record(server, VoteOutcome::Unfenced(why));
                    dropped.push(share);
                }
            }
        }
        *shares = kept;
        Some(token)
    }

    pub(super) async fn raise_one(&self, share: &Share, token: FencingToken) -> Result<(), String> {
        let raising = share.raise_token(token, self.asks[0].operation);
        match self.clock().within(self.vote_timeout, raising).await {
            Some(Ok(())) if share.is_lost() => Err("its lease was over by then".to_owned()),
            Some(raised) => raised.map_err(|error| error.message().to_owned()),
            None => Err(format!("no answer within {:?}", self.vote_timeout)),
        }
    }
}
