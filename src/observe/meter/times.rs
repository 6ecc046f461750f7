//! Times, counted in a table of our own with one add each. The recorder needs far longer for a value, so it gets all of
//! them together, later.
//!
//! Invariant: the recorded value of a time is wrong by a thirty-second part of it at most.

use std::array;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The cells of each power of two of nanoseconds. All have one width, which is a power of two.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;

/// The highest bit of a time that is recorded: up to thirteen days. Longer times count as that.
const HIGHEST_BIT: u32 = 49;

/// Below two powers cells are a nanosecond wide.
const CELLS: usize = (HIGHEST_BIT - PARTS_BITS + 2) as usize * PARTS;

/// The most values of one series that are recorded at a time. If there are more, this many stand for all of them. An
/// exporter keeps each value until it is read, and needs time for each.
pub(super) const VALUES_MAX: u64 = 4_096;

/// The times of one series that the recorder does not have yet.
#[derive(Debug)]
pub(super) struct Times(Box<[AtomicU32; CELLS]>);

impl Default for Times {
    fn default() -> Self {
        Self(Box::new(array::from_fn(|_| AtomicU32::new(0))))
    }
}

/// Returns the cell of a time.
fn cell(nanos: u64) -> usize {
    let nanos = nanos.min((1 << (HIGHEST_BIT + 1)) - 1);
    let shift = nanos
        .checked_ilog2()
        .map_or(0, |bit| bit.saturating_sub(PARTS_BITS));
    // The highest bit of the rest counts as one part more, unless nothing was shifted out.
    (shift as usize * PARTS) + (nanos >> shift) as usize
}

/// Returns the time in the middle of a cell, in seconds.
fn seconds(cell: usize) -> f64 {
    let shift = (cell / PARTS).saturating_sub(1);
    let least = ((cell - shift * PARTS) as u64) << shift;
    let width = 1_u64 << shift;
    (least as f64 + (width - 1) as f64 / 2.0) / 1e9
}

impl Times {
    pub(super) fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[cell(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the times since the last call, for the recorder: in seconds, and how often. Returns how many there were,
    /// too.
    pub(super) fn take(&self) -> (Vec<(f64, usize)>, u64) {
        let mut found = Vec::new();
        for (at, cell) in self.0.iter().enumerate() {
            if cell.load(Ordering::Relaxed) > 0 {
                found.push((at, u64::from(cell.swap(0, Ordering::Relaxed))));
            }
        }
        let total = found.iter().map(|(_, count)| count).sum();
        let times = found.into_iter().map(|(at, count)| {
            let count = usize::try_from(thinned(count, total)).unwrap_or(usize::MAX);
            (seconds(at), count)
        });
        (times.collect(), total)
    }
}

/// Returns how many of `count` times in a cell are recorded: their share of `total`, and at least one unless it is
/// empty.
fn thinned(count: u64, total: u64) -> u64 {
    if total <= VALUES_MAX {
        return count;
    }
    (count * VALUES_MAX).div_ceil(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_cell_that_tells_it_well() {
        let mut before = 0;
        let powers = (0..=HIGHEST_BIT).map(|bit| 1_u64 << bit);
        let times = powers.flat_map(|power| {
            let parts = (0..40).map(move |part| power + power / 40 * part);
            parts.chain([power * 2 - 1])
        });
        for nanos in times {
            let at = cell(nanos);
            assert!(at >= before && at < CELLS, "{nanos}: {at} after {before}");
            before = at;
            let (told, nanos) = (seconds(at) * 1e9, nanos as f64);
            assert!((told - nanos).abs() <= nanos / 32.0, "{nanos}: {told}");
        }
        assert_eq!(before, CELLS - 1, "no cell is left over");
        assert_eq!(cell(u64::MAX), CELLS - 1);
        assert_eq!((cell(0), seconds(0)), (0, 0.0));
    }

    #[test]
    fn of_too_many_some_stand_for_all_and_the_rare_ones_are_among_them() {
        assert_eq!(thinned(VALUES_MAX, VALUES_MAX), VALUES_MAX);
        assert_eq!(thinned(3, VALUES_MAX), 3);
        let total = VALUES_MAX * 10;
        assert_eq!(thinned(total / 2, total), VALUES_MAX / 2);
        assert_eq!(thinned(1, total), 1);
    }
}
