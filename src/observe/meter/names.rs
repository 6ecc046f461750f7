//! The metrics, and the series of each count.

use metrics::{Key, Recorder, Unit};

use crate::observe::counts::{
    BACKGROUND_FAILURES, EVENTS_DROPPED, GRANTS, LANES, LOSSES, RECONNECTS, REFUSALS, RENEWALS,
    SCRIPT_ERRORS, WAITS, WAYS,
};
use crate::observe::fact::KINDS;

/// A name, and what it means.
pub(super) struct Metric(&'static str, &'static str);

pub(super) const CALLS: Metric = Metric(
    "lockset_calls_total",
    "Calls that asked for a lock or permits",
);
const GRANTED: Metric = Metric("lockset_grants_total", "Locks and permits that calls got");
const REFUSED: Metric = Metric(
    "lockset_refusals_total",
    "Calls that got no lock, because others held it",
);
const WAITED: Metric = Metric("lockset_waits_total", "Calls that had to wait");
const LOST: Metric = Metric("lockset_lost_total", "Holds that were lost");
const RENEWED: Metric = Metric("lockset_renewals_total", "Renewals of holds");
const RECONNECTED: Metric = Metric(
    "lockset_reconnects_total",
    "Connections made anew after they had broken",
);
const FAILED: Metric = Metric(
    "lockset_background_failures_total",
    "Releases and cancellations in the background that were refused or given up",
);
const SCRIPTS_FAILED: Metric = Metric(
    "lockset_script_errors_total",
    "Calls of scripts that ended with an error or without an answer",
);
const DROPPED: Metric = Metric(
    "lockset_events_dropped_total",
    "Events that the observer was too slow for",
);
pub(super) const HELD: Metric = Metric("lockset_held", "Guards that hold a lock");
pub(super) const WAITING: Metric = Metric("lockset_waiting", "Calls that wait for a lock");
pub(super) const ACQUIRE: Metric = Metric(
    "lockset_acquire_seconds",
    "How long calls took to ask for a lock",
);
pub(super) const HOLD: Metric = Metric("lockset_hold_seconds", "How long guards held their locks");
pub(super) const ROUND_TRIP: Metric = Metric(
    "lockset_round_trip_seconds",
    "From a call of a script, or of what does the same, to its reply",
);
pub(super) const RENEWAL_MARGIN: Metric = Metric(
    "lockset_renewal_margin_seconds",
    "What was left of a lease when its renewal was confirmed",
);

/// Says what each metric is.
pub(super) fn describe_all(recorder: &dyn Recorder) {
    for Metric(name, help) in [
        CALLS,
        GRANTED,
        REFUSED,
        WAITED,
        LOST,
        RENEWED,
        RECONNECTED,
        FAILED,
        SCRIPTS_FAILED,
        DROPPED,
    ] {
        recorder.describe_counter(name.into(), Some(Unit::Count), help.into());
    }
    for Metric(name, help) in [HELD, WAITING] {
        recorder.describe_gauge(name.into(), Some(Unit::Count), help.into());
    }
    for Metric(name, help) in [ACQUIRE, HOLD, ROUND_TRIP, RENEWAL_MARGIN] {
        recorder.describe_histogram(name.into(), Some(Unit::Seconds), help.into());
    }
}

/// In the order of [`GrantedBy`](crate::observe::fact::GrantedBy).
const PATHS: [&str; WAYS] = ["server", "handover", "memory", "reentry"];

/// In the order of [`CallOutcome`](crate::observe::fact::CallOutcome).
pub(super) const OUTCOMES: [&str; 4] = ["granted", "refused", "error", "cancelled"];

const RENEWAL_OUTCOMES: [&str; 3] = ["in_time", "late", "failed"];

/// In the order of [`LostReason`](crate::LostReason).
const REASONS: [&str; 4] = ["expired", "revoked", "closed", "max_hold"];

pub(super) type Label = (&'static str, &'static str);

/// Returns the key of a series.
pub(super) fn key(Metric(name, _): &Metric, labels: &[Label]) -> Key {
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| metrics::Label::from_static_parts(name, value));
    Key::from_parts(*name, labels.collect::<Vec<_>>())
}

/// Returns the series of the count at this place, if it has one of its own.
pub(super) fn series(place: usize, group: Label) -> Option<(Metric, Vec<Label>)> {
    Some(match place {
        GRANTS..LOSSES => {
            let (kind, path) = (KINDS[place / WAYS], PATHS[place % WAYS]);
            (GRANTED, vec![("kind", kind), ("path", path), group])
        }
        LOSSES..REFUSALS => (LOST, vec![("reason", REASONS[place - LOSSES]), group]),
        REFUSALS => (REFUSED, vec![group]),
        WAITS => (WAITED, vec![group]),
        RENEWALS..RECONNECTS => {
            let outcome = RENEWAL_OUTCOMES[place - RENEWALS];
            (RENEWED, vec![("outcome", outcome)])
        }
        RECONNECTS..BACKGROUND_FAILURES => (RECONNECTED, vec![("lane", LANES[place - RECONNECTS])]),
        BACKGROUND_FAILURES => (FAILED, Vec::new()),
        SCRIPT_ERRORS => (SCRIPTS_FAILED, Vec::new()),
        EVENTS_DROPPED => (DROPPED, Vec::new()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::loss::LostReason;
    use crate::observe::counts::WAITS_OVER;
    use crate::observe::fact::{CallOutcome, CountedKind, GrantedBy};

    /// The places used for counting match the tables of names.
    #[test]
    fn every_place_has_its_name() {
        let kinds = [
            (CountedKind::Reentrant, "reentrant"),
            (CountedKind::Fair, "fair"),
            (CountedKind::Read, "read"),
            (CountedKind::Write, "write"),
            (CountedKind::Semaphore, "semaphore"),
            (CountedKind::Multi, "multi"),
            (CountedKind::Redlock, "redlock"),
        ];
        assert_eq!(
            kinds.map(|(kind, _)| kind.name()),
            kinds.map(|(_, name)| name)
        );
        assert_eq!(kinds.map(|(_, name)| name), KINDS);
        let outcomes = [
            CallOutcome::Granted,
            CallOutcome::Refused,
            CallOutcome::Error,
            CallOutcome::Cancelled,
        ];
        let outcomes = outcomes.map(|outcome| OUTCOMES[outcome as usize]);
        assert_eq!(outcomes, ["granted", "refused", "error", "cancelled"]);
        let paths = [
            GrantedBy::Server,
            GrantedBy::Handover,
            GrantedBy::Handoff,
            GrantedBy::Reentry,
        ];
        let paths = paths.map(|by| PATHS[by as usize]);
        assert_eq!(paths, ["server", "handover", "memory", "reentry"]);
        let reasons = [
            LostReason::Expired,
            LostReason::Revoked,
            LostReason::Closed,
            LostReason::MaxHold,
        ];
        let reasons = reasons.map(|reason| REASONS[reason as usize]);
        assert_eq!(reasons, ["expired", "revoked", "closed", "max_hold"]);
    }

    #[test]
    fn every_count_but_the_ended_waits_has_a_series() {
        let mut keys = Vec::new();
        for place in 0..crate::observe::counts::PLACES {
            let series = series(place, ("group", "x"));
            assert_eq!(series.is_none(), place == WAITS_OVER, "{place}");
            keys.extend(series.map(|(metric, labels)| key(&metric, &labels)));
        }
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "each has its own");
    }
}
