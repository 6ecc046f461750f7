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

use super::electorate::Electorate;
use super::votes::Said;
use crate::clock::Tick;
use crate::conn::Lane;
use crate::hint::Hint;

/// Who is away is asked again after a random time of up to this.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Of one server.
#[derive(Debug, Default)]
pub(super) struct Presence {
    is_away: AtomicBool,
    /// When it was first asked since it was last heard; 0 if it was not.
    asked: AtomicU64,
    /// Given when it is back.
    back: Hint,
}

impl Presence {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }
}

impl Electorate {
    /// Whether a server is left alone just now.
    pub(super) fn is_away(&self, at: usize) -> bool {
        self.presences[at].is_away()
    }

    /// Whether those that are not away can make a majority.
    pub(super) fn are_enough(&self) -> bool {
        let present = self.presences.iter().filter(|presence| !presence.is_away());
        present.count() >= self.need()
    }

    /// A server is about to be asked.
    pub(super) fn asks(&self, at: usize) {
        let presence = &self.presences[at];
        let asked = presence.asked.load(Ordering::Relaxed);
        if asked == 0 || self.heard(at).nanos() >= asked {
            presence.asked.store(self.now().nanos(), Ordering::Relaxed);
        }
    }

    /// Leaves a server alone that was not heard for `limit`, though it was asked.
    pub(super) fn look(self: &Arc<Self>, at: usize, limit: Duration) {
        let presence = &self.presences[at];
        let asked = presence.asked.load(Ordering::Relaxed);
        if asked == 0 || presence.is_away() {
            return;
        }
        let is_due = Tick::ZERO
            .after(Duration::from_nanos(asked))
            .until(self.now())
            > limit;
        if is_due && self.heard(at).nanos() < asked {
            self.leave_alone(at);
        }
    }

    /// Goes by what a server said, or did not say.
    pub(super) fn note(self: &Arc<Self>, at: usize, said: &Said) {
        match said.is_away() {
            true => self.leave_alone(at),
            false => self.is_back(at),
        }
    }

    fn leave_alone(self: &Arc<Self>, at: usize) {
        let others = self.presences.iter().enumerate();
        let others = others.filter(|(other, presence)| *other != at && !presence.is_away());
        if others.count() < self.need() || self.presences[at].is_away.swap(true, Ordering::AcqRel) {
            return;
        }
        let watchdog = &self.clients[at].core().watchdog;
        watchdog.later(probe(Arc::downgrade(self), at).boxed());
    }

    fn is_back(&self, at: usize) {
        let presence = &self.presences[at];
        presence.asked.store(0, Ordering::Relaxed);
        if presence.is_away.swap(false, Ordering::AcqRel) {
            presence.back.give();
        }
    }

    /// Resolves at `end`, or as soon as the server is back; not while it is away.
    pub(super) async fn waits_for(&self, at: usize, end: Tick) {
        let presence = &self.presences[at];
        let mark = presence.back.mark();
        if presence.is_away() {
            return presence.back.past(mark).await;
        }
        tokio::select! {
            () = presence.back.past(mark) => {}
            () = self.clients[at].core().clock.sleep_until(end) => {}
        }
    }

    fn heard(&self, at: usize) -> Tick {
        let scripts = &self.clients[at].core().scripts;
        scripts.transport.heard(Lane::Command, "")
    }

    fn now(&self) -> Tick {
        self.clients[0].core().clock.now()
    }
}

/// Asks a server that is away until it answers; it keeps nobody from giving up the Redlock.
async fn probe(electorate: Weak<Electorate>, at: usize) {
    while let Some(this) = electorate.upgrade() {
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
            if let Some(this) = electorate.upgrade() {
                this.is_back(at);
            }
            return;
        }
        tokio::time::sleep(PAUSE_MAX.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
