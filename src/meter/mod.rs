//! Metrics through the facade `metrics`. Without that feature nothing of it is compiled.
//!
//! Invariant: no metric has a label whose values a program makes up, but for the bounded group. So the
//! number of series does not grow with the number of locks.

#[cfg(feature = "metrics")]
mod instruments;
#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use self::off::{HoldTimer, Meter, WaitCount};
#[cfg(feature = "metrics")]
pub(crate) use self::on::{HoldTimer, Meter, WaitCount};
