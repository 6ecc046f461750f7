//! Metrics, traces, counts, and the operator's view.

#[cfg(feature = "metrics")]
mod metered;
mod observed;
mod operator;
mod permits;
#[cfg(feature = "tracing")]
mod traced;
