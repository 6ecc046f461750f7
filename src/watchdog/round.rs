//! One look at what is due: what is renewed now, and what waits for room at its server.
//!
//! Invariants: servers are independent, and one that is slow or silent keeps room from its own holds
//! alone; something waits for a server only while as many batches as there may be are under way to
//! it, so that the end of one of them is sure to come; who has been due longer is renewed first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::schedule::{Schedule, Taken};
use super::{BATCH_HOLDS_MAX, Due, Item, Leased, Shared};
use crate::clock::Tick;
use crate::script::Scripts;

/// Batches under way to one server: the next start as these end.
pub(super) const BATCHES_MAX: usize = 8;

/// Holds looked at before the loop turns to what else there is.
const LOOKS_MAX: usize = BATCHES_MAX * BATCH_HOLDS_MAX;

/// No renewal waits less than this for its reply.
const REPLY_WAIT_MIN: Duration = Duration::from_millis(25);

/// A hold to be renewed, by its id.
pub(super) type Renewal = (u64, Weak<dyn Leased>, Item);

/// Holds that are renewed at once, over one connection.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) server: u64,
    /// How long a reply may take: a short lease makes no long one impatient.
    pub(super) wait: Duration,
    pub(super) holds: Vec<Renewal>,
}

impl Batch {
    /// What one script can name and renew.
    pub(super) fn into_calls(self, scripts: &Scripts) -> impl Iterator<Item = Vec<Renewal>> {
        let mut calls: BTreeMap<(u16, &str), Vec<Renewal>> = BTreeMap::new();
        for hold in self.holds {
            let item = &hold.2;
            let call = (scripts.transport.slot(&item.key), item.script.sha());
            calls.entry(call).or_default().push(hold);
        }
        calls.into_values()
    }
}

/// How many batches are under way to each server.
#[derive(Debug, Default)]
pub(super) struct Rooms(HashMap<u64, usize>);

impl Rooms {
    pub(super) fn has_room(&self, server: u64) -> bool {
        self.0
            .get(&server)
            .is_none_or(|batches| *batches < BATCHES_MAX)
    }

    /// One more batch, if there is room for it.
    fn enter(&mut self, server: u64) -> bool {
        let has_room = self.has_room(server);
        if has_room {
            *self.0.entry(server).or_default() += 1;
        }
        has_room
    }

    /// A batch has ended.
    pub(super) fn leave(&mut self, server: u64) {
        if let Some(batches) = self.0.get_mut(&server) {
            *batches -= 1;
            if *batches == 0 {
                self.0.remove(&server);
            }
        }
    }
}

/// Looks at those that wait where there is room now, and at what is due.
pub(super) fn look(
    shared: &Shared,
    scripts: &Scripts,
    rooms: &mut Rooms,
    reply_max: Duration,
) -> Vec<Batch> {
    let mut round = Round {
        now: scripts.clock.now(),
        scripts,
        reply_max,
        rooms,
        batches: Vec::new(),
        filling: HashMap::new(),
        expired: Vec::new(),
    };
    {
        // Held throughout, so that what is withdrawn from now on is not put back.
        let mut schedule = shared.schedule.lock();
        let servers: Vec<u64> = schedule.waited_for().collect();
        for server in servers {
            if !round.rooms.has_room(server) {
                continue;
            }
            // Until one has to wait on.
            while let Some(entry) = schedule.take_waiting(server)
                && round.look_at(&mut schedule, entry) != Some(server)
            {}
        }
        for entry in schedule.take_due(round.now, LOOKS_MAX) {
            round.look_at(&mut schedule, entry);
        }
    }
    for lease in round.expired {
        lease.expired();
    }
    round.batches
}

struct Round<'a> {
    now: Tick,
    scripts: &'a Scripts,
    reply_max: Duration,
    rooms: &'a mut Rooms,
    batches: Vec<Batch>,
    /// By server and reply timeout, the batch that is not full yet.
    filling: HashMap<(u64, Duration), usize>,
    expired: Vec<Arc<dyn Leased>>,
}

impl Round<'_> {
    /// Does with one entry what it says is due. The server for whose room it waits, if it does.
    fn look_at(
        &mut self,
        schedule: &mut Schedule<Weak<dyn Leased>>,
        entry: Taken<Weak<dyn Leased>>,
    ) -> Option<u64> {
        let lease = entry.item.upgrade()?;
        // This task looks at the schedule again after this, so it needs no waking.
        let _needs_no_waking = match lease.due(self.now) {
            Due::Later(at) => schedule.insert(entry.id, at, entry.item),
            Due::Renew {
                item,
                deadline,
                wait,
            } => {
                let wait = wait.clamp(REPLY_WAIT_MIN.min(self.reply_max), self.reply_max);
                let server = self.scripts.transport.server(&item.key);
                let Some(batch) = self.batch(server, wait) else {
                    // Asked again when there is room: until then it may end, or have changed.
                    schedule.wait(entry, server, deadline);
                    return Some(server);
                };
                batch.holds.push((entry.id, Weak::clone(&entry.item), item));
                // Until its renewal is answered, its deadline is the next thing to look at.
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
                if !self.rooms.enter(server) {
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
