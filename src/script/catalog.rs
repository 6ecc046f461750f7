//! Every script, one row each.
//!
//! The text is put together when the crate is compiled: the shared pieces a script names, then the
//! file itself.

use super::Script;

macro_rules! script {
    ($name:literal $(, $include:literal)*) => {
        Script::new(concat!(
            $(include_str!(concat!("../../lua/includes/", $include, ".lua")), "\n",)*
            include_str!(concat!("../../lua/", $name, ".lua")),
        ))
    };
}

pub(crate) static REENTRANT_ACQUIRE: Script = script!(
    "reentrant_acquire",
    "must_be_lock",
    "counter_stays",
    "keep_token",
    "next_token"
);
pub(crate) static REENTRANT_RELEASE: Script = script!(
    "reentrant_release",
    "must_be_lock",
    "not_held",
    "grant",
    "keep",
    "lower"
);
pub(crate) static REENTRANT_INSPECT: Script =
    script!("reentrant_inspect", "must_be_lock", "exclusive_lease");
pub(crate) static REENTRANT_FORCE_UNLOCK: Script =
    script!("reentrant_force_unlock", "must_be_lock", "exclusive_lease");
pub(crate) static FAIR_ACQUIRE: Script = script!(
    "fair_acquire",
    "server_ms",
    "must_be_lock",
    "refusal",
    "fair_pop",
    "fair_mark",
    "fair_head",
    "fair_refusal",
    "fair_end",
    "fair_enqueue",
    "grant",
    "counter_stays",
    "keep_token",
    "next_token"
);
pub(crate) static FAIR_RELEASE: Script = script!(
    "fair_release",
    "server_ms",
    "must_be_lock",
    "not_held",
    "grant",
    "keep",
    "counter_stays",
    "keep_token",
    "next_token",
    "fair_pop",
    "fair_mark",
    "fair_head",
    "fair_tell",
    "fair_leave",
    "fair_lower"
);
pub(crate) static FAIR_FORCE_UNLOCK: Script = script!(
    "fair_force_unlock",
    "server_ms",
    "grant",
    "counter_stays",
    "keep_token",
    "next_token",
    "fair_pop",
    "fair_mark",
    "fair_head",
    "fair_tell",
    "must_be_lock",
    "exclusive_lease"
);
pub(crate) static FAIR_WAITERS: Script = script!("fair_waiters", "fair_mark");
pub(crate) static READ_ACQUIRE: Script = script!(
    "read_acquire",
    "server_ms",
    "must_be_lock",
    "readers_wait",
    "writers_wait",
    "writer_waits",
    "read_refusal",
    "rw_wait",
    "rw_wait_over",
    "read_begins",
    "read_timeout",
    "is_dead_reader",
    "sweep_readers",
    "read_leases",
    "grant",
    "read_grant",
    "counter_stays",
    "keep_token",
    "next_token"
);
pub(crate) static WRITE_ACQUIRE: Script = script!(
    "write_acquire",
    "server_ms",
    "must_be_lock",
    "read_timeout",
    "is_dead_reader",
    "sweep_readers",
    "readers_lease",
    "write_refusal",
    "rw_wait",
    "readers_wait",
    "writers_wait",
    "rw_wait_over",
    "grant",
    "counter_stays",
    "keep_token",
    "next_token"
);
pub(crate) static RW_RELEASE: Script = script!(
    "rw_release",
    "server_ms",
    "must_be_lock",
    "not_held",
    "read_timeout",
    "read_leases",
    "readers_lease",
    "readers_wait",
    "writers_wait",
    "rw_wait_over",
    "rw_leave",
    "write_ends",
    "rw_settle"
);
pub(crate) static RW_INSPECT: Script =
    script!("rw_inspect", "must_be_lock", "rw_mode", "read_timeout");
pub(crate) static RW_FORCE_UNLOCK: Script =
    script!("rw_force_unlock", "must_be_lock", "rw_mode", "read_timeout");
pub(crate) static MULTI_ACQUIRE: Script = script!(
    "multi_acquire",
    "error_text",
    "server_ms",
    "must_be_lock",
    "refusal",
    "grant",
    "counter_stays",
    "keep_token",
    "next_token",
    "fair_pop",
    "fair_mark",
    "fair_head",
    "fair_tell",
    "fair_refusal",
    "fair_end",
    "fair_enqueue",
    "fair_leave",
    "readers_wait",
    "writers_wait",
    "writer_waits",
    "read_refusal",
    "read_timeout",
    "is_dead_reader",
    "sweep_readers",
    "read_leases",
    "readers_lease",
    "write_refusal",
    "rw_wait",
    "rw_wait_over",
    "rw_leave",
    "read_begins",
    "read_grant"
);
pub(crate) static MULTI_RELEASE: Script = script!(
    "multi_release",
    "error_text",
    "server_ms",
    "must_be_lock",
    "not_held",
    "grant",
    "keep",
    "lower",
    "counter_stays",
    "keep_token",
    "next_token",
    "fair_pop",
    "fair_mark",
    "fair_head",
    "fair_tell",
    "fair_leave",
    "fair_lower",
    "read_timeout",
    "read_leases",
    "readers_lease",
    "readers_wait",
    "writers_wait",
    "rw_wait_over",
    "rw_leave",
    "write_ends",
    "rw_settle"
);
pub(crate) static RAISE_TOKEN: Script = script!("raise_token", "counter_stays", "keep_token");
pub(crate) static RENEW: Script = script!("renew");
pub(crate) static RW_RENEW: Script = script!(
    "rw_renew",
    "read_timeout",
    "read_leases",
    "is_dead_reader",
    "sweep_readers"
);

/// All of them by file name.
pub(crate) static ALL: [(&str, &Script); 18] = [
    ("reentrant_acquire", &REENTRANT_ACQUIRE),
    ("reentrant_release", &REENTRANT_RELEASE),
    ("reentrant_inspect", &REENTRANT_INSPECT),
    ("reentrant_force_unlock", &REENTRANT_FORCE_UNLOCK),
    ("fair_acquire", &FAIR_ACQUIRE),
    ("fair_release", &FAIR_RELEASE),
    ("fair_force_unlock", &FAIR_FORCE_UNLOCK),
    ("fair_waiters", &FAIR_WAITERS),
    ("read_acquire", &READ_ACQUIRE),
    ("write_acquire", &WRITE_ACQUIRE),
    ("rw_release", &RW_RELEASE),
    ("rw_inspect", &RW_INSPECT),
    ("rw_force_unlock", &RW_FORCE_UNLOCK),
    ("multi_acquire", &MULTI_ACQUIRE),
    ("multi_release", &MULTI_RELEASE),
    ("raise_token", &RAISE_TOKEN),
    ("renew", &RENEW),
    ("rw_renew", &RW_RENEW),
];
