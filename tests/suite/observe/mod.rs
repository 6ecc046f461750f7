//! Metrics, traces, counts, and the operator's view.

#[cfg(feature = "metrics")]
mod metered;
mod observed;
mod operator;
#[cfg(feature = "tracing")]
mod traced;
