//! Metrics through the facade `metrics`. Not compiled without that feature.
//!
//! Events are counted in atomics of our own, and the recorder gets the sums: a short time later, when the counts of the
//! client are read, and when the client ends.
//!
//! Invariants: no metric has a label with values made up by a program, except for the bounded group, so the number of
//! series does not grow with the number of locks; no task but the watchdog's waits for a recorder; each event is
//! published once.

#[cfg(feature = "metrics")]
mod instruments;
#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;
#[cfg(feature = "metrics")]
mod recorder;
#[cfg(feature = "metrics")]
mod times;

#[cfg(not(feature = "metrics"))]
pub(crate) use self::off::{GuardTimer, HoldTimer, Meter, WaitCount};
#[cfg(feature = "metrics")]
pub(crate) use self::on::{GuardTimer, HoldTimer, Meter, WaitCount};
