//! A grant that counts only once replicas have it.
//!
//! Invariant: there is no hold of it in this client before it is confirmed, so nobody enters it meanwhile,
//! and whoever drops the attempt in the middle leaves it to be undone like any other.

use super::holders::Holders;
use super::request::Requests;
use crate::clock::Tick;
use crate::conn::error_reply::describe;
use crate::error::{Error, Kind};
use crate::hold::local_deadline;
use crate::options::Replication;
use crate::replicas::{Confirmation, Verdict};

/// What became of a grant.
pub(super) enum Confirmed {
    Replicated,
    /// It is not to be handed out.
    NotReplicated(Error),
    /// Its lease is over, or the server does not have it any more.
    Ended,
    /// The client was closed first.
    Closed,
    /// It is not to be handed out, and the server may be silent.
    Unknown(Error),
}

/// Waits for replicas to have the grant that was asked for at `sent`: its lease runs from there.
pub(super) async fn confirm(
    requests: Requests<'_>,
    holders: &Holders<'_>,
    replication: Replication,
    sent: Tick,
) -> Confirmed {
    let core = requests.core();
    let ends = requests
        .all
        .iter()
        .map(|each| local_deadline(sent, each.policy.lease()));
    let end = ends.min().unwrap_or(Tick::ZERO);
    let holds = holders.each().map(|(request, holder)| Confirmation {
        script: request.protocol.renewal(),
        key: request.name.key().clone(),
        holder: *holder,
        until: sent.after(request.policy.lease()),
    });
    let closing = core.closing.mark();
    if core.is_closed() {
        return Confirmed::Closed;
    }
    let confirming = core
        .replicas
        .confirm(&core.watchdog, holds.collect(), replication);
    let verdict = tokio::select! {
        biased;
        verdict = confirming => verdict,
        () = core.closing.past(closing) => return Confirmed::Closed,
        () = core.clock.sleep_until(end) => return Confirmed::Ended,
    };
    let error = |kind, message| requests.of_locks(Error::new(kind, requests.operation(), message));
    let at = || core.scripts.transport.endpoint(requests.all[0].name.key());
    match verdict {
        Ok(Verdict::Confirmed) if core.clock.now() < end => Confirmed::Replicated,
        Ok(Verdict::Confirmed | Verdict::Gone) => Confirmed::Ended,
        Ok(Verdict::TooFew(replicas)) => {
            let Replication { count, within } = replication;
            let message = format!(
                "{replicas} of {count} replicas confirmed within {within:?}; the lock was \
                 released; check the replicas of {} and their links, ask for fewer, or allow more time",
                at()
            );
            Confirmed::NotReplicated(error(Kind::NotReplicated, message))
        }
        Ok(Verdict::Denied(denied)) => {
            let message = format!(
                "{}; waiting for replicas needs the right +wait; the lock was released",
                describe(&denied, &at())
            );
            Confirmed::NotReplicated(error(Kind::Denied, message).caused_by(denied))
        }
        Err(failure) => {
            let error = failure.into_error(requests.operation());
            Confirmed::Unknown(requests.of_locks(error))
        }
    }
}
