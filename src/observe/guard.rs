//! What is noted of a guard, from its grant to its end: a span, and the time that it had its lock.

use std::sync::Arc;
use std::time::Duration;

use crate::api::fencing::FencingToken;
use crate::engine::clock::{Clock, Tick};
use crate::observe::counts::{CountedKind, Fact};
use crate::observe::group::Group;
use crate::observe::observer::Observed;
#[cfg(feature = "tracing")]
use crate::observe::trace;

/// The time that a guard holds a lock, as a span of `tracing`. It follows from the span of its call.
#[derive(Debug, Default)]
pub(crate) struct HoldSpan {
    /// Boxed, because there is mostly none, and guards are moved often.
    #[cfg(feature = "tracing")]
    _span: Option<Box<tracing::Span>>,
}

impl HoldSpan {
    #[inline]
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables))]
    pub(crate) fn begin<'a>(
        name: impl FnOnce() -> &'a str,
        holder: impl FnOnce() -> &'a str,
        token: impl FnOnce() -> Option<FencingToken>,
    ) -> Self {
        #[cfg(feature = "tracing")]
        if trace::has_spans() {
            let _span = trace::hold(name(), holder(), token());
            return Self { _span };
        }
        Self::default()
    }
}

/// The labels for counting the end of a guard that a call has made, if it is timed. The owner of the guard ends it
/// once. It is small, because guards are moved often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTimer {
    pub(crate) kind: CountedKind,
    pub(crate) group: Group,
}

impl HoldTimer {
    /// Notes the end of a guard that had its lock for this long.
    pub(crate) fn ends(self, observed: &Observed, held: Duration) {
        let Self { kind, group } = self;
        observed.note(Fact::GuardEnded { kind, group, held });
    }
}

/// Notes the end of a guard when this is dropped. Empty for a guard that no call has made.
#[derive(Debug, Default)]
pub(crate) struct GuardTimer(Option<(Arc<Observed>, HoldTimer, Tick, Clock)>);

impl GuardTimer {
    /// The timer of a guard that a call has made.
    pub(crate) fn of(
        timed: Option<(HoldTimer, Tick)>,
        observed: &Arc<Observed>,
        clock: Clock,
    ) -> Self {
        Self(timed.map(|(timer, since)| (Arc::clone(observed), timer, since, clock)))
    }
}

impl Drop for GuardTimer {
    fn drop(&mut self) {
        if let Some((observed, timer, since, clock)) = &self.0 {
            timer.ends(observed, since.until(clock.now()));
        }
    }
}
