//! Questions and commands to all servers at once without acquiring the lock: its holder, and its forced release.
//!
//! Invariant: an answer is the answer of a majority. A server that does not answer, or may have forgotten, may know of
//! a hold that the others lack. While such servers could make a majority, there is no answer.

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::handle::{QuorumHandle, vote_timeout};
use super::tally::{Tally, VoteOutcome};
use crate::api::error::Result;
use crate::api::holder::Holder;

/// Returns the holders that a majority of the servers names; none if there can be no majority.
pub(super) async fn holders(lock: &QuorumHandle, operation: &'static str) -> Result<Vec<Holder>> {
    let (count, quorum) = (lock.members.len(), lock.servers.quorum());
    let mut tally = Tally::new(count, quorum);
    let members = lock.to_inspect();
    let asked = members.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, member)| async move { (at, member.holder(operation).await) })
        .collect();
    let (mut held, mut free) = (Vec::new(), 0);
    while let Some((at, answer)) = answers.next().await {
        match answer {
            Ok(Some(holder)) => {
                tally.record(at, VoteOutcome::HeldElsewhere(None));
                held.push(holder);
            }
            Ok(None) => match lock.servers.disqualified(at) {
                Some(reason) => tally.record(at, reason),
                None => {
                    tally.record(at, VoteOutcome::Free);
                    free += 1;
                }
            },
            Err(error) => tally.record(at, VoteOutcome::Failed(error)),
        }
        if held.len() >= quorum {
            return Ok(held);
        }
        if count - free < quorum {
            return Ok(Vec::new());
        }
    }
    Err(lock.error(operation, &tally)?)
}

/// Frees the lock on every server. Returns whether it was held. Once a majority has answered, the others have the time
/// of one round.
pub(super) async fn force_unlock(lock: &QuorumHandle) -> Result<bool> {
    let (count, quorum) = (lock.members.len(), lock.servers.quorum());
    let mut tally = Tally::new(count, quorum);
    let members = lock.to_inspect();
    let asked = members.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, member)| async move { (at, member.force_unlock().await) })
        .collect();
    let core = lock.members[0].core();
    let slack = vote_timeout(core.timing.lease);
    let (mut done, mut was_held) = (0, false);
    loop {
        let next = answers.next();
        let answer = if done >= quorum {
            core.clock.within(slack, next).await.flatten()
        } else {
            next.await
        };
        let Some((at, answer)) = answer else {
            break;
        };
        match answer {
            Ok(freed) => {
                tally.record(at, VoteOutcome::Free);
                done += 1;
                was_held |= freed;
            }
            Err(error) => tally.record(at, VoteOutcome::Failed(error)),
        }
    }
    if done < quorum {
        return Err(lock.error("force_unlock", &tally)?);
    }
    Ok(was_held)
}
