//! The public interface: options, results, errors, `Debug` output, and the end of a client.

mod bounds;
mod busy;
mod environment;
mod input;
mod lazy;
#[cfg(feature = "macros")]
mod locked;
mod loss;
mod loss_view;
mod messages;
mod paused;
mod polled;
mod runtime;
mod shown;
mod shutdown;
mod spans;
mod traits;
mod with;
