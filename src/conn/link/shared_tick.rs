//! A time that several tasks read and set, such as when a server last replied on a connection: for who reads, and
//! who wonders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Tick;

/// A tick that all its clones have; first zero.
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
