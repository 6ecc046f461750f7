//! Metrics, traces, counts, and the operator's view.

#[cfg(all(feature = "metrics", feature = "tracing"))]
mod asking;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod late;
#[cfg(feature = "metrics")]
mod metered;
mod observed;
mod operator;
mod permits;
#[cfg(feature = "tracing")]
mod traced;
