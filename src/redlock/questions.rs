//! What is asked of all servers at once without taking the lock: who has it, and that it be freed.
//!
//! Invariant: an answer is that of a majority. Who does not answer, or may have forgotten, may have
//! what the others lack: as long as that could make a majority, there is no answer.

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::lock::{Servers, limit};
use super::votes::{Said, Tally};
use crate::error::Result;
use crate::handle::Holder;
use crate::reentrant;

/// Those whom a majority of the servers names; nobody if there can be none.
pub(super) async fn holders(servers: &Servers, operation: &'static str) -> Result<Vec<Holder>> {
    let (count, need) = (servers.handles.len(), servers.need());
    let mut tally = Tally::new(count, need);
    let handles = servers.askable();
    let asked = handles.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, handle)| async move { (at, reentrant::inspect(handle, operation).await) })
        .collect();
    let (mut held, mut free) = (Vec::new(), 0);
    while let Some((at, answer)) = answers.next().await {
        match answer {
            Ok(Some(holder)) => {
                tally.note(at, Said::Elsewhere(None));
                held.push(holder);
            }
            Ok(None) => match servers.out(at) {
                Some(out) => tally.note(at, out),
                None => {
                    tally.note(at, Said::Free);
                    free += 1;
                }
            },
            Err(error) => tally.note(at, Said::Failed(error)),
        }
        if held.len() >= need {
            return Ok(held);
        }
        if count - free < need {
            return Ok(Vec::new());
        }
    }
    Err(servers.error(operation, &tally)?)
}

/// Frees it everywhere. Those that are slower than the majority have as long as in one round.
pub(super) async fn force(servers: &Servers) -> Result<bool> {
    let (count, need) = (servers.handles.len(), servers.need());
    let mut tally = Tally::new(count, need);
    let handles = servers.askable();
    let asked = handles.iter().enumerate();
    let mut answers: FuturesUnordered<_> = asked
        .map(|(at, handle)| async move { (at, reentrant::force(handle).await) })
        .collect();
    let core = servers.handles[0].core();
    let slack = limit(core.timing.lease);
    let (mut done, mut was_held) = (0, false);
    loop {
        let next = answers.next();
        let answer = match done >= need {
            true => core.clock.within(slack, next).await.flatten(),
            false => next.await,
        };
        let Some((at, answer)) = answer else {
            break;
        };
        match answer {
            Ok(freed) => {
                tally.note(at, Said::Free);
                done += 1;
                was_held |= freed;
            }
            Err(error) => tally.note(at, Said::Failed(error)),
        }
    }
    match done >= need {
        true => Ok(was_held),
        false => Err(servers.error("force_unlock", &tally)?),
    }
}
