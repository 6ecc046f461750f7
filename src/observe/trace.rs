//! Spans and events for `tracing`. Not compiled without that feature.

#[cfg(feature = "tracing")]
pub(crate) use self::on::{HoldSpan, acquire, has_spans, is_on, tell};

#[cfg(not(feature = "tracing"))]
pub(crate) use self::off::{HoldSpan, acquire, has_spans, is_on, tell};

#[cfg(feature = "tracing")]
mod on {
    use std::future::Future;
    use std::time::Duration;

    use tracing::{Instrument, Level, Span, debug_span, enabled, field, info, level_enabled, warn};

    use crate::api::error::Result;
    use crate::api::fencing::FencingToken;
    use crate::observe::events::{Event, Place};
    use crate::observe::group::Group;

    /// Whether events that cost a question to the server have a subscriber.
    pub(crate) fn is_on() -> bool {
        enabled!(target: "lockset", Level::WARN)
    }

    /// Whether spans may be wanted. Costs nothing if they are not.
    pub(crate) fn has_spans() -> bool {
        level_enabled!(Level::DEBUG)
    }

    fn seconds(span: Duration) -> f64 {
        span.as_secs_f64()
    }

    pub(crate) fn tell(event: &Event<'_>) {
        match event {
            Event::RenewalLate { .. } | Event::RenewalFailed { .. } => tell_of_renewals(event),
            Event::Forced { .. }
            | Event::Freed { .. }
            | Event::Reconnected { .. }
            | Event::Failover { .. }
            | Event::TooManyGroups { .. } => tell_of_the_rest(event),
            event => tell_of_locks(event),
        }
    }

    fn tell_of_renewals(event: &Event<'_>) {
        match event {
            Event::RenewalLate { lock, left, lease } => warn!(
                name: "lockset.renewal_late",
                target: "lockset",
                {
                    lockset.name = %lock,
                    lockset.left_seconds = seconds(*left),
                    lockset.lease_seconds = seconds(*lease),
                },
                "{event}"
            ),
            Event::RenewalFailed {
                lock,
                left,
                holds,
                server,
                since,
                error,
            } => warn!(
                name: "lockset.renewal_failed",
                target: "lockset",
                {
                    lockset.name = %lock,
                    lockset.left_seconds = seconds(*left),
                    lockset.holds = holds,
                    lockset.since_seconds = seconds(*since),
                    server.address = %server,
                    error.type = ?error.kind(),
                },
                "{event}"
            ),
            _ => {}
        }
    }

    fn tell_of_locks(event: &Event<'_>) {
        match event {
            Event::Lost {
                lock,
                holder,
                reason,
                held,
            } => warn!(
                name: "lockset.lost",
                target: "lockset",
                {
                    lockset.name = %lock,
                    lockset.holder = %holder,
                    lockset.reason = ?reason,
                    lockset.held_seconds = seconds(*held),
                },
                "{event}"
            ),
            Event::ReleaseFailed { lock, error } => warn!(
                name: "lockset.release_failed",
                target: "lockset",
                {
                    lockset.name = lock.as_deref(),
                    error.type = ?error.kind(),
                },
                "{event}"
            ),
            Event::LongWait {
                lock,
                waited,
                busy,
                waiters,
                place,
            } => warn!(
                name: "lockset.long_wait",
                target: "lockset",
                {
                    lockset.name = %lock,
                    lockset.waited_seconds = seconds(*waited),
                    lockset.holder = busy.as_ref().and_then(|busy| busy.holder.as_deref()),
                    lockset.waiters = waiters,
                    lockset.place = place.map(Place::number),
                    lockset.queue = place.map(Place::queue),
                },
                "{event}"
            ),
            _ => {}
        }
    }

    fn tell_of_the_rest(event: &Event<'_>) {
        match event {
            Event::Reconnected { server, lane } => info!(
                name: "lockset.reconnected",
                target: "lockset",
                {
                    server.address = %server,
                    lockset.lane = lane,
                },
                "{event}"
            ),
            Event::Forced { lock } => info!(
                name: "lockset.forced",
                target: "lockset",
                {
                    lockset.name = %lock,
                },
                "{event}"
            ),
            Event::Freed {
                lock,
                holder,
                reason,
            } => warn!(
                name: "lockset.freed",
                target: "lockset",
                {
                    lockset.name = %lock,
                    lockset.holder = %holder,
                    lockset.reason = %reason,
                },
                "{event}"
            ),
            Event::Failover { holds } => warn!(
                name: "lockset.failover",
                target: "lockset",
                {
                    lockset.holds = holds,
                },
                "{event}"
            ),
            Event::TooManyGroups { group } => warn!(
                name: "lockset.too_many_groups",
                target: "lockset",
                {
                    lockset.group = %group,
                },
                "{event}"
            ),
            _ => {}
        }
    }

    /// Drives a call that asks for a lock, in a span of its own.
    pub(crate) async fn acquire<T>(
        kind: &'static str,
        name: &str,
        group: Group,
        call: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        if !has_spans() {
            return call.await;
        }
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

    /// The time that a guard holds a lock. The span follows from the span of its call.
    #[derive(Debug)]
    pub(crate) struct HoldSpan {
        /// Boxed, because there is mostly none, and guards are moved often.
        _span: Option<Box<Span>>,
    }

    impl HoldSpan {
        /// No span, for a share without a guard yet.
        pub(crate) fn none() -> Self {
            Self { _span: None }
        }

        #[inline]
        pub(crate) fn begin<'a>(
            name: impl FnOnce() -> &'a str,
            holder: impl FnOnce() -> &'a str,
            token: impl FnOnce() -> Option<FencingToken>,
        ) -> Self {
            if !has_spans() {
                return Self::none();
            }
            Self::begin_if_wanted(name(), holder(), token())
        }

        #[cold]
        fn begin_if_wanted(name: &str, holder: &str, token: Option<FencingToken>) -> Self {
            let span = debug_span!(
                target: "lockset", parent: None, "lockset.hold",
                lockset.name = name, lockset.holder = holder,
                lockset.token = token.map(FencingToken::get)
            );
            if span.is_disabled() {
                return Self::none();
            }
            span.follows_from(Span::current());
            Self {
                _span: Some(Box::new(span)),
            }
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use std::future::Future;

    use crate::api::error::Result;
    use crate::api::fencing::FencingToken;
    use crate::observe::events::Event;
    use crate::observe::group::Group;

    pub(crate) fn is_on() -> bool {
        false
    }

    pub(crate) fn has_spans() -> bool {
        false
    }

    pub(crate) fn tell(_: &Event<'_>) {}

    pub(crate) fn acquire<T>(
        _kind: &'static str,
        _name: &str,
        _group: Group,
        call: impl Future<Output = Result<Option<T>>>,
    ) -> impl Future<Output = Result<Option<T>>> {
        call
    }

    #[derive(Debug)]
    pub(crate) struct HoldSpan;

    impl HoldSpan {
        pub(crate) fn none() -> Self {
            Self
        }

        pub(crate) fn begin<'a>(
            _name: impl FnOnce() -> &'a str,
            _holder: impl FnOnce() -> &'a str,
            _token: impl FnOnce() -> Option<FencingToken>,
        ) -> Self {
            Self
        }
    }
}
