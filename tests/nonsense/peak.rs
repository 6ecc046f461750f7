//! Measures the peak of allocated memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::ALLOCATED;

/// The peak of allocated memory, sampled each millisecond.
pub(crate) struct Peak {
    from: usize,
    most: &'static AtomicUsize,
    is_over: &'static AtomicBool,
}

fn allocated() -> usize {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

impl Peak {
    pub(crate) fn begin() -> Self {
        let peak = Self {
            from: allocated(),
            most: Box::leak(Box::default()),
            is_over: Box::leak(Box::default()),
        };
        let (most, is_over) = (peak.most, peak.is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(allocated(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        peak
    }

    pub(crate) fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed).saturating_sub(self.from)
    }
}
