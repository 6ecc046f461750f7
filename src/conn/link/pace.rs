//! The size of the portions in which a connection passes on replies, so that one shared by many tasks never stands still.
//!
//! A connection that passes on all available replies wakes all their callers, and then sends the next commands of
//! those. In one write, server and client wait for each other in turns; if the callers run on another thread, each
//! command gets its own write. With small portions, the connection's task runs again behind the few callers that one
//! portion has woken. Their next commands leave together in one write, and the server works on them while the next
//! portion is passed on. Portions also keep the data of a few tasks in the processor's cache.
//!
//! Invariant: with few commands in flight nothing changes. All counts here are advice: wrong ones only change the size
//! of portions.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Portions gain nothing with fewer commands in flight. The limit is higher on a runtime of one thread, where all
/// ready commands leave in one write anyway.
const FEW: usize = 4;
const FEW_ON_ONE_THREAD: usize = 16;

/// A portion is at least a quarter of the commands in flight, up to `ENOUGH` replies, so that client and server
/// always have one portion each.
const SMALL_PARTS: usize = 4;
/// This many replies justify the system calls of a portion, and are handled quickly.
const ENOUGH: usize = 16;
/// A portion is an eighth of the commands in flight if that is more than `ENOUGH`.
const LARGE_PARTS: usize = 8;

/// The largest portion in replies. Its system calls cost next to nothing per reply.
const PORTION_MAX: usize = 64;

/// A turn that comes this late shows that other tasks wait for the processor. Waiting behind them for each portion
/// would cost more than portions save.
pub(crate) const LATE: Duration = Duration::from_millis(1);

/// The number of replies in a portion, for this many commands in flight.
pub(crate) fn portion_of(in_flight: usize) -> usize {
    let least = (in_flight / SMALL_PARTS).min(ENOUGH);
    least.max(in_flight / LARGE_PARTS).clamp(1, PORTION_MAX)
}

/// The number of commands in flight below which everything available is read. Depends on the current runtime.
pub(crate) fn few_in_flight() -> usize {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::CurrentThread) => FEW_ON_ONE_THREAD,
        _ => FEW,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_a_part_of_what_is_in_flight() {
        for (in_flight, replies) in [
            (4, 1),
            (8, 2),
            (16, 4),
            (64, 16),
            (128, 16),
            (256, 32),
            (512, 64),
            (100_000, 64),
        ] {
            assert_eq!(portion_of(in_flight), replies, "{in_flight}");
        }
    }

    #[test]
    fn where_one_thread_runs_all_fewer_need_portions() {
        for (threads, few) in [(1, FEW_ON_ONE_THREAD), (2, FEW)] {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread(),
                _ => tokio::runtime::Builder::new_multi_thread(),
            };
            let runtime = { runtime }.build().unwrap();
            assert_eq!(runtime.block_on(async { few_in_flight() }), few);
        }
    }
}
