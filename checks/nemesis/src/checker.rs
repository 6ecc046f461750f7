//! Reads histories and says what must not be in them.
//!
//! Pure: times and tokens are all that it knows. Invariants: each violation it reports is real. A guard counts as held
//! only from after its grant until it was about to be released, reported its loss, or was held by a killed process, and
//! never past the last moment it vouched for. Within the time of a fault only exclusion, tokens, and that losses are
//! reported in time are checked. A fault elsewhere does not excuse a late report: a guard has a clock of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::history::{Event, Mode, Nanos, What};

mod late;
#[cfg(test)]
mod tests;

/// The process that a fault hits itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// None: it hits a server, or what is between.
    Nobody,
    /// It was killed at the beginning.
    Killed(u32),
    /// It stood still.
    Stopped(u32),
    /// The machine stood still.
    All,
}

/// One fault: its target and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harm {
    /// From when.
    pub from: Nanos,
    /// Until when, its consequences not counted.
    pub to: Nanos,
    /// Which process.
    pub hit: Hit,
}

impl Harm {
    fn has_killed(&self, process: u32) -> bool {
        self.hit == Hit::Killed(process)
    }
}

/// What is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Without a fault, a call may exceed its wait by this much.
    pub call: Nanos,
    /// The excess that is allowed during a fault.
    pub call_in_trouble: Nanos,
    /// The consequences of a fault may be felt for this long.
    pub aftermath: Nanos,
    /// A loss is reported this soon after the last moment that was vouched for.
    pub loss: Nanos,
    /// In a fair queue, a caller that arrived this much later is behind.
    pub order: Nanos,
    /// Whether the servers lose data on purpose, so that two may hold at once.
    pub loses_data: bool,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two held one lock at once.
    TwoAtOnce {
        /// Which lock.
        lock: String,
        /// Whose call held it first.
        first: (u32, u64),
        /// Whose call held it too.
        second: (u32, u64),
        /// For how long.
        time: Nanos,
    },
    /// More permits of a semaphore were held at once than there are.
    TooManyPermits {
        /// Of which semaphore.
        lock: String,
        /// How many were held.
        held: u32,
        /// How many there are.
        of: u32,
        /// Whose call held some of them last.
        last: (u32, u64),
    },
    /// A token was not larger than one that was given before its call began, or was given twice.
    TokenNotLarger {
        /// Which lock.
        lock: String,
        /// The token before.
        before: u64,
        /// The token after.
        after: u64,
    },
    /// A fair lock was granted to a caller before one that had waited longer.
    OutOfOrder {
        /// Who had waited.
        waiter: (u32, u64),
        /// Who got it.
        granted: (u32, u64),
    },
    /// A guard was not told of its loss in time, or never.
    LossTooLate {
        /// Whose.
        call: (u32, u64),
        /// How late, or for how long it was kept after its end.
        late: Nanos,
    },
    /// A guard was lost without a fault.
    LossWithoutCause {
        /// Whose.
        call: (u32, u64),
        /// What it said.
        reason: String,
    },
    /// A call failed without a fault.
    FailedWithoutCause {
        /// Whose.
        call: (u32, u64),
        /// What it said.
        error: String,
    },
    /// A call took too long, or never ended.
    CallTooLong {
        /// Whose.
        call: (u32, u64),
        /// How long, if it ended.
        took: Option<Nanos>,
    },
    /// Something was left at a server when everybody was done.
    LeftOver {
        /// Its key.
        key: String,
    },
}

impl Violation {
    /// Its kind, for a table.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TwoAtOnce { .. } => "two at once",
            Self::TooManyPermits { .. } => "too many permits",
            Self::TokenNotLarger { .. } => "token not larger",
            Self::OutOfOrder { .. } => "out of order",
            Self::LossTooLate { .. } => "loss too late",
            Self::LossWithoutCause { .. } => "loss without cause",
            Self::FailedWithoutCause { .. } => "failed without cause",
            Self::CallTooLong { .. } => "call too long",
            Self::LeftOver { .. } => "left over",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self:?}", self.kind())
    }
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many calls there were.
    pub calls: usize,
    /// How many of them were granted.
    pub grants: usize,
    /// How many guards were lost.
    pub losses: usize,
    /// How many calls failed.
    pub failures: usize,
    /// The longest that a call took, granted or not.
    pub longest_call: Nanos,
    /// Where data was lost on purpose: for how long two held at once, each time.
    pub doubles: Vec<Nanos>,
    /// The broken promises found.
    pub violations: Vec<Violation>,
}

/// One call, from its events.
#[derive(Clone, Debug)]
struct Call {
    id: (u32, u64),
    lock: String,
    is_fair: bool,
    mode: Mode,
    wait: Nanos,
    begin: Nanos,
    /// When it was granted, refused, dropped or failed.
    answered: Option<Nanos>,
    granted: Option<Nanos>,
    token: Option<u64>,
    vouched: Nanos,
    released: Option<Nanos>,
    lost: Option<(Nanos, String)>,
    failed: Option<(Nanos, String)>,
}

impl Call {
    /// Until when it certainly held the lock.
    fn end(&self, harms: &[Harm]) -> Nanos {
        let granted = self.granted.unwrap_or(0);
        let killed = harms.iter().filter(|harm| harm.has_killed(self.id.0));
        // It may have been granted after the kill was decided on.
        let killed = killed.map(|harm| harm.from.max(granted));
        let ends = [self.released, self.lost.as_ref().map(|(at, _)| *at)];
        let ends = ends.into_iter().flatten().chain(killed);
        ends.chain([self.vouched]).min().unwrap_or(granted)
    }
}

fn calls(events: &[Event]) -> Vec<Call> {
    let mut calls: BTreeMap<(u32, u64), Call> = BTreeMap::new();
    for Event {
        at,
        process,
        call,
        what,
    } in events
    {
        let id = (*process, *call);
        if let What::Begin {
            lock,
            is_fair,
            mode,
            wait,
        } = what
        {
            let call = Call {
                id,
                lock: lock.clone(),
                is_fair: *is_fair,
                mode: *mode,
                wait: *wait,
                begin: *at,
                answered: None,
                granted: None,
                token: None,
                vouched: 0,
                released: None,
                lost: None,
                failed: None,
            };
            calls.insert(id, call);
            continue;
        }
        let Some(call) = calls.get_mut(&id) else {
            continue;
        };
        match what {
            What::Granted { token } => {
                (call.answered, call.granted, call.token) = (Some(*at), Some(*at), *token);
            }
            What::Valid { until } => call.vouched = call.vouched.max(*until),
            What::Refused | What::Dropped => call.answered = Some(*at),
            What::Failed { error } => {
                call.answered.get_or_insert(*at);
                call.failed = Some((*at, error.clone()));
            }
            What::ReleaseBegin => call.released = Some(*at),
            What::Lost { reason } => call.lost = Some((*at, reason.clone())),
            What::ReleaseEnd | What::Begin { .. } => {}
        }
    }
    calls.into_values().collect()
}

/// Says what the histories of all processes show, and what is left at the servers.
#[must_use]
pub fn check(events: &[Event], harms: &[Harm], left: &[String], limits: &Limits) -> Report {
    let calls = calls(events);
    let mut report = Report {
        calls: calls.len(),
        grants: calls.iter().filter(|call| call.granted.is_some()).count(),
        losses: calls.iter().filter(|call| call.lost.is_some()).count(),
        failures: calls.iter().filter(|call| call.failed.is_some()).count(),
        ..Report::default()
    };
    let mut by_lock: HashMap<&str, Vec<&Call>> = HashMap::new();
    let last = events.iter().map(|event| event.at).max().unwrap_or(0);
    for call in &calls {
        by_lock.entry(&call.lock).or_default().push(call);
        if let Some(late) = call.late(harms, last, limits) {
            let call = call.id;
            let too_late = Violation::LossTooLate { call, late };
            report.violations.push(too_late);
        }
        check_call(call, harms, limits, &mut report);
    }
    let mut locks: Vec<_> = by_lock.into_iter().collect();
    locks.sort_unstable_by_key(|(lock, _)| *lock);
    for (lock, calls) in locks {
        let mut granted: Vec<&Call> = calls
            .iter()
            .copied()
            .filter(|call| call.granted.is_some())
            .collect();
        granted.sort_unstable_by_key(|call| call.granted);
        check_exclusion(lock, &granted, harms, limits, &mut report);
        check_permits(lock, &granted, harms, limits, &mut report);
        check_tokens(lock, &granted, &mut report);
        check_order(&calls, harms, limits, &mut report);
    }
    let left = left
        .iter()
        .map(|key| Violation::LeftOver { key: key.clone() });
    report.violations.extend(left);
    report
}

/// Whether there was harm, or its aftermath, in this time.
fn is_troubled(from: Nanos, to: Nanos, harms: &[Harm], limits: &Limits) -> bool {
    harms
        .iter()
        .any(|harm| harm.from <= to && harm.to + limits.aftermath >= from)
}

fn check_call(call: &Call, harms: &[Harm], limits: &Limits, report: &mut Report) {
    let took = call.answered.map(|answered| answered - call.begin);
    report.longest_call = report.longest_call.max(took.unwrap_or(0));
    let was_killed = harms.iter().any(|harm| harm.has_killed(call.id.0));
    let end = call.answered.unwrap_or(Nanos::MAX / 2);
    let trouble = is_troubled(call.begin, end, harms, limits);
    let limit = call.wait
        + if trouble {
            limits.call_in_trouble
        } else {
            limits.call
        };
    if took.map_or(!was_killed, |took| took > limit) {
        report.violations.push(Violation::CallTooLong {
            call: call.id,
            took,
        });
    }
    if let Some((at, error)) = &call.failed
        && !is_troubled(call.begin, *at, harms, limits)
    {
        let error = error.clone();
        report.violations.push(Violation::FailedWithoutCause {
            call: call.id,
            error,
        });
    }
    let Some((lost, reason)) = &call.lost else {
        return;
    };
    if !is_troubled(call.begin, *lost, harms, limits) {
        let reason = reason.clone();
        report.violations.push(Violation::LossWithoutCause {
            call: call.id,
            reason,
        });
    }
}

fn check_exclusion(
    lock: &str,
    granted: &[&Call],
    harms: &[Harm],
    limits: &Limits,
    report: &mut Report,
) {
    // The calls whose holds last longest: of exclusive holds, and of all.
    type Last<'a> = Option<(&'a Call, Nanos)>;
    let (mut alone, mut any): (Last<'_>, Last<'_>) = (None, None);
    let locks = granted
        .iter()
        .filter(|call| !matches!(call.mode, Mode::Permits { .. }));
    for call in locks {
        let (from, end) = (call.granted.unwrap_or(0), call.end(harms));
        if let Some((first, first_end)) = if call.mode == Mode::Shared {
            alone
        } else {
            any
        } && first_end > from
            && end > from
        {
            let time = first_end.min(end) - from;
            if limits.loses_data {
                report.doubles.push(time);
            } else {
                report.violations.push(Violation::TwoAtOnce {
                    lock: lock.to_owned(),
                    first: first.id,
                    second: call.id,
                    time,
                });
            }
        }
        let lasts = |known: Option<(&Call, Nanos)>| known.is_none_or(|(_, before)| end > before);
        if call.mode == Mode::Alone && lasts(alone) {
            alone = Some((call, end));
        }
        if lasts(any) {
            any = Some((call, end));
        }
    }
}

/// Compares the held permits with the permits of the semaphore, at each grant.
fn check_permits(
    lock: &str,
    granted: &[&Call],
    harms: &[Harm],
    limits: &Limits,
    report: &mut Report,
) {
    // The end of each hold that may last yet, and its permits.
    let mut holds: Vec<(Nanos, u32)> = Vec::new();
    for call in granted {
        let Mode::Permits { taken, of } = call.mode else {
            continue;
        };
        let (from, end) = (call.granted.unwrap_or(0), call.end(harms));
        holds.retain(|(end, _)| *end > from);
        if end <= from {
            continue;
        }
        holds.push((end, taken));
        let held: u32 = holds.iter().map(|(_, taken)| taken).sum();
        if held > of && limits.loses_data {
            let soonest = holds.iter().map(|(end, _)| *end).min();
            report.doubles.push(soonest.unwrap_or(from) - from);
        } else if held > of {
            report.violations.push(Violation::TooManyPermits {
                lock: lock.to_owned(),
                held,
                of,
                last: call.id,
            });
        }
    }
}

/// A token is larger than all that were given before its call began, and no two are the same.
fn check_tokens(lock: &str, granted: &[&Call], report: &mut Report) {
    let mut tokens: Vec<u64> = granted.iter().filter_map(|call| call.token).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).filter(|pair| pair[0] == pair[1]);
    let mut found: Vec<(u64, u64)> = twice.map(|pair| (pair[0], pair[1])).collect();
    let mut begun: Vec<&&Call> = granted.iter().filter(|call| call.token.is_some()).collect();
    begun.sort_unstable_by_key(|call| call.begin);
    let mut given = granted
        .iter()
        .filter(|call| call.token.is_some())
        .peekable();
    let mut largest = 0;
    for call in begun {
        while let Some(before) = given.next_if(|before| before.granted < Some(call.begin)) {
            largest = largest.max(before.token.unwrap_or(0));
        }
        if let Some(token) = call.token
            && token <= largest
        {
            found.push((largest, token));
        }
    }
    let violations = found
        .into_iter()
        .map(|(before, after)| Violation::TokenNotLarger {
            lock: lock.to_owned(),
            before,
            after,
        });
    report.violations.extend(violations);
}

/// Of two that wait for a fair lock, the one that came first is granted first.
fn check_order(calls: &[&Call], harms: &[Harm], limits: &Limits, report: &mut Report) {
    let mut waited: Vec<&&Call> = calls
        .iter()
        .filter(|call| call.is_fair && call.granted.is_some())
        .collect();
    waited.sort_unstable_by_key(|call| call.begin);
    for (at, first) in waited.iter().enumerate() {
        let until = first.granted.unwrap_or(0);
        let behind = waited[at + 1..]
            .iter()
            .take_while(|later| later.begin < until);
        for later in behind {
            let is_behind = later.begin >= first.begin + limits.order;
            let overtook = later.granted.unwrap_or(0) + limits.order < until;
            if is_behind && overtook && !is_troubled(first.begin, until, harms, limits) {
                report.violations.push(Violation::OutOfOrder {
                    waiter: first.id,
                    granted: later.id,
                });
            }
        }
    }
}
