//! Calls to the program's recorder. Invariant: if the recorder panics, it misses that call, and no lock suffers. The
//! panic hook has reported the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use metrics::{Recorder, with_recorder};

/// Returns the recorder's answer; nothing if it panics.
pub(super) fn asked<T>(ask: impl FnOnce(&dyn Recorder) -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(|| with_recorder(ask))).ok()
}

/// Makes one call to the recorder.
pub(super) fn tell(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}
