//! A head of the local queue that does not come is passed over.
//!
//! The future of a waiter may be left unpolled: a branch of a `select!` in a loop, a place in a stream
//! whose buffer is full. So while anybody waits behind the head of a local queue, the watchdog task
//! checks now and then whether the head comes when it should.

use std::sync::Arc;

use futures_util::FutureExt;

use super::core::Core;
use super::local::LocalLock;

/// Has the head of this queue checked on, for as long as anybody waits behind it.
pub(crate) fn watch_heads(core: &Arc<Core>, local: &Arc<LocalLock>) {
    if !local.queue.begin_watch() {
        return;
    }
    let (clock, every) = (core.clock, core.timing.reply);
    // It keeps nothing alive.
    let local = Arc::downgrade(local);
    let watch = async move {
        loop {
            clock.sleep_until(clock.now().after(every)).await;
            let Some(local) = local.upgrade() else { return };
            let handoffs = local
                .queue
                .pass_over_missing(local.hint().mark(), clock.now());
            // What they were handed goes to those behind, or back to the server.
            if handoffs.map(drop).is_none() {
                return;
            }
        }
    };
    core.watchdog.drive_while_needed(watch.boxed());
}
