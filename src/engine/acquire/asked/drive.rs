//! A command that the watchdog's task drives: there is no connection for it now, its first reply was unclear, or
//! replicas have to confirm its grant.
//!
//! Invariants: nothing is sent for a caller that has left, except the undoing of what was sent before. This client has
//! no hold of a grant until the replicas that were asked for have confirmed it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, AbortRegistration, Abortable};

use super::{Asked, End, Stage};
use crate::api::error::{Error, Kind};
use crate::api::fencing::FencingToken;
use crate::api::options::Replication;
use crate::conn::error_reply::describe;
use crate::conn::{Lane, sent};
use crate::engine::acquire::grant::Grant;
use crate::engine::acquire::request::Attempted;
use crate::engine::clock::Tick;
use crate::engine::hold::local_deadline;
use crate::engine::replicas::{Confirmation, Verdict};
use crate::script::reply::Acquired;
use crate::script::{Earlier, RETRY_PAUSE_FIRST};

/// Drives a command. If the task ends first, the caller gets an error.
struct Driver(Option<Arc<Asked>>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(asked) = self.0.take() {
            let requests = asked.requests();
            let error = Error::orphaned(requests.operation());
            let error = error.at(requests.core().scripts.transport.address());
            let end = asked.undone(Err(requests.of_locks(error)));
            asked.end(end);
        }
    }
}

impl Driver {
    async fn run(mut self, earlier: Option<Earlier>, stopped: AbortRegistration) {
        let Some(asked) = self.0.clone() else {
            return;
        };
        let was_sent = AtomicBool::new(earlier.as_ref().is_some_and(Earlier::may_be_executed));
        let end = {
            let asking = pin!(asked.ask(&was_sent, earlier));
            Abortable::new(sent::track(&was_sent, asking), stopped).await
        };
        self.0 = None;
        match end {
            Ok(end) => asked.end(end),
            // The caller has left. A command that still waited for a connection is never executed.
            Err(_) => asked.undo_unless_answered(was_sent.into_inner(), false),
        }
    }
}

impl Asked {
    /// Has the watchdog's task drive the command, after an earlier send that failed, if any.
    pub(super) fn drive(self: Arc<Self>, earlier: Option<Earlier>) {
        let (stop, stopped) = AbortHandle::new_pair();
        {
            let mut progress = self.progress.lock();
            if let Stage::Left = progress.stage {
                drop(progress);
                let may_arrive = earlier.is_some_and(|earlier| earlier.may_be_executed());
                return self.undo_unless_answered(may_arrive, false);
            }
            progress.stage = Stage::Driven(stop);
        }
        let core = Arc::clone(self.requests().core());
        let driver = Driver(Some(self));
        core.watchdog.begin(driver.run(earlier, stopped).boxed());
    }

    async fn ask(self: &Arc<Self>, was_sent: &AtomicBool, earlier: Option<Earlier>) -> End {
        let (lane, budget) = (Lane::Command, self.terms.budget);
        let requests = self.requests();
        let core = requests.core();
        if earlier.as_ref().is_some_and(Earlier::is_temporary) {
            tokio::time::sleep(RETRY_PAUSE_FIRST.mul_f64(fastrand::f64())).await;
        }
        let (call, now) = (self.call(), core.clock.now());
        let run = core.scripts.run_behind(earlier, now, lane, &call, budget);
        let answer = match core.while_open(pin!(run)).await {
            None if was_sent.load(Ordering::Relaxed) => return self.undone(Err(requests.closed())),
            None => return End::new(Err(requests.closed())),
            Some(Err(failure)) => return self.failed(failure),
            Some(Ok(answer)) => answer,
        };
        if answer.is_in_doubt {
            return self.undone(None);
        }
        match (requests.replication(), self.read_value(&answer.value)) {
            (Some(replication), Ok(Acquired::Held { tokens })) => {
                let grant = self.grant(answer.sent);
                self.confirmed(replication, grant, &tokens).await
            }
            (_, read) => self.read(answer.sent, read, answer.repeated),
        }
    }

    /// Waits until the replicas have the grant. If its lease ends before that, the attempt counts as refused.
    async fn confirmed(
        self: &Arc<Self>,
        replication: Replication,
        grant: Grant,
        tokens: &[Option<FencingToken>],
    ) -> End {
        let requests = self.requests();
        let core = requests.core();
        let leases = requests.all.iter().map(|each| each.policy.lease());
        let ends = leases.map(|lease| local_deadline(grant.sent, lease));
        let end = ends.min().unwrap_or(Tick::ZERO);
        let holds = self.requests.iter().zip(&self.ids);
        let holds = holds.map(|(request, (_, holder))| Confirmation {
            script: request.protocol.renewal(),
            key: request.name.key().clone(),
            holder: *holder,
            until: grant.sent.after(request.policy.lease()),
        });
        let refused = || self.undone(Ok(Attempted::not_held(self.terms.at)));
        let confirming = core
            .replicas
            .confirm(&core.watchdog, holds.collect(), replication);
        let verdict = tokio::select! {
            biased;
            verdict = core.until_closed(confirming) => verdict,
            () = core.clock.sleep_until(end) => return refused(),
        };
        let at = || core.scripts.transport.endpoint(requests.all[0].name.key());
        let error = match verdict {
            Some(Ok(Verdict::Confirmed)) if core.clock.now() < end => {
                return self.granted(grant, tokens);
            }
            Some(Ok(Verdict::Confirmed | Verdict::Gone)) => return refused(),
            // Does not wait for the undoing, which could take long, because the server may be silent.
            Some(Err(failure)) => return self.undone(Err(self.error(failure))),
            None => core.closed(requests.operation()),
            Some(Ok(Verdict::TooFew(replicas))) => {
                let Replication { count, within } = replication;
                let message = format!(
                    "{replicas} of {count} replicas confirmed within {within:?}; the lock was \
                     released; check the replicas of {} and their links, ask for fewer, or allow more time",
                    at()
                );
                Error::new(Kind::NotReplicated, requests.operation(), message)
            }
            Some(Ok(Verdict::Denied(denied))) => {
                let message = format!(
                    "{}; waiting for replicas needs the right +wait; the lock was released",
                    describe(&denied, &at())
                );
                Error::new(Kind::Denied, requests.operation(), message).caused_by(denied)
            }
        };
        self.given_back(requests.of_locks(error)).await
    }

    /// Releases a grant that is not handed out, and waits until the server has done so.
    async fn given_back(&self, error: Error) -> End {
        let (scripts, release) = (&self.requests().core().scripts, self.holders().release());
        let released = scripts
            .run(Lane::Command, &release, self.terms.budget)
            .await;
        match released {
            Ok(_) => End {
                is_undone: true,
                ..End::new(Err(error))
            },
            Err(_) => self.undone(Err(error)),
        }
    }
}
