//! The recorder is the program's. Invariant: if it panics it misses what it was asked or told just then, and no lock
//! is worse off for it. What it panicked with was said by the panic hook.

use std::panic::{AssertUnwindSafe, catch_unwind};

use metrics::{Recorder, with_recorder};

/// What it says; nothing if it panics.
pub(super) fn asked<T>(ask: impl FnOnce(&dyn Recorder) -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(|| with_recorder(ask))).ok()
}

/// Tells it one thing.
pub(super) fn tell(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}
