//! One attempt at a lock whose answer is worth something for a short time only: the vote of one of
//! several servers.
//!
//! It owns all it needs, so that it can be left to others half-way; dropped, it is undone as every
//! attempt is.

use std::time::Duration;

use super::attempt::{Candidate, Outcome};
use super::{Ask, Party, ensure_open};
use crate::conn::Lane;
use crate::error::Result;
use crate::hold::Share;
use crate::script::CallBudget;

/// What a server says.
pub(crate) enum Vote {
    /// Released again if nobody takes it.
    Granted(Share),
    Elsewhere {
        remaining: Option<Duration>,
    },
}

/// Asks once, for at most `limit`; `None` if there is no answer by then.
///
/// A connection that breaks under the attempt is replaced and the server asked once more; one that
/// cannot be made is an error at once.
pub(crate) async fn vote(ask: Ask, limit: Duration) -> Result<Option<Vote>> {
    ensure_open(&ask)?;
    let clock = ask.core.clock;
    // What its replicas may take comes on top.
    let limit = limit
        + ask
            .options
            .replication
            .map_or(Duration::ZERO, |wanted| wanted.within);
    let end = clock.now().after(limit);
    // A server that is slower than the limit is not dead: its connection stays.
    let budget = CallBudget::once(ask.core.timing.reply);
    let local = ask.core.locals.enter(ask.protocol.kind(), ask.name.key());
    let (asks, locals) = ([ask], [local]);
    let party = Party {
        asks: &asks,
        locals: &locals,
        bound: super::bound(&asks, super::Wait::Never),
    };
    let attempt = async {
        let mut candidate = Candidate::passing(party);
        party.left(end).await;
        let mut outcome = candidate.attempt(0, Lane::Command, budget).await;
        if outcome.is_err() && candidate.is_in_doubt() {
            candidate.start_over();
            party.left(end).await;
            outcome = candidate.attempt(0, Lane::Command, budget).await;
        }
        outcome
    };
    let Some(outcome) = clock.within(limit, attempt).await else {
        return Ok(None);
    };
    Ok(match outcome? {
        Outcome::Granted(mut shares) => shares.pop().map(Vote::Granted),
        Outcome::Refused { remaining, .. } => Some(Vote::Elsewhere { remaining }),
    })
}
