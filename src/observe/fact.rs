//! What a client notes about itself, each fact once: with [`Observed::note`](super::observer::Observed::note).

use std::time::Duration;

use crate::observe::events::Event;
use crate::observe::group::Group;

/// A fact that is counted, told to the observer, or both. It is noted while no mutex is held, because it leads to code
/// of the program: a subscriber of `tracing`, a recorder of metrics.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "times are for metrics alone")
)]
pub(crate) enum Fact<'a> {
    /// A call got a lock, which is of a kind of one server.
    Granted {
        kind: CountedKind,
        by: GrantedBy,
        group: Group,
    },
    /// A call that asked for a lock ended. It took `took`, which is known if somebody is interested.
    CallEnded {
        kind: CountedKind,
        group: Group,
        outcome: CallOutcome,
        took: Option<Duration>,
    },
    /// A guard that a call got ended its part in the hold.
    GuardEnded {
        kind: CountedKind,
        group: Group,
        held: Duration,
    },
    /// A call has to wait.
    WaitBegan(Group),
    WaitEnded(Group),
    /// The server confirmed a renewal when this much of a lease was left.
    Renewed {
        lock: &'a str,
        left: Duration,
        lease: Duration,
    },
    /// A renewal got no answer, or an error.
    RenewalFailed,
    /// A reply was timed that came over the lane at this place.
    Answered {
        lane: usize,
        took: Duration,
    },
    /// A call of a script ended with an error or without an answer.
    ScriptFailed,
    /// The observer was too slow for an event.
    EventDropped,
    /// No caller learns of it, so it is also an event. A loss counts in the group of its lock.
    Event(Event<'a>, Group),
}

impl<'a> Fact<'a> {
    /// The fact of an event that counts in no group.
    pub(crate) fn event(event: Event<'a>) -> Self {
        Self::Event(event, Group::NONE)
    }

    /// Returns the event to tell, if the fact is one.
    pub(crate) fn into_event(self) -> Option<Event<'a>> {
        match self {
            Self::Event(event, _) => Some(event),
            Self::Renewed { lock, left, lease } if is_late(left, lease) => {
                let lock = lock.into();
                Some(Event::RenewalLate { lock, left, lease })
            }
            _ => None,
        }
    }
}

/// Whether a renewal left less than a third of its lease.
pub(crate) fn is_late(left: Duration, lease: Duration) -> bool {
    left < lease / 3
}

/// How a call got its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedBy {
    Server,
    Handover,
    Handoff,
    Reentry,
}

/// How a call for a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Granted,
    Refused,
    Error,
    Cancelled,
}

/// The kinds that are counted. The kinds of one server come first, because their grants are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedKind {
    Reentrant,
    Fair,
    Read,
    Write,
    Semaphore,
    Multi,
    Redlock,
}

/// The names of the kinds, in their order.
pub(crate) const KINDS: [&str; 7] = [
    "reentrant",
    "fair",
    "read",
    "write",
    "semaphore",
    "multi",
    "redlock",
];

impl CountedKind {
    /// The name in spans, labels of metrics, and `Debug`.
    pub(crate) fn name(self) -> &'static str {
        KINDS[self as usize]
    }
}
