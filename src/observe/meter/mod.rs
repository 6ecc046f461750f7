//! Metrics through the facade `metrics`. Without that feature nothing of it is compiled.
//!
//! What happens often is counted in atomics of our own, and told to the recorder in sums: a while after that, when
//! somebody looks at the counts of the client, and when it ends. What happens seldom is told at once.
//!
//! Invariants: no metric has a label whose values a program makes up, but for the bounded group, so the number
//! of series does not grow with the number of locks; no task waits for a recorder but the watchdog's; what was
//! counted is told once.

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
