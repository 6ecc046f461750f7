//! The call that sets the counts of one or several holds at their server. Uses plain commands where they suffice.
//!
//! Invariant: it may be executed twice, because it names the counts to reach.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::share_lease::ShareLease;
use super::shell::Hold;
use crate::engine::clock::Tick;
use crate::engine::counts::Counts;
use crate::engine::few::Few;
use crate::script::{Call, catalog};

/// Sets the counts of these holds: at least one hold, all on one server.
pub(super) fn release_call<'a>(holds: impl Iterator<Item = (&'a Hold, Counts)>) -> Call {
    let holds: Few<(&Hold, Counts)> = holds.collect();
    if let [(hold, counts)] = holds[..] {
        let tell = counts.is_none().then(|| hold.tell_plain()).flatten();
        return match tell {
            Some(tell) => Call::release_plain(hold.name.key(), &hold.holder, tell),
            None => {
                let lease = hold.lease_to_keep(counts);
                let holder = hold.holder_ref(counts);
                hold.protocol.release(&holder, lease, hold.publish())
            }
        };
    }
    let first = holds[0].0;
    let is_whole = holds.iter().all(|(_, counts)| counts.is_none());
    if is_whole && !first.core.scripts.transport.splits_slots() {
        let each = holds.iter();
        let each = each.map(|(hold, _)| Some((hold.name.key(), &hold.holder, hold.tell_plain()?)));
        if let Some(all) = each.collect::<Option<Vec<_>>>() {
            return Call::release_all_plain(all.into_iter());
        }
    }
    let members = holds.iter().map(|(hold, counts)| {
        let lease = hold.lease_to_keep(*counts);
        let holder = hold.holder_ref(*counts);
        hold.protocol.release_as_member(&holder, lease)
    });
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

    /// The lease that remains after the call, if it leaves a hold.
    fn lease_to_keep(&self, counts: Counts) -> Duration {
        if counts.is_none() {
            return Duration::ZERO;
        }
        let remaining = self.remaining_of(ShareLease::Until(Tick::NEVER));
        remaining.max(Duration::from_millis(1))
    }
}
