//! The rules that protect a read-write lock, each with a switch.
//!
//! Invariant: with all of them on, no property fails; with one of them off, a test names the one that does.

/// Which rules of the protocol are kept.
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// A writer keeps readers out.
    pub writer_keeps_readers_out: bool,
    /// Readers keep a writer out.
    pub readers_keep_writer_out: bool,
    /// The deadline of a grant is counted from before the attempt was sent, not from its answer.
    pub grant_counts_from_sending: bool,
    /// A writer ends before its downgrade is sent, not when that is answered.
    pub writer_ends_before_downgrade: bool,
    /// A downgrade is one script, not a release and an attempt to read.
    pub downgrade_is_one_step: bool,
    /// The lock lives as long as the longest of its holds, not as the last one that came.
    pub longest_lease_counts: bool,
    /// Each reader has a lease of its own, beside the lease of the lock.
    pub reader_has_own_lease: bool,
    /// Which its renewals lengthen.
    pub renewal_lengthens_own_lease: bool,
    /// A reader that leaves takes its own hold along, not the lock.
    pub leaving_reader_leaves_the_others: bool,
    /// Readers whose own leases are over keep no writer out.
    pub dead_readers_keep_nobody_out: bool,
    /// An abandoned attempt is undone.
    pub attempt_is_undone: bool,
    /// The server ends a hold only for its holder.
    pub release_checks_holder: bool,
    /// New readers let a writer that waits go first.
    pub writer_goes_first: bool,
    /// After a writer those readers go first that waited before, and the lock is kept for them for a moment.
    pub readers_that_waited_go_first: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        writer_keeps_readers_out: true,
        readers_keep_writer_out: true,
        grant_counts_from_sending: true,
        writer_ends_before_downgrade: true,
        downgrade_is_one_step: true,
        longest_lease_counts: true,
        reader_has_own_lease: true,
        renewal_lengthens_own_lease: true,
        leaving_reader_leaves_the_others: true,
        dead_readers_keep_nobody_out: true,
        attempt_is_undone: true,
        release_checks_holder: true,
        writer_goes_first: true,
        readers_that_waited_go_first: true,
    };
}
