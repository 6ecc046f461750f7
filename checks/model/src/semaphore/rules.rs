//! The size of a model, and the rules that protect the permits of a semaphore, each with a switch.
//!
//! Invariant: with all of them on, no property fails; with one of them off, a test names the one that does.

/// Which rules of the protocol are kept.
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Permits are granted only if as many are free.
    pub all_or_none: bool,
    /// The deadline of a grant is counted from before the attempt was sent, not from its answer.
    pub grant_counts_from_sending: bool,
    /// So is the deadline of a renewal.
    pub renewal_counts_from_sending: bool,
    /// What is lost stays lost, whatever is answered later.
    pub lost_is_final: bool,
    /// A guard ends before its release is sent, not when that is answered.
    pub guard_ends_before_release: bool,
    /// A repeated attempt finds its permits taken, and takes no others.
    pub repeat_finds_its_permits: bool,
    /// A release gives back as many permits as it removes, not as many as it names.
    pub release_counts_what_it_removes: bool,
    /// The server renews only permits that are taken.
    pub renewal_is_of_taken: bool,
    /// Permits whose leases have ended are given back.
    pub ended_are_given_back: bool,
    /// An abandoned attempt is undone.
    pub attempt_is_undone: bool,
    /// The undoing follows the attempt on its lane.
    pub undo_takes_same_lane: bool,
    /// A command without an answer is repeated.
    pub unanswered_is_repeated: bool,
    /// A connection is killed before the next one is used.
    pub connection_is_killed_before_next: bool,
    /// An attempt names permits that no other attempt has.
    pub attempt_has_new_permits: bool,
    /// A release tells waiters.
    pub release_tells: bool,
    /// An attempt that reclaims permits and leaves some of them free tells waiters.
    pub reclaim_tells: bool,
    /// A waiter that leaves the queue tells the others.
    pub leaving_tells: bool,
    /// A grant from the queue that leaves permits free tells the next.
    pub rest_is_told: bool,
    /// A message that comes during an attempt leads to another one.
    pub message_during_attempt_counts: bool,
    /// A waiter asks again after it has subscribed.
    pub asks_after_subscribing: bool,
    /// A waiter needs no message: it has a timer.
    pub waits_have_timers: bool,
    /// Free permits of a fair semaphore go to the head of its queue.
    pub free_permits_go_to_head: bool,
    /// A waiter that no longer asks loses its place.
    pub places_end: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        all_or_none: true,
        grant_counts_from_sending: true,
        renewal_counts_from_sending: true,
        lost_is_final: true,
        guard_ends_before_release: true,
        repeat_finds_its_permits: true,
        release_counts_what_it_removes: true,
        renewal_is_of_taken: true,
        ended_are_given_back: true,
        attempt_is_undone: true,
        undo_takes_same_lane: true,
        unanswered_is_repeated: true,
        connection_is_killed_before_next: true,
        attempt_has_new_permits: true,
        release_tells: true,
        reclaim_tells: true,
        leaving_tells: true,
        rest_is_told: true,
        message_during_attempt_counts: true,
        asks_after_subscribing: true,
        waits_have_timers: true,
        free_permits_go_to_head: true,
        places_end: true,
    };
}

/// How large a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many permits there are.
    pub total: i8,
    /// How many each client wants.
    pub sizes: &'static [i8],
    /// How many calls begin in all.
    pub calls: u8,
    /// How many faults happen in all.
    pub faults: u8,
    /// How long a lease is, in ticks.
    pub lease: u8,
    /// For how long a place is kept, in ticks.
    pub heartbeat: u8,
    /// Whether free permits go to waiters in their order.
    pub is_fair: bool,
    /// Whether connections cannot be killed, so that commands may arrive late.
    pub is_late: bool,
    /// Calls have no end, and are not abandoned: for what may last for ever.
    pub is_endless: bool,
}

impl Bounds {
    /// Two permits; one client wants one of them, the other both.
    pub const SMALL: Self = Self {
        total: 2,
        sizes: &[1, 2],
        calls: 3,
        faults: 0,
        lease: 2,
        heartbeat: 2,
        is_fair: false,
        is_late: false,
        is_endless: false,
    };

    pub(crate) fn wants(&self, client: u8) -> i8 {
        self.sizes[usize::from(client)]
    }
}
