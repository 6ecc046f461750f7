//! Groups due renewals into batches by server, and keeps back those whose server has no room.
//!
//! Invariants: servers are independent, so a slow or silent server delays only its own holds. A hold waits for room
//! only while batches are under way to its server, so the end of one of them makes room. A silent server has as few
//! batches as a quick one. The hold that has been due longest is renewed first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::leased::{Leased, RenewalRequest, Shared};
use super::schedule::{Due, DueEntry, Schedule};
use crate::api::loss::LostReason;
use crate::conn::RENEWAL_WAIT_MIN;
use crate::engine::clock::Tick;
use crate::script::Scripts;

/// The most holds in one batch. Bounds how long one script blocks the server.
pub(crate) const BATCH_HOLDS_MAX: usize = 100;

/// The most batches under way to one server. The next start as these end.
pub(super) const BATCHES_MAX: usize = 8;

/// The most batches under way to a server that takes longer than [`SLOW_AFTER`] to answer. The scripts of eight batches
/// take only a few milliseconds, so most of that time is spent outside the scripts, and eight batches in that time could
/// be too few.
pub(super) const BATCHES_SLOW_MAX: usize = 64;
const SLOW_AFTER: Duration = Duration::from_millis(50);

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
    /// How long a reply may take. Leases of quite different lengths are in different batches, so that a short lease
    /// does not shorten the wait of a long lease.
    pub(super) wait: Duration,
    pub(super) holds: Vec<Renewal>,
}

/// The batches under way to each server, and the holds that wait for room there.
#[derive(Debug, Default)]
pub(super) struct Servers(BTreeMap<u64, Server>);

#[derive(Debug, Default)]
struct Server {
    /// The batches under way.
    batches: usize,
    /// Whether the last batch that ended had all its answers, and they took long.
    is_slow: bool,
    /// How long the answers took to the last batch that had all of them.
    answers_in: Duration,
    /// The holds that wait for room, each with the time since which it is due. Until there is room, the schedule has
    /// them at their deadlines.
    waiting: BTreeSet<(Tick, u64)>,
}

impl Server {
    /// Returns how many more batches may be under way.
    fn room(&self) -> usize {
        let most = if self.is_slow {
            BATCHES_SLOW_MAX
        } else {
            BATCHES_MAX
        };
        most.saturating_sub(self.batches)
    }

    /// Returns how long a reply may take for a hold that can wait for `wait`.
    fn wait(&self, wait: Duration, reply_max: Duration) -> Duration {
        // The limit grows if the last replies took nearly as long as it allows.
        let reply_max = reply_max.max(self.answers_in * 2);
        // Rounded up by a quarter at most, so that holds with about the same wait share a batch.
        let wait = Tick::ZERO.until(Tick::ZERO.after(wait + wait / 4).rounded_down(wait / 4));
        wait.clamp(RENEWAL_WAIT_MIN.min(reply_max), reply_max)
    }

    /// Returns a batch for this server with room for another hold. `None` if the server has no room.
    fn batch<'a>(
        &mut self,
        batches: &'a mut Vec<Batch>,
        server: u64,
        wait: Duration,
    ) -> Option<&'a mut Batch> {
        let is_open = |batch: &Batch| {
            (batch.server, batch.wait) == (server, wait) && batch.holds.len() < BATCH_HOLDS_MAX
        };
        if let Some(at) = batches.iter().position(is_open) {
            return batches.get_mut(at);
        }
        if self.room() == 0 {
            return None;
        }
        self.batches += 1;
        batches.push(Batch {
            server,
            wait,
            holds: Vec::new(),
        });
        batches.last_mut()
    }
}

impl Servers {
    /// Whether a hold waits for a server that has room.
    pub(super) fn may_go_on(&self) -> bool {
        let mut servers = self.0.values();
        servers.any(|server| !server.waiting.is_empty() && server.room() > 0)
    }

    /// Notes that a batch has ended: with all its answers after this time, or with some missing (`None`).
    pub(super) fn end(&mut self, id: u64, answered_in: Option<Duration>) {
        if let Some(server) = self.0.get_mut(&id) {
            server.batches -= 1;
            server.is_slow = answered_in.is_some_and(|time| time > SLOW_AFTER);
            server.answers_in = answered_in.unwrap_or(server.answers_in);
            let is_busy = server.batches > 0 || !server.waiting.is_empty();
            if !is_busy && server.answers_in <= SLOW_AFTER {
                self.0.remove(&id);
            }
        }
    }

    /// Makes waiting holds due again where there is room. Holds that have ended or changed in the meantime take no
    /// room.
    fn go_on(&mut self, schedule: &mut Schedule<Weak<dyn Leased>>) {
        for server in self.0.values_mut() {
            let mut room = server.room() * BATCH_HOLDS_MAX;
            while room > 0
                && let Some((since, id)) = server.waiting.pop_first()
            {
                room -= usize::from(schedule.bring_forward(id, since));
            }
        }
    }
}

/// Takes the holds that waited for a server with room, then the holds that are due, and makes batches of them. Marks
/// the expired holds lost.
pub(super) fn take_due(
    shared: &Shared,
    scripts: &Scripts,
    servers: &mut Servers,
    reply_max: Duration,
) -> Vec<Batch> {
    let now = scripts.clock.now();
    let (mut batches, mut expired) = (Vec::new(), Vec::new());
    {
        // Locked throughout, so that a hold withdrawn in between is not put back.
        let mut schedule = shared.schedule.lock();
        servers.go_on(&mut schedule);
        for DueEntry { id, since, item } in schedule.take_due(now, DUE_HOLDS_MAX) {
            let Some(hold) = item.upgrade() else {
                continue;
            };
            match Arc::clone(&hold).due(now) {
                Due::Later(at) => schedule.insert(id, at, item),
                Due::Renew {
                    lease,
                    deadline,
                    wait,
                } => {
                    let request = hold.request(lease);
                    let to = scripts.transport.server(&request.key);
                    let server = servers.0.entry(to).or_default();
                    match server.batch(&mut batches, to, server.wait(wait, reply_max)) {
                        Some(batch) => batch.holds.push(Renewal {
                            id,
                            hold: Weak::clone(&item),
                            request,
                        }),
                        None => {
                            server.waiting.insert((since, id));
                        }
                    }
                    // Until the renewal is answered, or there is room for it, the next event of the hold is its
                    // deadline.
                    schedule.insert(id, deadline, item);
                }
                Due::Expired => expired.push(hold),
                Due::Gone => {}
            }
        }
    }
    for lease in expired {
        lease.lose(LostReason::Expired);
    }
    batches
}
