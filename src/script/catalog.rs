//! The catalog of all scripts, and the text that is sent for each.
//!
//! A Lua file names the pieces that it uses on separate lines (`-- uses: grant, keep_token`), and so does a piece.
//! The text of a script is the file with each piece inserted once, where it is first named, after the pieces that it
//! uses itself. Code before that line therefore does not pay for the definition of the piece. The contract test
//! checks that every name is a piece, that no pieces use each other in a circle, and that a file names exactly the
//! pieces that it calls.

use std::sync::OnceLock;

/// One Lua file, and the text made from it.
#[derive(Debug)]
pub(crate) struct Script {
    file: &'static str,
    text: OnceLock<String>,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(file: &'static str) -> Self {
        Self {
            file,
            text: OnceLock::new(),
            sha: OnceLock::new(),
        }
    }

    /// The file with the pieces that it uses.
    pub(crate) fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let mut text = String::new();
            append(self.file, &mut Vec::new(), &mut text);
            text
        })
    }

    pub(crate) fn sha(&self) -> &str {
        self.sha
            .get_or_init(|| redis::Script::new(self.text()).get_hash().to_owned())
    }
}

/// Appends `file`, with the missing pieces inserted before each line that names them.
fn append(file: &str, known: &mut Vec<&'static str>, text: &mut String) {
    for line in file.split_inclusive('\n') {
        for used in uses(line) {
            let piece = PIECES.iter().find(|(name, _)| *name == used);
            if let Some((name, piece)) = piece
                && !known.contains(name)
            {
                known.push(name);
                append(piece, known, text);
            }
        }
        text.push_str(line);
    }
}

/// The pieces that a file names.
pub(crate) fn uses(file: &str) -> impl Iterator<Item = &str> {
    let lines = file
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("-- uses: "));
    lines.flat_map(|line| line.split(", "))
}

macro_rules! pieces {
    ($($name:ident)*) => {
        &[$((
            stringify!($name),
            include_str!(concat!("../../lua/includes/", stringify!($name), ".lua")),
        )),*]
    };
}

/// The pieces that scripts share, by name.
pub(crate) static PIECES: &[(&str, &str)] = pieces! {
    count_at
    counter_of
    counter_stays
    end_round
    error_text
    exclusive_lease
    fair_dequeue
    fair_enqueue
    fair_expire_queue
    fair_handover
    fair_head
    fair_leave
    fair_refusal
    fair_release_hold
    fair_wake
    grant
    is_dead_reader
    is_on_its_way
    is_refused
    keep_token
    lengthen
    mark_place
    must_be_lock
    next_token
    not_held
    open_latch
    read_begins
    read_grant
    read_lease
    read_place
    read_refusal
    read_timeout
    readers_lease
    readers_wait
    refusal
    release_hold
    rw_leave
    rw_mode
    rw_release_hold
    rw_wait
    rw_wait_over
    semaphore_reclaim
    server_ms
    spoilt_counter
    sweep_readers
    tell
    write_ends
    write_refusal
    writer_first
    writers_wait
};

macro_rules! scripts {
    ($($script:ident $name:ident)*) => {
        $(pub(crate) static $script: Script = Script::new(
            include_str!(concat!("../../lua/", stringify!($name), ".lua")),
        );)*

        /// All scripts, by name.
        pub(crate) static ALL: &[(&str, &Script)] = &[$((stringify!($name), &$script)),*];
    };
}

scripts! {
    REENTRANT_ACQUIRE reentrant_acquire
    REENTRANT_RELEASE reentrant_release
    REENTRANT_INSPECT reentrant_inspect
    REENTRANT_FORCE_UNLOCK reentrant_force_unlock
    FAIR_ACQUIRE fair_acquire
    FAIR_RELEASE fair_release
    FAIR_FORCE_UNLOCK fair_force_unlock
    FAIR_HEARTBEAT fair_heartbeat
    FAIR_PLACE fair_place
    FAIR_WAITERS fair_waiters
    READ_ACQUIRE read_acquire
    WRITE_ACQUIRE write_acquire
    RW_DOWNGRADE rw_downgrade
    RW_RELEASE rw_release
    RW_INSPECT rw_inspect
    RW_FORCE_UNLOCK rw_force_unlock
    MULTI_ACQUIRE multi_acquire
    MULTI_RELEASE multi_release
    RAISE_TOKEN raise_token
    TAKE_TOKEN take_token
    PURGE_TOKEN purge_token
    PURGE_SEMAPHORE purge_semaphore
    RENEW renew
    KEEP keep
    RW_RENEW rw_renew
    RW_KEEP rw_keep
    SEMAPHORE_ACQUIRE semaphore_acquire
    SEMAPHORE_RELEASE semaphore_release
    SEMAPHORE_RENEW semaphore_renew
    SEMAPHORE_INSPECT semaphore_inspect
    SEMAPHORE_RESIZE semaphore_resize
    RECALL recall
    LATCH_INIT latch_init
    LATCH_COUNT_DOWN latch_count_down
    LATCH_COUNT latch_count
    LATCH_DELETE latch_delete
    PLAIN_ACQUIRE plain_acquire
    PLAIN_RELEASE plain_release
    PLAIN_GIVE plain_give
    PLAIN_INIT plain_init
    PLAIN_AVAILABLE plain_available
    LEADER_PROCLAIM leader_proclaim
    LEADER_RESIGN leader_resign
    LEADER_READ leader_read
    BARRIER_ARRIVE barrier_arrive
    BARRIER_LEAVE barrier_leave
}
