//! The models that are explored, by name: each with the rule that is off and the property that then fails.

use crate::lock::{self, Bounds, Faults, Lock};
use crate::redlock::{self, Redlock};
use crate::rwlock::{self, RwLock};

const SMALL: Bounds = Bounds::SMALL;
const QUIET: Bounds = Bounds { faults: 0, ..SMALL };
const TWO: Bounds = Bounds {
    attempts: 2,
    ..QUIET
};
const FAIR: Bounds = Bounds {
    is_fair: true,
    ..TWO
};
const WITHOUT_DATA: Bounds = Bounds {
    attempts: 2,
    kinds: Faults {
        data_loss: true,
        ..Faults::WITHOUT_DATA_LOSS
    },
    ..SMALL
};
const LATE: Bounds = Bounds {
    kinds: Faults {
        late: true,
        ..Faults::WITHOUT_DATA_LOSS
    },
    ..SMALL
};

/// One lock on one server, all rules kept: what is explored in the tests.
pub const LOCKS: [(&str, Bounds); 7] = [
    ("reentrant, 3 attempts, 1 fault", SMALL),
    (
        "reentrant, 2 attempts, 2 faults",
        Bounds { faults: 2, ..TWO },
    ),
    (
        "hand-offs, 3 attempts",
        Bounds {
            handoffs: 1,
            ..QUIET
        },
    ),
    (
        "hand-offs, 2 attempts, 1 fault",
        Bounds {
            handoffs: 2,
            faults: 1,
            ..TWO
        },
    ),
    ("fair, 2 attempts, 1 fault", Bounds { faults: 1, ..FAIR }),
    ("a restart without data", WITHOUT_DATA),
    (
        "without the right to kill connections",
        Bounds {
            attempts: 2,
            ..LATE
        },
    ),
];

/// The same, larger.
pub const LARGE_LOCKS: [(&str, Bounds); 5] = [
    (
        "3 clients, 3 attempts",
        Bounds {
            clients: 3,
            ..QUIET
        },
    ),
    (
        "reentrant, lease of 3 ticks, 3 attempts, 1 fault",
        Bounds { lease: 3, ..SMALL },
    ),
    (
        "reentrant, 3 attempts, 2 faults",
        Bounds { faults: 2, ..SMALL },
    ),
    (
        "fair, 3 attempts, 1 fault",
        Bounds {
            faults: 1,
            attempts: 3,
            ..FAIR
        },
    ),
    (
        "fair, 3 clients, 3 attempts",
        Bounds {
            clients: 3,
            attempts: 3,
            ..FAIR
        },
    ),
];

/// A rule that is off.
#[derive(Clone, Copy, Debug)]
pub struct Off {
    /// Its name.
    pub rule: &'static str,
    /// Turns the rule off.
    pub turn: fn(&mut lock::Rules),
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
            fails: lock::$fails,
        }),*]
    };
}

/// Every rule that a property of states shows.
pub const OFF: [Off; 17] = off![
    grant_counts_from_sending in TWO => EXCLUSION,
    renewal_counts_from_sending in TWO => EXCLUSION,
    handover_counts_from_poll in Bounds { attempts: 3, ..FAIR } => EXCLUSION,
    notification_names_holder in Bounds { attempts: 3, ..FAIR } => HOLDER,
    notification_names_place in Bounds { attempts: 3, faults: 1, ..FAIR } => HOLDER,
    lost_is_final in TWO => FINAL,
    clock_runs_while_paused in TWO => EXCLUSION,
    guard_ends_before_release in TWO => EXCLUSION,
    attempt_is_undone in TWO => NO_LEAK,
    undo_takes_same_lane in TWO => NO_LEAK,
    connection_is_killed_before_next in SMALL => NO_LEAK,
    unanswered_is_repeated in SMALL => NO_LEAK,
    attempt_has_new_holder in LATE => EXCLUSION,
    renewal_checks_holder in WITHOUT_DATA => GONE,
    release_checks_holder in SMALL => EXCLUSION,
    free_lock_goes_to_head in Bounds { attempts: 3, ..FAIR } => ORDER,
    token_is_above_clock in WITHOUT_DATA => TOKENS,
];

/// Rules for tokens that are granted without the server.
pub const OFF_WITH_HANDOFFS: [Off; 2] = off![
    handoff_takes_next_token in Bounds { handoffs: 1, ..TWO } => TOKENS,
    server_sets_tokens_aside in Bounds { handoffs: 1, ..TWO } => TOKENS,
];

impl Off {
    /// The model without the rule.
    #[must_use]
    pub fn model(&self) -> Lock {
        let mut model = Lock::new(self.bounds);
        (self.turn)(&mut model.rules);
        model
    }
}

/// Redlocks, all rules kept.
#[must_use]
pub fn redlocks() -> [(&'static str, Redlock); 4] {
    let renewed = |rounds, restarts| Redlock {
        is_renewed: true,
        ..Redlock::new(rounds, restarts)
    };
    [
        ("Redlock, 2 rounds, 2 restarts", Redlock::new(2, 2)),
        ("Redlock, 3 rounds, 1 restart", Redlock::new(3, 1)),
        ("Redlock, 4 rounds", Redlock::new(4, 0)),
        ("Redlock, renewed, 2 rounds", renewed(2, 0)),
    ]
}

/// The same, larger.
#[must_use]
pub fn large_redlocks() -> [(&'static str, Redlock); 2] {
    let renewed = Redlock {
        is_renewed: true,
        ..Redlock::new(2, 1)
    };
    let longer = Redlock {
        lease: 3,
        ..Redlock::new(3, 1)
    };
    [
        ("Redlock, renewed, 2 rounds, 1 restart", renewed),
        ("Redlock, lease of 3 ticks, 3 rounds, 1 restart", longer),
    ]
}

/// A rule of the Redlock that is off.
#[derive(Clone, Copy, Debug)]
pub struct RedlockOff {
    /// Its name.
    pub rule: &'static str,
    /// Turns the rule off.
    pub turn: fn(&mut redlock::Rules),
    /// With how many restarts.
    pub restarts: u8,
    /// What fails.
    pub fails: &'static str,
}

macro_rules! redlock_off {
    ($($rule:ident with $restarts:literal => $fails:ident),* $(,)?) => {
        [$(RedlockOff {
            rule: stringify!($rule),
            turn: |rules| rules.$rule = false,
            restarts: $restarts,
            fails: lock::$fails,
        }),*]
    };
}

/// Every rule that a property of states shows, with two rounds.
pub const REDLOCK_OFF: [RedlockOff; 5] = redlock_off![
    restarted_server_has_no_vote with 1 => EXCLUSION,
    majority_counts with 0 => EXCLUSION,
    round_counts_from_sending with 0 => EXCLUSION,
    renewal_checks_holder with 0 => EXCLUSION,
    lost_is_final with 0 => FINAL,
];

impl RedlockOff {
    /// The model without the rule.
    #[must_use]
    pub fn model(&self) -> Redlock {
        let mut model = Redlock {
            is_renewed: true,
            ..Redlock::new(2, self.restarts)
        };
        (self.turn)(&mut model.rules);
        model
    }
}

const READS_AND_WRITES: rwlock::Bounds = rwlock::Bounds::SMALL;

/// Read-write locks, all rules kept.
pub const RW_LOCKS: [(&str, rwlock::Bounds); 2] = [
    (
        "read-write, 2 attempts, 1 fault",
        rwlock::Bounds {
            faults: 1,
            ..READS_AND_WRITES
        },
    ),
    (
        "read-write, leases of 2 and 3 ticks, 2 attempts, 1 fault",
        rwlock::Bounds {
            faults: 1,
            leases: [2, 3, 2],
            ..READS_AND_WRITES
        },
    ),
];

/// The same, larger.
pub const LARGE_RW_LOCKS: [(&str, rwlock::Bounds); 2] = [
    (
        "read-write, 3 attempts",
        rwlock::Bounds {
            attempts: 3,
            ..READS_AND_WRITES
        },
    ),
    (
        "read-write, 3 clients, 3 attempts, leases of 2 and 3 ticks",
        rwlock::Bounds {
            clients: 3,
            attempts: 3,
            leases: [2, 3, 2],
            ..READS_AND_WRITES
        },
    ),
];

/// A rule of the read-write lock that is off.
#[derive(Clone, Copy, Debug)]
pub struct RwOff {
    /// Its name.
    pub rule: &'static str,
    /// Turns the rule off.
    pub turn: fn(&mut rwlock::Rules),
    /// Where.
    pub bounds: rwlock::Bounds,
    /// What fails.
    pub fails: &'static str,
}

macro_rules! rw_off {
    ($($rule:ident in $bounds:expr => $fails:ident),* $(,)?) => {
        [$(RwOff {
            rule: stringify!($rule),
            turn: |rules| rules.$rule = false,
            bounds: $bounds,
            fails: rwlock::$fails,
        }),*]
    };
}

const DEAD: rwlock::Bounds = rwlock::Bounds {
    faults: 1,
    ..READS_AND_WRITES
};
const UNEQUAL: rwlock::Bounds = rwlock::Bounds {
    leases: [2, 3, 2],
    ..READS_AND_WRITES
};

/// Every rule that a property of states shows.
pub const RW_OFF: [RwOff; 12] = rw_off![
    writer_keeps_readers_out in READS_AND_WRITES => EXCLUSION,
    readers_keep_writer_out in READS_AND_WRITES => EXCLUSION,
    grant_counts_from_sending in READS_AND_WRITES => EXCLUSION,
    writer_ends_before_downgrade in READS_AND_WRITES => EXCLUSION,
    downgrade_is_one_step in READS_AND_WRITES => EXCLUSION,
    longest_lease_counts in UNEQUAL => HOLDER,
    reader_has_own_lease in DEAD => DEAD_ARE_GONE,
    renewal_lengthens_own_lease in READS_AND_WRITES => HOLDER,
    leaving_reader_leaves_the_others in READS_AND_WRITES => HOLDER,
    dead_readers_keep_nobody_out in rwlock::Bounds { attempts: 3, ..UNEQUAL } => ALIVE,
    attempt_is_undone in READS_AND_WRITES => NO_LEAK,
    release_checks_holder in READS_AND_WRITES => HOLDER,
];

impl RwOff {
    /// The model without the rule.
    #[must_use]
    pub fn model(&self) -> RwLock {
        let mut model = RwLock::new(self.bounds);
        (self.turn)(&mut model.rules);
        model
    }
}
