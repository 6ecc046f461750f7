//! One more hold for an owner that has the lock.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use super::ballot::Ballot;
use super::votes::{Said, Tally};
use crate::counts::Mode;
use crate::error::Result;
use crate::hold::bound::Bound;
use crate::hold::quorum::{Quorum, Seat};
use crate::hold::reenter::Entry;

/// Asks all servers of the quorum at once, and waits for a majority of all, for as long as the call that
/// this is a part of may go on. `None`: it is lost or over, also if another task of its owner has given
/// it back meanwhile, and the caller is a newcomer.
///
/// If this is dropped or fails, the counts that servers may have raised are put right in the
/// background.
pub(super) async fn enter(
    ballot: &Ballot,
    quorum: &Arc<Quorum>,
    entry: Entry,
    bound: Option<&Bound>,
) -> Result<Option<Seat>> {
    let ask = &ballot.asks[0];
    let clock = ballot.clock();
    let fenced = matches!(entry, Entry::Asked(_)) && ask.options.fenced && quorum.token().is_none();
    let mut tally = Tally::new(ballot.asks.len(), ballot.need);
    let holds = quorum.holds();
    let entering = holds.iter().map(|(server, hold)| {
        async move {
            // Each vote has an owner of its own; what belongs to a quorum does not pass to another.
            let (owner, mode) = (hold.owner(), Mode::Exclusive);
            let entering = hold.reenter(&owner, mode, entry, fenced, ask.operation, bound);
            (*server, entering.await)
        }
        .boxed()
    });
    let mut pending: Vec<_> = entering.collect();
    let mut shares = Vec::new();
    // As long as one server would be given: a majority does not take longer.
    let end = match bound {
        Some(bound) => bound.end(clock.now()),
        None => clock.now().after(ask.give_up()),
    };
    while shares.len() < ballot.need && shares.len() + pending.len() >= ballot.need {
        let answered = clock.within(clock.now().until(end), select_all(pending));
        let Some(((server, entered), _, rest)) = answered.await else {
            break;
        };
        pending = rest;
        match entered {
            Ok(Some(share)) => {
                tally.note(server, Said::Granted);
                shares.push((server, share));
            }
            Ok(None) => tally.note(server, Said::Elsewhere(None)),
            Err(error) => tally.note(server, Said::Failed(error)),
        }
    }
    // What the servers say of a hold that has ended meanwhile is no failure of theirs.
    let failed = |tally: Tally| match quorum.is_held() {
        true => {
            let error = tally.error(ask.operation, ballot.addresses());
            Err(error.of_lock(ask.name.as_str()))
        }
        false => Ok(None),
    };
    if shares.len() < ballot.need {
        return failed(tally);
    }
    if fenced {
        let tokens = shares.iter().filter_map(|(_, share)| share.fencing_token());
        if let Some(token) = tokens.max() {
            let each = shares
                .iter()
                .map(|(_, share)| ballot.raise_one(share, token));
            let raised = join_all(each).await;
            let mut places = Vec::new();
            for ((server, _), raised) in shares.iter().zip(raised) {
                match raised {
                    Ok(()) => places.push(*server),
                    Err(why) => tally.note(*server, Said::Unfenced(why)),
                }
            }
            if !quorum.fence(token, &places) {
                return failed(tally);
            }
        }
    }
    Ok(quorum.admit(shares))
}
