//! Confirms a grant that counts only once replicas have it.
//!
//! Invariant: this client has no hold of the grant until it is confirmed, so no task enters it early, and a call that
//! is dropped in between leaves the grant to be undone like any other.

use super::holders::Holders;
use super::request::Requests;
use crate::api::error::{Error, Kind};
use crate::api::options::Replication;
use crate::conn::error_reply::describe;
use crate::engine::clock::Tick;
use crate::engine::hold::local_deadline;
use crate::engine::replicas::{Confirmation, Verdict};

/// The result of waiting for the replicas.
pub(super) enum Confirmed {
    Replicated,
    /// Too few replicas have it, so it must not be handed out.
    NotReplicated(Error),
    /// Its lease has ended, or the server no longer has it.
    Ended,
    /// The client was closed first.
    Closed,
    /// The outcome is unknown and the server may be silent. It must not be handed out.
    Unknown(Error),
}

/// Waits until replicas have the grant of the request sent at `sent`, which is when its lease starts.
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
        () = core.closing.changed_since(closing) => return Confirmed::Closed,
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
