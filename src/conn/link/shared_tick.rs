//! A time that several tasks share, such as the last reply on a connection: the reader sets it, and callers
//! check it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::clock::Tick;

/// A tick shared by all its clones; zero at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTick(Arc<AtomicU64>);

impl SharedTick {
    pub(crate) fn at(now: Tick) -> Self {
        Self(Arc::new(AtomicU64::new(now.nanos())))
    }

    pub(crate) fn set(&self, now: Tick) {
        self.0.store(now.nanos(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Tick {
        Tick::ZERO.after(Duration::from_nanos(self.0.load(Ordering::Relaxed)))
    }
}
