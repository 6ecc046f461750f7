//! Spans and events for `tracing`. Not compiled without that feature.

use std::future::Future;
use std::time::Duration;

use tracing::{Instrument, Level, Span, debug_span, enabled, field, level_enabled};

use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::observe::events::{Event, Place};
use crate::observe::group::Group;

/// Whether events that cost a question to the server have a subscriber.
pub(super) fn is_on() -> bool {
    enabled!(target: "lockset", Level::WARN)
}

/// Whether spans may be wanted. Costs nothing if they are not.
pub(super) fn has_spans() -> bool {
    level_enabled!(Level::DEBUG)
}

fn seconds(span: &Duration) -> f64 {
    span.as_secs_f64()
}

/// Tells the event at this level, under this name, with these fields.
macro_rules! tell {
    ($event:ident, $level:ident, $name:literal, $($fields:tt)*) => {
        tracing::$level!(name: $name, target: "lockset", { $($fields)* }, "{}", $event)
    };
}

pub(super) fn tell(event: &Event<'_>) {
    match event {
        Event::Lost {
            lock,
            holder,
            reason,
            held,
        } => tell!(event, warn, "lockset.lost",
            lockset.name = %lock, lockset.holder = %holder, lockset.reason = ?reason,
            lockset.held_seconds = seconds(held)),
        Event::RenewalLate { lock, left, lease } => tell!(event, warn, "lockset.renewal_late",
            lockset.name = %lock, lockset.left_seconds = seconds(left),
            lockset.lease_seconds = seconds(lease)),
        Event::RenewalFailed {
            lock,
            left,
            holds,
            server,
            since,
            error,
        } => tell!(event, warn, "lockset.renewal_failed",
            lockset.name = %lock, lockset.left_seconds = seconds(left), lockset.holds = holds,
            lockset.since_seconds = seconds(since), server.address = %server,
            error.type = ?error.kind()),
        Event::ReleaseFailed { lock, error } => tell!(event, warn, "lockset.release_failed",
            lockset.name = lock.as_deref(), error.type = ?error.kind()),
        Event::LongWait {
            lock,
            waited,
            busy,
            waiters,
            place,
        } => tell!(event, warn, "lockset.long_wait",
            lockset.name = %lock, lockset.waited_seconds = seconds(waited),
            lockset.holder = busy.as_ref().and_then(|busy| busy.holder.as_deref()),
            lockset.waiters = waiters, lockset.place = place.map(Place::number),
            lockset.queue = place.map(Place::queue)),
        Event::Reconnected { server, lane } => tell!(event, info, "lockset.reconnected",
            server.address = %server, lockset.lane = lane),
        Event::Failover { holds } => tell!(event, warn, "lockset.failover", lockset.holds = holds),
        Event::Freed {
            lock,
            holder,
            reason,
        } => tell!(event, warn, "lockset.freed",
            lockset.name = %lock, lockset.holder = %holder, lockset.reason = %reason),
        Event::Forced { lock } => tell!(event, info, "lockset.forced", lockset.name = %lock),
        Event::TooManyGroups { group } => tell!(event, warn, "lockset.too_many_groups",
            lockset.group = %group),
    }
}

/// Drives a call that asks for a lock, in a span of its own.
pub(super) async fn acquire<T>(
    kind: &'static str,
    name: &str,
    group: Group,
    call: impl Future<Output = Result<Option<T>>>,
) -> Result<Option<T>> {
    let span = debug_span!(
        target: "lockset", "lockset.acquire",
        lockset.kind = kind, lockset.name = name,
        lockset.group = (group != Group::NONE).then(|| group.name()),
        lockset.outcome = field::Empty
    );
    if span.is_disabled() {
        return call.await;
    }
    let ended = call.instrument(span.clone()).await;
    let outcome = match &ended {
        Ok(Some(_)) => "granted",
        Ok(None) => "refused",
        Err(_) => "error",
    };
    span.record("lockset.outcome", outcome);
    ended
}

/// Begins the span of a guard, if it is wanted. It follows from the span of its call.
#[cold]
pub(super) fn hold(name: &str, holder: &str, token: Option<FencingToken>) -> Option<Box<Span>> {
    let span = debug_span!(
        target: "lockset", parent: None, "lockset.hold",
        lockset.name = name, lockset.holder = holder,
        lockset.token = token.map(FencingToken::get)
    );
    if span.is_disabled() {
        return None;
    }
    span.follows_from(Span::current());
    Some(Box::new(span))
}
