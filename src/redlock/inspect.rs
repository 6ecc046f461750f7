//! What is asked of all servers at once without taking the lock: who has it, and that it be freed.
//!
//! Invariant: an answer is that of a majority. Who does not answer, or may have forgotten, may have
//! what the others lack: as long as that could make a majority, there is no answer.

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::lock::{QuorumHandle, vote_timeout};
use super::tally::{Tally, VoteOutcome};
use crate::error::Result;
use crate::handle::Holder;
use crate::reentrant;

/// Those whom a majority of the servers names; nobody if there can be none.
pub(super) async fn holders(lock: &QuorumHandle, operation: &'static str) -> Result<Vec<Holder>> {
    let (count, quorum) = (lock.handles.len(), lock.quorum());
    let mut tally = Tally::new(count, quorum);
    let handles = lock.to_ask();
    let asked = handles.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, handle)| async move { (at, reentrant::inspect(handle, operation).await) })
        .collect();
    let (mut held, mut free) = (Vec::new(), 0);
    while let Some((at, answer)) = answers.next().await {
        match answer {
            Ok(Some(holder)) => {
                tally.record(at, VoteOutcome::HeldElsewhere(None));
                held.push(holder);
            }
            Ok(None) => match lock.disqualified(at) {
                Some(out) => tally.record(at, out),
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

/// Frees it everywhere. Those that are slower than the majority have as long as in one round.
pub(super) async fn force_unlock(lock: &QuorumHandle) -> Result<bool> {
    let (count, quorum) = (lock.handles.len(), lock.quorum());
    let mut tally = Tally::new(count, quorum);
    let handles = lock.to_ask();
    let asked = handles.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, handle)| async move { (at, reentrant::force(handle).await) })
        .collect();
    let core = lock.handles[0].core();
    let slack = vote_timeout(core.timing.lease);
    let (mut done, mut was_held) = (0, false);
    loop {
        let next = answers.next();
        let answer = match done >= quorum {
            true => core.clock.within(slack, next).await.flatten(),
            false => next.await,
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
    match done >= quorum {
        true => Ok(was_held),
        false => Err(lock.error("force_unlock", &tally)?),
    }
}
