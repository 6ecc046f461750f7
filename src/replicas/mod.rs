//! Waiting until replicas have what was granted.
//!
//! `WAIT` says how many replicas have the writes of the connection it is sent on. So the hold is
//! renewed first, which is a write after the grant, and `WAIT` goes right behind that over one
//! connection: on another one, or one that was replaced in between, it would speak of nothing. It holds
//! up whatever comes behind it, so this has a connection of its own.
//!
//! Invariants: for each server one wait is under way; who comes meanwhile is waited for by the next,
//! together with all others who ask for the same. A renewal concerns a holder id that is used once, so
//! one that comes late, or twice, changes nothing.

mod round;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::sync::oneshot;

use crate::clock::Tick;
use crate::options::Replication;
use crate::script::{Failure, Script, Scripts};
use crate::watchdog::{BATCH_HOLDS_MAX, Watchdog};

/// One hold to be confirmed.
#[derive(Debug)]
pub(crate) struct Confirmation {
    /// Renews any number of holds of this kind; as of [`RenewalRequest`](crate::watchdog::RenewalRequest).
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: Arc<str>,
    /// The end of its lease, which is not made longer.
    pub(crate) until: Tick,
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// As many replicas as were asked for have it.
    Confirmed,
    /// The server does not have it any more, or is no primary any more.
    Gone,
    /// Only so many had it in time.
    TooFew(i64),
    /// The server does not let this user wait.
    Denied(RedisError),
}

type Answer = Result<Verdict, Failure>;

/// Holds in one slot that are confirmed for one caller.
#[derive(Debug)]
struct Entry {
    holds: Vec<Confirmation>,
    replication: Replication,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub(crate) struct Replicas {
    scripts: Arc<Scripts>,
    /// The longest wait for a reply that comes at once.
    reply: Duration,
    /// By server, who waits for the next wait. There for as long as one is under way.
    lines: Mutex<HashMap<u64, VecDeque<Entry>>>,
}

impl Replicas {
    pub(crate) fn new(scripts: Arc<Scripts>, reply: Duration) -> Self {
        Self {
            scripts,
            reply,
            lines: Mutex::default(),
        }
    }

    /// Waits until replicas have these holds, which one script could name.
    ///
    /// Cancel safe: what is under way goes on, and changes nothing that was not granted.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        watchdog: &Watchdog,
        holds: Vec<Confirmation>,
        replication: Replication,
    ) -> Answer {
        let Some(first) = holds.first() else {
            return Ok(Verdict::Confirmed);
        };
        let server = self.scripts.transport.server(&first.key);
        let (answer, answered) = oneshot::channel();
        let entry = Entry {
            holds,
            replication,
            answer,
        };
        if self.line_up(server, entry) {
            // Driven by the task, so that nobody who gives up takes the others along.
            watchdog.drive(Arc::clone(self).serve(server).boxed());
        }
        answered
            .await
            .unwrap_or_else(|_| Err(Failure::silent("the client is gone")))
    }

    /// True if nobody serves this line yet.
    fn line_up(&self, server: u64, entry: Entry) -> bool {
        let mut lines = self.lines.lock();
        let is_new = !lines.contains_key(&server);
        lines.entry(server).or_default().push_back(entry);
        is_new
    }

    async fn serve(self: Arc<Self>, server: u64) {
        while let Some(round) = self.next_round(server) {
            round::run(&self.scripts, self.reply, round).await;
        }
    }

    /// The first in line, and all others who ask for the same. `None` ends the line.
    fn next_round(&self, server: u64) -> Option<Vec<Entry>> {
        let mut lines = self.lines.lock();
        let line = lines.get_mut(&server)?;
        line.retain(|entry| !entry.answer.is_closed());
        let Some(replication) = line.front().map(|first| first.replication) else {
            lines.remove(&server);
            return None;
        };
        let mut holds = 0;
        let (mut round, mut rest) = (Vec::new(), VecDeque::new());
        for entry in line.drain(..) {
            let fits = round.is_empty() || holds + entry.holds.len() <= BATCH_HOLDS_MAX;
            if fits && entry.replication == replication {
                holds += entry.holds.len();
                round.push(entry);
            } else {
                rest.push_back(entry);
            }
        }
        *line = rest;
        Some(round)
    }
}
