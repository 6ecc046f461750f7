//! What is due, in batches by server: what is renewed now, and what waits until its server has room.
//!
//! Invariants: servers are independent, and one that is slow or silent delays its own holds alone;
//! a hold waits for a server only while [`BATCHES_MAX`] batches are under way to it, so that one of
//! them is sure to end; whoever has been due longest is renewed first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::leased::{Due, Leased, RenewalRequest};
use super::schedule::{DueEntry, Schedule};
use super::shared::Shared;
use crate::conn::RENEWAL_WAIT_MIN;
use crate::engine::clock::Tick;
use crate::script::Scripts;

/// Holds renewed at once: bounds the time for which one script blocks the server.
pub(crate) const BATCH_HOLDS_MAX: usize = 100;

/// Batches under way to one server: the next start as these end.
pub(super) const BATCHES_MAX: usize = 8;

/// Due holds taken at once, before the task turns to what else there is.
const DUE_HOLDS_MAX: usize = BATCHES_MAX * BATCH_HOLDS_MAX;

/// A hold to be renewed.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) id: u64,
    pub(super) hold: Weak<dyn Leased>,
    pub(super) request: RenewalRequest,
}

/// Holds that are renewed at once, over one connection.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) server: u64,
    /// How long a reply may take. Leases of other lengths are in batches of their own, so that a
    /// short one cuts no long one's wait.
    pub(super) wait: Duration,
    pub(super) holds: Vec<Renewal>,
}

impl Batch {
    /// Splits it by what one script can name and renew: one slot, one kind.
    pub(super) fn into_calls(self, scripts: &Scripts) -> impl Iterator<Item = Vec<Renewal>> {
        let mut calls: BTreeMap<(u16, &str), Vec<Renewal>> = BTreeMap::new();
        for hold in self.holds {
            let request = &hold.request;
            let call = (scripts.transport.slot(&request.key), request.script.sha());
            calls.entry(call).or_default().push(hold);
        }
        calls.into_values()
    }
}

/// How many batches are under way to each server.
#[derive(Debug, Default)]
pub(super) struct BatchesUnderWay(HashMap<u64, usize>);

impl BatchesUnderWay {
    pub(super) fn has_room(&self, server: u64) -> bool {
        self.0
            .get(&server)
            .is_none_or(|batches| *batches < BATCHES_MAX)
    }

    /// Counts one more batch, if there is room for it.
    fn try_begin(&mut self, server: u64) -> bool {
        let has_room = self.has_room(server);
        if has_room {
            *self.0.entry(server).or_default() += 1;
        }
        has_room
    }

    pub(super) fn end(&mut self, server: u64) {
        if let Some(batches) = self.0.get_mut(&server) {
            *batches -= 1;
            if *batches == 0 {
                self.0.remove(&server);
            }
        }
    }
}

/// Takes those that waited for a server that has room now, then what is due, and makes batches of
/// them. What has expired is told so.
pub(super) fn take_due(
    shared: &Shared,
    scripts: &Scripts,
    under_way: &mut BatchesUnderWay,
    reply_max: Duration,
) -> Vec<Batch> {
    let mut batching = Batching {
        now: scripts.clock.now(),
        scripts,
        reply_max,
        under_way,
        batches: Vec::new(),
        filling: HashMap::new(),
        expired: Vec::new(),
    };
    {
        // Held throughout, so that what is withdrawn from now on is not put back.
        let mut schedule = shared.schedule.lock();
        let servers: Vec<u64> = schedule.waited_for().collect();
        for server in servers {
            if !batching.under_way.has_room(server) {
                continue;
            }
            // Until one has to wait on.
            while let Some(entry) = schedule.take_waiting(server)
                && batching.add(&mut schedule, entry) != Some(server)
            {}
        }
        for entry in schedule.take_due(batching.now, DUE_HOLDS_MAX) {
            batching.add(&mut schedule, entry);
        }
    }
    for lease in batching.expired {
        lease.expired();
    }
    batching.batches
}

/// Batches in the making.
struct Batching<'a> {
    now: Tick,
    scripts: &'a Scripts,
    reply_max: Duration,
    under_way: &'a mut BatchesUnderWay,
    batches: Vec<Batch>,
    /// By server and reply timeout, the batch that is not full yet.
    filling: HashMap<(u64, Duration), usize>,
    expired: Vec<Arc<dyn Leased>>,
}

impl Batching<'_> {
    /// Asks one entry what is due, and does that. Returns the server it has to wait for, if it does.
    fn add(
        &mut self,
        schedule: &mut Schedule<Weak<dyn Leased>>,
        entry: DueEntry<Weak<dyn Leased>>,
    ) -> Option<u64> {
        let lease = entry.item.upgrade()?;
        // The task plans its next wake-up after this, so it needs no waking.
        let _needs_no_waking = match Arc::clone(&lease).due(self.now) {
            Due::Later(at) => schedule.insert(entry.id, at, entry.item),
            Due::Renew {
                request,
                deadline,
                wait,
            } => {
                let wait = wait.clamp(RENEWAL_WAIT_MIN.min(self.reply_max), self.reply_max);
                let server = self.scripts.transport.server(&request.key);
                let Some(batch) = self.batch(server, wait) else {
                    // Asked again when there is room: until then it may end, or have changed.
                    schedule.wait(entry, server, deadline);
                    return Some(server);
                };
                batch.holds.push(Renewal {
                    id: entry.id,
                    hold: Weak::clone(&entry.item),
                    request,
                });
                // Until its renewal is answered, its deadline is what comes next.
                schedule.insert(entry.id, deadline, entry.item)
            }
            Due::Expired => {
                self.expired.push(lease);
                false
            }
            Due::Gone => false,
        };
        None
    }

    /// A batch with room for one more hold.
    fn batch(&mut self, server: u64, wait: Duration) -> Option<&mut Batch> {
        let filling = self.filling.get(&(server, wait)).copied();
        let filling = filling.filter(|at| self.batches[*at].holds.len() < BATCH_HOLDS_MAX);
        let at = match filling {
            Some(at) => at,
            None => {
                if !self.under_way.try_begin(server) {
                    return None;
                }
                self.batches.push(Batch {
                    server,
                    wait,
                    holds: Vec::new(),
                });
                self.filling.insert((server, wait), self.batches.len() - 1);
                self.batches.len() - 1
            }
        };
        self.batches.get_mut(at)
    }
}
