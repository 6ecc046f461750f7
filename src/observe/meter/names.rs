//! The metrics, and the values of their labels.

use metrics::Unit;

use crate::api::lost::LostReason;

pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
}

const fn metric(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, unit, help }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(name, Unit::Count, help)
}

pub(super) const GRANTS: Metric =
    counter("lockset_grants_total", "Locks and permits that calls got");
pub(super) const CALLS: Metric = counter(
    "lockset_calls_total",
    "Calls that asked for a lock or permits",
);
pub(super) const REFUSALS: Metric = counter(
    "lockset_refusals_total",
    "Calls that got no lock, because others held it",
);
pub(super) const WAITS: Metric = counter("lockset_waits_total", "Calls that had to wait");
pub(super) const LOST: Metric = counter("lockset_lost_total", "Holds that were lost");
pub(super) const RENEWALS: Metric = counter("lockset_renewals_total", "Renewals of holds");
pub(super) const RECONNECTS: Metric = counter(
    "lockset_reconnects_total",
    "Connections made anew after they had broken",
);
pub(super) const BACKGROUND_FAILURES: Metric = counter(
    "lockset_background_failures_total",
    "Releases and cancellations in the background that were refused or given up",
);
pub(super) const SCRIPT_ERRORS: Metric = counter(
    "lockset_script_errors_total",
    "Calls of scripts that ended with an error or without an answer",
);
pub(super) const EVENTS_DROPPED: Metric = counter(
    "lockset_events_dropped_total",
    "Events that the observer was too slow for",
);

/// All metrics that only grow.
pub(super) const COUNTERS: [&Metric; 10] = [
    &CALLS,
    &GRANTS,
    &REFUSALS,
    &WAITS,
    &LOST,
    &RENEWALS,
    &RECONNECTS,
    &BACKGROUND_FAILURES,
    &SCRIPT_ERRORS,
    &EVENTS_DROPPED,
];

pub(super) const HELD: Metric = metric("lockset_held", Unit::Count, "Guards that hold a lock");
pub(super) const WAITING: Metric =
    metric("lockset_waiting", Unit::Count, "Calls that wait for a lock");

pub(super) const GAUGES: [&Metric; 2] = [&HELD, &WAITING];

pub(super) const ACQUIRE: Metric = metric(
    "lockset_acquire_seconds",
    Unit::Seconds,
    "How long calls took to ask for a lock",
);
pub(super) const HOLD: Metric = metric(
    "lockset_hold_seconds",
    Unit::Seconds,
    "How long guards held their locks",
);
pub(super) const ROUND_TRIP: Metric = metric(
    "lockset_round_trip_seconds",
    Unit::Seconds,
    "From a call of a script, or of what does the same, to its reply",
);
pub(super) const RENEWAL_MARGIN: Metric = metric(
    "lockset_renewal_margin_seconds",
    Unit::Seconds,
    "What was left of a lease when its renewal was confirmed",
);

pub(super) const HISTOGRAMS: [&Metric; 4] = [&ACQUIRE, &HOLD, &ROUND_TRIP, &RENEWAL_MARGIN];

/// The kinds of one server come first, because only their grants are counted.
pub(super) const KINDS: [&str; 7] = [
    "reentrant",
    "fair",
    "read",
    "write",
    "semaphore",
    "multi",
    "redlock",
];

/// In the order of [`GrantedBy`](crate::observe::totals::GrantedBy).
pub(super) const PATHS: [&str; 4] = ["server", "handover", "memory", "reentry"];

/// The outcomes of a call.
pub(super) const OUTCOMES: [&str; 4] = ["granted", "refused", "error", "cancelled"];

/// The places of the outcomes.
pub(super) const GRANTED: usize = 0;
pub(super) const REFUSED: usize = 1;
pub(super) const ERROR: usize = 2;
pub(super) const CANCELLED: usize = 3;

/// The outcomes of a renewal.
pub(super) const RENEWAL_OUTCOMES: [&str; 3] = ["in_time", "late", "failed"];

pub(super) const LANES: [&str; 4] = ["command", "renewal", "push", "confirm"];

pub(super) const REASONS: [LostReason; 4] = [
    LostReason::Expired,
    LostReason::Revoked,
    LostReason::Closed,
    LostReason::MaxHold,
];

pub(super) fn of_reason(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::Revoked => "revoked",
        LostReason::Closed => "closed",
        LostReason::MaxHold => "max_hold",
    }
}
