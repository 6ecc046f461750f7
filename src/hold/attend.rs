//! Those behind a head that does not come.
//!
//! The future of a waiter may be left unpolled: a branch of a `select!` in a loop, a place in a stream
//! whose buffer is full. So while anybody waits behind the head of a local queue, the watchdog task looks
//! now and then whether the head comes when it is to, and passes over one that does not.

use std::sync::Arc;

use futures_util::FutureExt;

use super::core::Core;
use super::local::LocalLock;

/// Has those looked after who wait behind the head for this lock, for as long as there are any.
pub(crate) fn behind(core: &Arc<Core>, local: &Arc<LocalLock>) {
    if !local.line.attend() {
        return;
    }
    let (clock, every) = (core.clock, core.timing.reply);
    // It keeps nothing alive.
    let local = Arc::downgrade(local);
    let looks = async move {
        loop {
            clock.sleep_until(clock.now().after(every)).await;
            let Some(local) = local.upgrade() else { return };
            let given = local.line.look(local.hint().mark(), clock.now());
            // What was given goes to those behind, or back to the server.
            if given.map(drop).is_none() {
                return;
            }
        }
    };
    core.watchdog.drive_while_needed(looks.boxed());
}
