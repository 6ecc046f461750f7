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

use super::electorate::Electorate;
use super::votes::{Said, Tally};
use crate::acquire::{self, Ask, Vote};
use crate::clock::Clock;
use crate::fencing::FencingToken;
use crate::hold::Share;

/// A grant with less than this part of its lease left is not worth having.
const WORTH: u32 = 8;

/// What one verb asks of each server.
#[derive(Clone, Debug)]
pub(super) struct Ballot {
    pub(super) asks: Arc<[Ask]>,
    /// So many votes are enough.
    pub(super) need: usize,
    /// A server has so long to answer.
    pub(super) limit: Duration,
    pub(super) electorate: Arc<Electorate>,
}

/// What a server said, and what it granted.
type Answer = (Said, Option<Share>);

/// An answer under way.
pub(super) struct Pending {
    pub(super) server: usize,
    answer: BoxFuture<'static, Answer>,
}

impl Future for Pending {
    type Output = (usize, Said, Option<Share>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let server = self.server;
        let answer = self.answer.poll_unpin(context);
        answer.map(|(said, share)| (server, said, share))
    }
}

/// A majority.
pub(super) struct Majority {
    pub(super) shares: Vec<(usize, Share)>,
    pub(super) token: Option<FencingToken>,
    /// Those that have not answered yet.
    pub(super) pending: Vec<Pending>,
}

impl Ballot {
    pub(super) fn clock(&self) -> Clock {
        self.asks[0].core.clock
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.electorate.addresses()
    }

    /// Asks all of them at once. The time that a dead or slow minority takes is not waited for.
    pub(super) async fn round(&self) -> Result<Majority, Tally> {
        let (electorate, servers) = (&self.electorate, 0..self.asks.len());
        let mut tally = Tally::new(self.asks.len(), self.need);
        let mut pending = Vec::with_capacity(self.asks.len());
        servers
            .clone()
            .for_each(|server| electorate.look(server, self.limit));
        let are_enough = electorate.are_enough();
        for server in servers {
            match are_enough && electorate.is_away(server) {
                true => tally.note(server, Said::Resting),
                false => pending.push(self.vote(server)),
            }
        }
        let mut shares = Vec::new();
        // Whether it is contended or an error depends on all of them, unless those who have it
        // elsewhere decide it.
        while !pending.is_empty() && !tally.is_contended() && self.goes_on(&shares) {
            if !tally.is_open() {
                // Of no use any more: others need not wait for the rest.
                shares.clear();
            }
            let ((server, said, share), _, rest) = select_all(pending).await;
            pending = rest;
            tally.note(server, said);
            shares.extend(share.map(|share| (server, share)));
        }
        // What the others said may be a reason not to count them.
        shares.retain(|(server, _)| match electorate.out(*server) {
            Some(out) => {
                tally.note(*server, out);
                false
            }
            None => true,
        });
        if shares.len() < self.need {
            return Err(tally);
        }
        let token = self.raise(&mut shares, &mut tally).await;
        if shares.len() < self.need || !self.is_worth_having(&shares, &mut tally) {
            return Err(tally);
        }
        Ok(Majority {
            shares,
            token,
            pending,
        })
    }

    /// Whether more answers are waited for.
    fn goes_on(&self, shares: &[(usize, Share)]) -> bool {
        let servers = shares.iter().map(|(server, _)| *server);
        shares.len() < self.need || self.electorate.is_unsure(servers)
    }

    /// Asks one of them; owns all it needs.
    pub(super) fn vote(&self, server: usize) -> Pending {
        let ballot = self.clone();
        let answer = async move { ballot.ask(server).await }.boxed();
        Pending { server, answer }
    }

    pub(super) async fn ask(&self, server: usize) -> Answer {
        if let Some(out) = self.electorate.out_for_now(server) {
            return (out, None);
        }
        self.electorate.asks(server);
        let answer = match acquire::vote(self.asks[server].clone(), self.limit).await {
            Ok(Some(Vote::Granted(share))) => match self.electorate.out(server) {
                Some(out) => (out, None),
                None => (Said::Granted, Some(share)),
            },
            Ok(Some(Vote::Elsewhere { remaining })) => {
                self.electorate.notice(remaining.unwrap_or_default());
                (Said::Elsewhere(remaining), None)
            }
            Ok(None) => (Said::Silent(self.limit), None),
            Err(error) => (Said::Failed(error), None),
        };
        self.electorate.note(server, &answer.0);
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
            tally.note(*server, Said::Late(lease));
            lasting -= 1;
        }
        lasting >= self.need
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
                    tally.note(server, Said::Unfenced(why));
                    dropped.push(share);
                }
            }
        }
        *shares = kept;
        Some(token)
    }

    pub(super) async fn raise_one(&self, share: &Share, token: FencingToken) -> Result<(), String> {
        let raising = share.raise_token(token, self.asks[0].operation);
        match self.clock().within(self.limit, raising).await {
            Some(Ok(())) if share.is_lost() => Err("its lease was over by then".to_owned()),
            Some(raised) => raised.map_err(|error| error.message().to_owned()),
            None => Err(format!("no answer within {:?}", self.limit)),
        }
    }
}
