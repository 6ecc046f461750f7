//! Confirms grants that count only once replicas have them.
//!
//! `WAIT` returns how many replicas have the writes of the connection it is sent on. So the hold is renewed first,
//! which is a write after the grant, and `WAIT` follows directly on one connection. On another connection, or a
//! replaced one, its answer would mean nothing. `WAIT` holds up every command behind it, so it has a connection of its
//! own.
//!
//! Invariants: one `WAIT` is under way to each server. Requests that come in the meantime share the next `WAIT` with
//! all others of equal terms. A renewal names a holder id that is used once, so a late or repeated renewal changes
//! nothing.
//!
//! `round.rs` has the requests, and runs one `WAIT` for all requests of a round, behind their renewals.

mod round;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::api::options::Replication;
use crate::script::{Failure, Scripts};
use crate::watchdog::{BATCH_HOLDS_MAX, Watchdog};
use round::{ConfirmOutcome, Request};
pub(crate) use round::{Confirmation, Verdict};

#[derive(Debug)]
pub(crate) struct Replicas {
    scripts: Arc<Scripts>,
    /// The longest wait for a reply that comes at once.
    reply: Duration,
    /// By server, the requests for the next `WAIT`. A queue exists while a `WAIT` is under way.
    queues: Mutex<HashMap<u64, VecDeque<Request>>>,
}

impl Replicas {
    pub(crate) fn new(scripts: Arc<Scripts>, reply: Duration) -> Self {
        Self {
            scripts,
            reply,
            queues: Mutex::default(),
        }
    }

    /// Waits until replicas have these holds, which must be in one slot.
    ///
    /// Cancel safe: a round that is under way goes on, and only concerns holds that were granted.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        watchdog: &Watchdog,
        holds: Vec<Confirmation>,
        replication: Replication,
    ) -> ConfirmOutcome {
        let Some(first) = holds.first() else {
            return Ok(Verdict::Confirmed);
        };
        let server = self.scripts.transport.server(&first.key);
        let (outcome, confirmed) = oneshot::channel();
        let request = Request {
            holds,
            replication,
            outcome,
        };
        if self.enqueue(server, request) {
            // Driven by the watchdog, so that a caller that leaves does not cancel the others.
            watchdog.drive(Arc::clone(self).serve(server).boxed());
        }
        confirmed
            .await
            .unwrap_or_else(|_| Err(Failure::silent("the client is gone")))
    }

    /// Adds a request. Returns true if the queue has no driver yet.
    fn enqueue(&self, server: u64, request: Request) -> bool {
        let mut queues = self.queues.lock();
        let is_new = !queues.contains_key(&server);
        queues.entry(server).or_default().push_back(request);
        is_new
    }

    async fn serve(self: Arc<Self>, server: u64) {
        while let Some(round) = self.next_round(server) {
            round::run(&self.scripts, self.reply, round).await;
        }
    }

    /// The first request in the queue, with all others of equal terms. `None` ends the queue.
    fn next_round(&self, server: u64) -> Option<Vec<Request>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&server)?;
        queue.retain(|request| !request.outcome.is_closed());
        let Some(replication) = queue.front().map(|first| first.replication) else {
            queues.remove(&server);
            return None;
        };
        let mut holds = 0;
        let (mut round, mut rest) = (Vec::new(), VecDeque::new());
        for request in queue.drain(..) {
            let fits = round.is_empty() || holds + request.holds.len() <= BATCH_HOLDS_MAX;
            if fits && request.replication == replication {
                holds += request.holds.len();
                round.push(request);
            } else {
                rest.push_back(request);
            }
        }
        *queue = rest;
        Some(round)
    }
}
