//! The scripts and the one way to run them.
//!
//! A script is sent by its SHA. A server that does not know it (`NOSCRIPT`, after a restart, a failover or a flush)
//! is sent the text of that one script, once. Invariant: every script may run twice with the same arguments. A call
//! with an unknown outcome is therefore repeated unchanged until its deadline, and the answer says whether it was
//! repeated.
//!
//! ```text
//! catalog.rs      the scripts with the pieces they use; call.rs: one script with its keys and arguments, and its answer
//! run.rs          EVALSHA, then EVAL after NOSCRIPT; repeats
//! submit.rs       commands that a connection takes over: acquires, and releases of several holds in one write
//! failure.rs      the reason of a missing reply, and the right that a user lacks
//! native.rs       plain commands in place of a script; payload.rs: the payload of RESTORE
//! reply.rs        typed replies: the only place that knows status codes
//! ```

mod call;
pub(crate) mod catalog;
#[cfg(test)]
mod contract;
mod failure;
mod native;
mod payload;
pub(crate) mod reply;
mod run;
mod submit;

use std::collections::HashMap;
use std::sync::LazyLock;

pub(crate) use call::{Answer, Call, Part, millis};
pub(crate) use catalog::Script;
pub(crate) use failure::{Earlier, Executed, Failure};
pub use native::NativePath;
pub(crate) use native::{Restore, tell};
pub(crate) use run::{CallBudget, RETRY_PAUSE_FIRST, Scripts, once_sent};

/// Returns the script with this SHA: its place in the catalog, and its text.
pub(crate) fn find(sha: &[u8]) -> Option<(u8, &'static str)> {
    static PLACES: LazyLock<HashMap<&[u8], u8>> = LazyLock::new(|| {
        let scripts = catalog::ALL.iter();
        let shas = scripts.map(|(_, script)| script.sha().as_bytes());
        shas.zip(0..).collect()
    });
    let place = *PLACES.get(sha)?;
    Some((place, catalog::ALL[usize::from(place)].1.text()))
}

/// A connection notes in a `u64` which scripts it has loaded.
const _: () = assert!(catalog::ALL.len() <= 64);
