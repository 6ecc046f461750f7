//! The semaphores that are explored: each with the rule that is off and the property that then fails.

use super::{Bounds, Rules, Semaphore};

const PERMITS: Bounds = Bounds::SMALL;
const FAIR_PERMITS: Bounds = Bounds {
    is_fair: true,
    ..PERMITS
};
const ONE_FAULT: Bounds = Bounds {
    calls: 2,
    faults: 1,
    ..PERMITS
};
const LATE: Bounds = Bounds {
    is_late: true,
    ..ONE_FAULT
};
const THREE: Bounds = Bounds {
    sizes: &[1, 1, 2],
    ..PERMITS
};

/// Semaphores, all rules kept.
pub const CASES: [(&str, Bounds); 5] = [
    ("permits, 3 calls", PERMITS),
    ("permits, 2 calls, 1 fault", ONE_FAULT),
    ("fair permits, 3 calls", FAIR_PERMITS),
    (
        "fair permits, 2 calls, 1 fault",
        Bounds {
            is_fair: true,
            ..ONE_FAULT
        },
    ),
    ("permits, without the right to kill connections", LATE),
];

/// The same, larger.
pub const LARGE: [(&str, Bounds); 2] = [
    (
        "permits, 3 calls, 2 faults",
        Bounds {
            faults: 2,
            ..PERMITS
        },
    ),
    (
        "fair permits, 3 clients, 3 calls",
        Bounds {
            is_fair: true,
            ..THREE
        },
    ),
];

/// A rule of the semaphore that is off.
#[derive(Clone, Copy, Debug)]
pub struct Off {
    /// Its name.
    pub rule: &'static str,
    /// Turns the rule off.
    pub turn: fn(&mut Rules),
    /// Where.
    pub bounds: Bounds,
    /// What fails.
    pub fails: &'static str,
}

macro_rules! off {
    ($($rule:ident in $bounds:expr => $fails:ident),* $(,)?) => {
        [$(Off {
            rule: stringify!($rule),
            turn: |rules| rules.$rule = false,
            bounds: $bounds,
            fails: super::$fails,
        }),*]
    };
}

/// Every rule that a property of states shows.
pub const OFF: [Off; 20] = off![
    all_or_none in PERMITS => NO_OVER_ISSUE,
    grant_counts_from_sending in PERMITS => NO_OVER_ISSUE,
    renewal_counts_from_sending in PERMITS => NO_OVER_ISSUE,
    lost_is_final in PERMITS => FINAL,
    guard_ends_before_release in PERMITS => NO_OVER_ISSUE,
    repeat_finds_its_permits in ONE_FAULT => COUNT,
    release_counts_what_it_removes in PERMITS => NO_OVER_ISSUE,
    renewal_is_of_taken in PERMITS => COUNT,
    attempt_is_undone in PERMITS => NO_LEAK,
    undo_takes_same_lane in PERMITS => NO_LEAK,
    unanswered_is_repeated in ONE_FAULT => NO_LEAK,
    connection_is_killed_before_next in ONE_FAULT => NO_LEAK,
    attempt_has_new_permits in LATE => HOLDER,
    release_tells in PERMITS => AWAKE,
    reclaim_tells in THREE => AWAKE,
    leaving_tells in Bounds { sizes: &[1, 2, 1], ..FAIR_PERMITS } => AWAKE,
    rest_is_told in Bounds { sizes: &[2, 1, 1], ..FAIR_PERMITS } => AWAKE,
    message_during_attempt_counts in PERMITS => AWAKE,
    asks_after_subscribing in PERMITS => AWAKE,
    free_permits_go_to_head in FAIR_PERMITS => ORDER,
];

impl Off {
    /// The model without the rule.
    #[must_use]
    pub fn model(&self) -> Semaphore {
        let mut model = Semaphore::new(self.bounds);
        (self.turn)(&mut model.rules);
        model
    }
}
