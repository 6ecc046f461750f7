//! What a primitive tells the engine: which scripts to run and where to listen.

use std::fmt::Debug;
use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::keys::LockName;
use crate::script::Call;
use crate::script::reply::{self, Acquired, Released};

/// The part of a primitive that goes over the wire. One value for each kind, shared by all locks.
///
/// Invariant: every call may be executed twice, and names the state to reach, never a step.
pub(crate) trait Protocol: Debug + Send + Sync + 'static {
    /// Tells the kinds apart that use one key in different ways.
    fn kind(&self) -> &'static str;

    /// Takes a free lock (count 1), or raises the count of a hold that exists.
    fn acquire(&self, claim: &Claim<'_>, lease: Duration, fence: Fence) -> Call;

    /// Lowers the count of a hold; 0 frees the lock. Harmless if the holder does not hold it.
    fn release(&self, claim: &Claim<'_>, lease: Duration, publish: &str) -> Call;

    /// Where a release of this lock is told.
    fn channel(&self, name: &LockName, holder: &str) -> String;

    fn acquired(&self, value: &Value) -> Result<Acquired> {
        reply::acquired(value)
    }

    fn released(&self, value: &Value) -> Result<Released> {
        reply::released(value)
    }
}

/// Who wants to hold what, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) holder: &'a str,
    pub(crate) hold_count: u32,
}

/// Whether a fencing token is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    None,
    /// One with every new grant.
    OnGrant,
    /// A new one for a hold that was granted without.
    Now,
}
