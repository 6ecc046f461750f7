//! Groups due renewals into batches by server, and keeps back those whose server has no room.
//!
//! Invariants: servers are independent, so a slow or silent server delays only its own holds. A hold waits for a server
//! only while [`BATCHES_MAX`] batches are under way to it, so one of them is sure to end. The hold that has been due
//! longest is renewed first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::leased::{Due, Leased, RenewalRequest, Shared};
use super::schedule::{DueEntry, Schedule};
use crate::conn::RENEWAL_WAIT_MIN;
use crate::engine::clock::Tick;
use crate::script::Scripts;

/// The most holds in one batch. Bounds how long one script blocks the server.
pub(crate) const BATCH_HOLDS_MAX: usize = 100;

/// The most batches under way to one server. The next start as these end.
pub(super) const BATCHES_MAX: usize = 8;

/// The most due holds taken at once, before the task turns to its other work.
const DUE_HOLDS_MAX: usize = BATCHES_MAX * BATCH_HOLDS_MAX;

/// A hold to renew.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) id: u64,
    pub(super) hold: Weak<dyn Leased>,
    pub(super) request: RenewalRequest,
}

/// Holds that are renewed together, over one connection.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) server: u64,
    /// How long a reply may take. Leases of different lengths are in different batches, so that a short lease does not
    /// shorten the wait of a long lease.
    pub(super) wait: Duration,
    pub(super) holds: Vec<Renewal>,
}

impl Batch {
    /// Splits the batch into the holds that one script can name and renew: one slot, one kind.
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

/// The number of batches under way to each server.
#[derive(Debug, Default)]
pub(super) struct BatchesUnderWay(HashMap<u64, usize>);

impl BatchesUnderWay {
    pub(super) fn has_room(&self, server: u64) -> bool {
        self.0
            .get(&server)
            .is_none_or(|batches| *batches < BATCHES_MAX)
    }

    /// Counts a new batch if there is room for it.
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

/// Takes the holds that waited for a server with room, then the holds that are due, and makes batches of them. Tells
/// the expired holds that they are lost.
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
        // Locked throughout, so that a hold withdrawn in between is not put back.
        let mut schedule = shared.schedule.lock();
        let servers: Vec<u64> = schedule.waited_for().collect();
        for server in servers {
            if !batching.under_way.has_room(server) {
                continue;
            }
            // Until a hold has to wait again.
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

/// Batches that are being filled.
struct Batching<'a> {
    now: Tick,
    scripts: &'a Scripts,
    reply_max: Duration,
    under_way: &'a mut BatchesUnderWay,
    batches: Vec<Batch>,
    /// The batch that is not full yet, by server and reply time-out.
    filling: HashMap<(u64, Duration), usize>,
    expired: Vec<Arc<dyn Leased>>,
}

impl Batching<'_> {
    /// Asks one entry for its next step, and takes that step. Returns the server that the entry has to wait for, if
    /// any.
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
                    // The entry is asked again when there is room: it may have ended or changed.
                    schedule.wait(entry, server, deadline);
                    return Some(server);
                };
                batch.holds.push(Renewal {
                    id: entry.id,
                    hold: Weak::clone(&entry.item),
                    request,
                });
                // Until the renewal is answered, the next event of the hold is its deadline.
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

    /// A batch with room for another hold. `None` if the server has no room.
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
