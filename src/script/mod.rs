//! The scripts and the one way to run them.
//!
//! A script is sent by its SHA. A server that does not know it (`NOSCRIPT`, after a restart, a failover or a flush)
//! is sent the text of that one script, once. Invariant: every script may run twice with the same arguments. A call
//! with an unknown outcome is therefore repeated unchanged until its deadline, and the answer says whether it was
//! repeated.
//!
//! ```text
//! catalog.rs      each with the pieces it uses; call.rs: one with its keys and arguments
//! run.rs          EVALSHA, NOSCRIPT -> EVAL, repeats; failure.rs: the reason of a missing reply
//! native.rs       plain commands in place of a script; payload.rs: the payload of RESTORE
//! spare.rs        buffers of commands, used again
//! together.rs     releases several holds by plain commands, in one write
//! preload.rs      the scripts that a new connection loads; missing.rs: the right that a user lacks
//! reply.rs        typed replies: the only place that knows status codes
//! ```

mod call;
pub(crate) mod catalog;
#[cfg(test)]
mod contract;
mod failure;
mod missing;
mod native;
mod payload;
pub(crate) mod preload;
pub(crate) mod reply;
mod run;
mod spare;
mod together;

pub(crate) use call::{Call, Part, millis};
pub(crate) use catalog::Script;
pub(crate) use failure::{Executed, Failure};
pub use native::NativePath;
pub(crate) use native::{NativeState, tell};
pub(crate) use run::{Answer, CallBudget, Scripts, on_first_poll};
