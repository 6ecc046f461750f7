//! A grant that counts only once replicas have it.
//!
//! It is confirmed before there is a hold of it in this client, so nobody enters it meanwhile, and
//! whoever drops the attempt in the middle leaves it to be undone like any other.

use super::attempt::Attempt;
use crate::clock::Tick;
use crate::conn::error_reply::describe;
use crate::error::{Error, Kind};
use crate::hold::local_deadline;
use crate::options::Replication;
use crate::replicas::{Confirmation, Verdict};

/// What becomes of a grant.
pub(super) enum Confirmed {
    Yes,
    /// Its lease is over, or the server does not have it any more.
    Ended,
    /// It is not to be handed out.
    No(Error),
    /// It is not to be handed out, and the server may be silent.
    Unknown(Error),
}

impl Attempt<'_> {
    /// Waits for the replicas that were asked for to have the grant, if any were. `sent` is when it was
    /// asked for: the lease runs from there.
    pub(super) async fn confirmed(&self, sent: Tick) -> Confirmed {
        let wanted = self
            .members()
            .filter_map(|(request, _)| request.options.replication)
            .reduce(Replication::both);
        let Some(replication) = wanted else {
            return Confirmed::Yes;
        };
        let core = self.party.core();
        let operation = self.party.requests[0].operation;
        let ends = self
            .members()
            .map(|(request, _)| local_deadline(sent, request.policy.lease()));
        let end = ends.min().unwrap_or(Tick::ZERO);
        let holds = self.members().map(|(request, holder)| Confirmation {
            script: request.protocol.renewal(),
            key: request.name.key().clone(),
            holder: holder.clone(),
            until: sent.after(request.policy.lease()),
        });
        let closing = core.closing.mark();
        if core.is_closed() {
            // Which is seen next.
            return Confirmed::Yes;
        }
        let confirming = core
            .replicas
            .confirm(&core.watchdog, holds.collect(), replication);
        let verdict = tokio::select! {
            biased;
            verdict = confirming => verdict,
            () = core.closing.past(closing) => return Confirmed::Yes,
            () = core.clock.sleep_until(end) => return Confirmed::Ended,
        };
        let no = |kind, message| Confirmed::No(self.of_locks(Error::new(kind, operation, message)));
        let at = || {
            core.scripts
                .transport
                .endpoint(self.party.requests[0].name.key())
        };
        match verdict {
            Ok(Verdict::Confirmed) if core.clock.now() < end => Confirmed::Yes,
            Ok(Verdict::Confirmed | Verdict::Gone) => Confirmed::Ended,
            Ok(Verdict::TooFew(replicas)) => {
                let Replication { count, within } = replication;
                let message = format!(
                    "{replicas} of {count} replicas confirmed within {within:?}; the lock was \
                     released; check the replicas of {} and their links, ask for fewer, or allow more time",
                    at()
                );
                no(Kind::NotReplicated, message)
            }
            Ok(Verdict::Denied(error)) => {
                let message = format!(
                    "{}; to wait for replicas the user needs the right +wait; \
                     the lock was released",
                    describe(&error, &at())
                );
                match no(Kind::Denied, message) {
                    Confirmed::No(denied) => Confirmed::No(denied.caused_by(error)),
                    other => other,
                }
            }
            Err(failure) => Confirmed::Unknown(self.of_locks(failure.into_error(operation))),
        }
    }
}
