//! The scripts and the one way to run them.
//!
//! A script is sent by its SHA; a server that does not know it (`NOSCRIPT`: restarted, failed over,
//! flushed) is sent the text of that one script, once. Invariant: every script may run twice. So a
//! call whose outcome is unknown is repeated as it is until its deadline, and what comes back says
//! whether that happened.

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
