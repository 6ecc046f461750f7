//! Which servers of a Redlock are away: dead, silent or out of reach, so that its calls leave them alone.
//!
//! What one call has found out goes for all. A server is away when it cannot be reached, when it does
//! not answer a vote in time, or when nothing at all was heard of it for so long, though it was asked:
//! short holds wait for no minority, and would never notice. Invariants: who is away is asked by one
//! task, until it answers; all who lack it are told then; and so many are never left alone that the
//! others are too few.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::servers::Servers;
use super::tally::VoteOutcome;
use crate::clock::Tick;
use crate::conn::Lane;
use crate::hint::Hint;

/// Who is away is asked again after a random time of up to this.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Of one server.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_down: AtomicBool,
    /// When it was first asked since it was last heard; 0 if it was not.
    asked: AtomicU64,
    /// Given when it is back.
    back: Hint,
}

impl Health {
    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }
}

impl Servers {
    /// Whether a server is left alone just now.
    pub(super) fn is_down(&self, at: usize) -> bool {
        self.health[at].is_down()
    }

    /// Whether those that are not away can make a majority.
    pub(super) fn is_majority_up(&self) -> bool {
        let up = self.health.iter().filter(|health| !health.is_down());
        up.count() >= self.quorum()
    }

    /// A server is about to be asked.
    pub(super) fn note_request(&self, at: usize) {
        let health = &self.health[at];
        let asked = health.asked.load(Ordering::Relaxed);
        if asked == 0 || self.last_reply(at).nanos() >= asked {
            health.asked.store(self.now().nanos(), Ordering::Relaxed);
        }
    }

    /// Leaves a server alone that was not heard for `limit`, though it was asked.
    pub(super) fn check_silence(self: &Arc<Self>, at: usize, vote_timeout: Duration) {
        let health = &self.health[at];
        let asked = health.asked.load(Ordering::Relaxed);
        if asked == 0 || health.is_down() {
            return;
        }
        let is_due = Tick::ZERO
            .after(Duration::from_nanos(asked))
            .until(self.now())
            > vote_timeout;
        if is_due && self.last_reply(at).nanos() < asked {
            self.mark_down(at);
        }
    }

    /// Goes by what a server said, or did not say.
    pub(super) fn note_outcome(self: &Arc<Self>, at: usize, outcome: &VoteOutcome) {
        match outcome.is_unreachable() {
            true => self.mark_down(at),
            false => self.mark_up(at),
        }
    }

    fn mark_down(self: &Arc<Self>, at: usize) {
        let others = self.health.iter().enumerate();
        let others = others.filter(|(other, health)| *other != at && !health.is_down());
        if others.count() < self.quorum() || self.health[at].is_down.swap(true, Ordering::AcqRel) {
            return;
        }
        let watchdog = &self.clients[at].core().watchdog;
        watchdog.drive(probe(Arc::downgrade(self), at).boxed());
    }

    fn mark_up(&self, at: usize) {
        let health = &self.health[at];
        health.asked.store(0, Ordering::Relaxed);
        if health.is_down.swap(false, Ordering::AcqRel) {
            health.back.give();
        }
    }

    /// Resolves at `end`, or as soon as the server is back; not while it is away.
    pub(super) async fn wait_while_down(&self, at: usize, end: Tick) {
        let health = &self.health[at];
        let mark = health.back.mark();
        if health.is_down() {
            return health.back.past(mark).await;
        }
        tokio::select! {
            () = health.back.past(mark) => {}
            () = self.clients[at].core().clock.sleep_until(end) => {}
        }
    }

    fn last_reply(&self, at: usize) -> Tick {
        let scripts = &self.clients[at].core().scripts;
        scripts.transport.last_reply_at(Lane::Command, "")
    }

    fn now(&self) -> Tick {
        self.clients[0].core().clock.now()
    }
}

/// Asks a server that is away until it answers; it keeps nobody from giving up the Redlock.
async fn probe(servers: Weak<Servers>, at: usize) {
    while let Some(this) = servers.upgrade() {
        let client = this.clients[at].clone();
        drop(this);
        let core = client.core();
        let closing = core.closing.mark();
        let is_there = core.is_closed()
            || tokio::select! {
                biased;
                () = core.closing.past(closing) => true,
                // What it refuses is told to those who ask.
                answer = client.is_served() => !answer.is_err_and(|error| error.is_io()),
            };
        drop(client);
        if is_there {
            if let Some(this) = servers.upgrade() {
                this.mark_up(at);
            }
            return;
        }
        tokio::time::sleep(PAUSE_MAX.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
