//! The records of a call for a lock: its end, its span, and a report if it waits for long.
//!
//! Long waits are reported once per lock and ten seconds, with the holder in the way.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;

use rustc_hash::FxBuildHasher;
#[cfg(feature = "tracing")]
use tracing::{Instrument, Span, debug_span, field};

use crate::api::error::Result;
use crate::api::holder::{Busy, HolderId};
use crate::api::options::{LONG_WAIT, Options};
use crate::conn::Lane;
use crate::engine::acquire::LockRequest;
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
#[cfg(feature = "tracing")]
use crate::observe::counts::OUTCOMES;
use crate::observe::counts::{CallOutcome, CountedKind, Fact};
use crate::observe::events::{Event, Place};
#[cfg(feature = "tracing")]
use crate::observe::group::Group;
#[cfg(feature = "tracing")]
use crate::observe::observer::has_spans;
use crate::observe::observer::{GuardTimer, HoldTimer};
use crate::script::reply;

/// A call for a lock.
#[derive(Clone, Copy)]
pub(crate) struct LockCall<'a> {
    core: &'a Core,
    kind: CountedKind,
    /// The name of the lock as it was given to the client.
    name: &'a str,
    options: &'a Options,
    pub(crate) began: Tick,
}

/// The state of a wait, for a report: how many calls of this client wait for the lock, the place of the call, and the
/// holder in the way.
pub(crate) struct Waited(pub(crate) usize, pub(crate) Option<Place>, pub(crate) Busy);

impl<'a> LockCall<'a> {
    /// Returns a call that begins now.
    pub(crate) fn begin(
        core: &'a Core,
        kind: CountedKind,
        name: &'a str,
        options: &'a Options,
    ) -> Self {
        Self {
            core,
            kind,
            name,
            options,
            began: core.clock.now(),
        }
    }

    /// Drives the call, and reports it to the observer of the client if it waits for long.
    pub(crate) async fn told_if_long<T, W: Future<Output = Waited>>(
        &self,
        waits: bool,
        waited: impl Fn() -> W,
        call: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let core = self.core;
        if !waits || !core.observed().is_on() {
            return call.await;
        }
        // First polled when the call has to wait, which most calls do not.
        let watched = async {
            let lock = FxBuildHasher.hash_one(self.name);
            let long = self.options.long_wait.unwrap_or(LONG_WAIT);
            let mut due = self.began.after(long);
            loop {
                let wait = core.observed().list_wait(lock, self.began, due);
                wait.until_long().await;
                let (longest, next) = wait.take_report(core.clock.now());
                if let Some(began) = longest {
                    // Boxed because few calls wait for long.
                    Box::pin(self.tell_long(began, waited())).await;
                }
                due = next;
            }
        };
        tokio::select! {
            biased;
            done = call => done,
            never = watched => never,
        }
    }

    /// Reports the waits for the lock. The longest of them began at `began`.
    async fn tell_long(&self, began: Tick, waited: impl Future<Output = Waited>) {
        let Waited(waiters, place, busy) = waited.await;
        let core = self.core;
        core.observed().note(Fact::event(Event::LongWait {
            lock: self.name.into(),
            waited: began.until(core.clock.now()),
            busy: busy.holder.is_some().then_some(busy),
            waiters,
            place,
        }));
    }

    /// Drives the call in a span, and notes its end. `granted` returns when the call got the lock, if that is known. If
    /// the call got the lock and is timed, this also returns the timer to keep beside the guard, and the time of the
    /// grant.
    pub(crate) async fn recorded<T>(
        &self,
        granted: impl FnOnce(&T) -> Option<Tick>,
        call: impl Future<Output = Result<Option<T>>>,
    ) -> (Result<Option<T>>, Option<(HoldTimer, Tick)>) {
        let end = CallEnd {
            call: self,
            is_timed: self.core.observed().times_calls(self.began),
        };
        #[cfg(feature = "tracing")]
        let span = self.span();
        #[cfg(feature = "tracing")]
        let call = call.instrument(span.clone());
        let ended = call.await;
        let outcome = match &ended {
            Ok(Some(_)) => CallOutcome::Granted,
            Ok(None) => CallOutcome::Refused,
            Err(_) => CallOutcome::Error,
        };
        #[cfg(feature = "tracing")]
        span.record("lockset.outcome", OUTCOMES[outcome as usize]);
        let timed = end.note(outcome, || ended.as_ref().ok()?.as_ref().and_then(granted));
        // It was not cancelled.
        std::mem::forget(end);
        (ended, timed)
    }

    /// Returns the span of the call, if spans are wanted.
    #[cfg(feature = "tracing")]
    fn span(&self) -> Span {
        if !has_spans() {
            return Span::none();
        }
        let group = self.options.group;
        debug_span!(
            target: "lockset", "lockset.acquire",
            lockset.kind = self.kind.name(), lockset.name = self.name,
            lockset.group = (group != Group::NONE).then(|| group.name()),
            lockset.outcome = field::Empty
        )
    }

    /// As [`recorded`](Self::recorded), with a timer that notes the end of the guard when it is dropped.
    pub(crate) async fn guarded<T>(
        &self,
        call: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<(T, GuardTimer)>> {
        let (ended, timed) = self.recorded(|_| None, call).await;
        let observed = &self.core.scripts.observed;
        let timer = || GuardTimer::of(timed, observed, self.core.clock);
        Ok(ended?.map(|got| (got, timer())))
    }
}

/// A call that has not ended. If it is dropped, it was cancelled.
struct CallEnd<'a> {
    call: &'a LockCall<'a>,
    is_timed: bool,
}

impl CallEnd<'_> {
    /// Notes the end of the call, at the time that `at` returns, or now. Returns the timer of the guard and that time,
    /// if the call got the lock and is timed.
    #[inline]
    fn note(
        &self,
        outcome: CallOutcome,
        at: impl FnOnce() -> Option<Tick>,
    ) -> Option<(HoldTimer, Tick)> {
        let (core, kind, group) = (self.call.core, self.call.kind, self.call.options.group);
        let ended = || at().unwrap_or_else(|| core.clock.now());
        let ended = self.is_timed.then(ended);
        let took = ended.map(|ended| self.call.began.until(ended));
        core.observed().note(Fact::CallEnded {
            kind,
            group,
            outcome,
            took,
        });
        let is_granted = outcome == CallOutcome::Granted;
        is_granted.then_some((HoldTimer { kind, group }, ended?))
    }
}

impl Drop for CallEnd<'_> {
    fn drop(&mut self) {
        self.note(CallOutcome::Cancelled, || None);
    }
}

/// Finds the place of the call with this request, if the server answers within the time of one reply.
pub(crate) async fn place_of(request: &LockRequest) -> Option<Place> {
    let (core, number) = (&request.core, request.queued.number()?);
    let holder = HolderId::new(core.id(), number);
    let Some(ask) = request.protocol.place(&request.name, &holder) else {
        let place = request.local.lock().queue().place_of(number);
        return place.map(Place::Client);
    };
    let budget = core.call_budget(core.timing.reply);
    let answer = core.scripts.run(Lane::Command, &ask, budget).await.ok()?;
    reply::place(&answer.value).map(Place::Server)
}
