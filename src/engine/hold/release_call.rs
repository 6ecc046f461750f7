//! The call that releases one or several holds at their server, or downgrades one. Uses plain commands where they
//! suffice.
//!
//! Invariant: it may be executed twice.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::loss::SharedHold;
use super::share_lease::ShareLease;
use super::shell::Hold;
use crate::engine::clock::Tick;
use crate::engine::few::Few;
use crate::script::{Call, catalog};

/// Releases these holds: at least one, all on one server.
pub(super) fn release_call<'a>(holds: impl Iterator<Item = &'a Hold>) -> Call {
    let holds: Few<&Hold> = holds.collect();
    if let [hold] = holds[..] {
        return match hold.tell_plain() {
            Some(tell) => Call::release_plain(hold.name.key(), &hold.holder, tell),
            None => hold.release_script(),
        };
    }
    let first = holds[0];
    if !first.core.scripts.transport.splits_slots() {
        let each = holds.iter();
        let each = each.map(|hold| Some((hold.name.key(), &hold.holder, hold.tell_plain()?)));
        if let Some(all) = each.collect::<Option<Vec<_>>>() {
            return Call::release_all_plain(all.into_iter());
        }
    }
    let members = holds.iter();
    let members = members.map(|hold| hold.protocol.release_as_member(&hold.holder_ref()));
    Call::of_parts(&catalog::MULTI_RELEASE, &[first.publish()], members)
}

impl Hold {
    fn publish(&self) -> &'static str {
        self.core.channels().publish()
    }

    /// The command that notifies waiters after a plain command released the whole hold, if a release needs no more.
    fn tell_plain(&self) -> Option<Arc<Cmd>> {
        let tell = || self.protocol.tell_plain(&self.name, self.publish());
        self.local.tell.get_or_init(|| tell().map(Arc::new)).clone()
    }

    /// Releases the whole hold by a script.
    pub(super) fn release_script(&self) -> Call {
        let unguarded = self.unguarded(&self.state());
        self.core.release_call(&unguarded)
    }

    /// Turns this write hold into a read hold with the lease that it has.
    pub(super) fn downgrade_call(&self) -> Call {
        let remaining = self.remaining_of(ShareLease::Until(Tick::NEVER));
        let lease = remaining.max(Duration::from_millis(1));
        let holder = self.holder_ref();
        self.protocol.downgrade(&holder, lease, self.publish())
    }
}
