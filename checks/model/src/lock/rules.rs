//! The rules that protect a lock, each with a switch.
//!
//! Invariant: with all of them on, no property fails; with one of them off, a test names the one that does.

/// Which rules of the protocol are kept.
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The deadline of a grant is counted from before the attempt was sent, not from its answer.
    pub grant_counts_from_sending: bool,
    /// A renewal counts from its sending too.
    pub renewal_counts_from_sending: bool,
    /// A lock that was handed over counts from the last poll that was answered, not from the notification.
    pub handover_counts_from_poll: bool,
    /// A notification is used only for the holder id it names.
    pub notification_names_holder: bool,
    /// And only for the place that the last answer was about.
    pub notification_names_place: bool,
    /// A lost guard stays lost, even if a renewal is answered later.
    pub lost_is_final: bool,
    /// The clock of a guard goes on while its process stands still.
    pub clock_runs_while_paused: bool,
    /// A guard ends before its release is sent, not when that is answered.
    pub guard_ends_before_release: bool,
    /// An abandoned attempt is undone.
    pub attempt_is_undone: bool,
    /// On the lane that it took itself.
    pub undo_takes_same_lane: bool,
    /// Requests on a connection are executed or dead before another connection takes its place.
    pub connection_is_killed_before_next: bool,
    /// A call that lost its connection is sent again on the next one until it is answered.
    pub unanswered_is_repeated: bool,
    /// Each attempt has a holder id that was never used before.
    pub attempt_has_new_holder: bool,
    /// The server renews a lock only for its holder.
    pub renewal_checks_holder: bool,
    /// The server releases a lock only for its holder.
    pub release_checks_holder: bool,
    /// A lock without a holder goes to the head of the queue, even if another client asks first.
    pub free_lock_goes_to_head: bool,
    /// A hold has a lease.
    pub hold_has_lease: bool,
    /// A hand-off takes the next token.
    pub handoff_takes_next_token: bool,
    /// The tokens of hand-offs were set aside by the server.
    pub server_sets_tokens_aside: bool,
    /// A token is above the clock of the server, so also above those it gave before it lost its data.
    pub token_is_above_clock: bool,
    /// Hand-offs in a row have a bound.
    pub handoffs_have_bound: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        grant_counts_from_sending: true,
        renewal_counts_from_sending: true,
        handover_counts_from_poll: true,
        notification_names_holder: true,
        notification_names_place: true,
        lost_is_final: true,
        clock_runs_while_paused: true,
        guard_ends_before_release: true,
        attempt_is_undone: true,
        undo_takes_same_lane: true,
        connection_is_killed_before_next: true,
        unanswered_is_repeated: true,
        attempt_has_new_holder: true,
        renewal_checks_holder: true,
        release_checks_holder: true,
        free_lock_goes_to_head: true,
        hold_has_lease: true,
        handoff_takes_next_token: true,
        server_sets_tokens_aside: true,
        token_is_above_clock: true,
        handoffs_have_bound: true,
    };
}
