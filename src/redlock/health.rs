//! The servers of a Redlock that are down: dead, silent or out of reach, so that its calls skip them.
//!
//! The finding of one call holds for all. A server is down when it cannot be reached, when it does not answer a vote in
//! time, or when a request to it has had no reply at all for that time. Short holds never wait for a minority, so their
//! votes alone would not show it. Invariants: one task asks a server that is down until it answers, and then all holds
//! that lack it are notified; the servers that are not skipped can always make a majority.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::tally::VoteOutcome;
use crate::client::Client;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

/// A server that is down is asked again after a random time of up to this.
const PROBE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The health of all servers of a Redlock.
#[derive(Debug)]
pub(super) struct Health {
    clients: Arc<[Client]>,
    quorum: usize,
    /// One entry per client.
    servers: Box<[ServerHealth]>,
}

#[derive(Debug, Default)]
struct ServerHealth {
    is_down: AtomicBool,
    /// The time of the first request since its last reply, in nanoseconds of the clock; 0 without one.
    asked: AtomicU64,
    /// Given when it is up again.
    up: Hint,
}

impl ServerHealth {
    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }
}

impl Health {
    pub(super) fn new(clients: Arc<[Client]>, quorum: usize) -> Arc<Self> {
        let servers = clients.iter().map(|_| ServerHealth::default()).collect();
        Arc::new(Self {
            clients,
            quorum,
            servers,
        })
    }

    pub(super) fn is_down(&self, server: usize) -> bool {
        self.servers[server].is_down()
    }

    /// Whether the servers that are not down can make a majority.
    pub(super) fn is_majority_up(&self) -> bool {
        let up = self.servers.iter().filter(|server| !server.is_down());
        up.count() >= self.quorum
    }

    /// Notes that a server is about to be asked.
    pub(super) fn note_request(&self, server: usize) {
        let health = &self.servers[server];
        let asked = health.asked.load(Ordering::Relaxed);
        if asked == 0 || self.last_reply(server).nanos() >= asked {
            health.asked.store(self.now().nanos(), Ordering::Relaxed);
        }
    }

    /// Marks a server down if it was asked and has been silent for `timeout`.
    pub(super) fn check_silence(self: &Arc<Self>, server: usize, timeout: Duration) {
        let health = &self.servers[server];
        let asked = health.asked.load(Ordering::Relaxed);
        if asked == 0 || health.is_down() {
            return;
        }
        let asked_at = Tick::ZERO.after(Duration::from_nanos(asked));
        let is_due = asked_at.until(self.now()) > timeout;
        if is_due && self.last_reply(server).nanos() < asked {
            self.mark_down(server);
        }
    }

    /// Takes over the outcome of a vote.
    pub(super) fn note_outcome(self: &Arc<Self>, server: usize, outcome: &VoteOutcome) {
        if outcome.is_unreachable() {
            self.mark_down(server);
        } else {
            self.mark_up(server);
        }
    }

    fn mark_down(self: &Arc<Self>, server: usize) {
        let others = self.servers.iter().enumerate();
        let others_up = others.filter(|(other, health)| *other != server && !health.is_down());
        let is_majority = others_up.count() >= self.quorum;
        if !is_majority || self.servers[server].is_down.swap(true, Ordering::AcqRel) {
            return;
        }
        let watchdog = &self.clients[server].core().watchdog;
        watchdog.drive(probe(Arc::downgrade(self), server).boxed());
    }

    fn mark_up(&self, server: usize) {
        let health = &self.servers[server];
        health.asked.store(0, Ordering::Relaxed);
        if health.is_down.swap(false, Ordering::AcqRel) {
            health.up.notify();
        }
    }

    /// Resolves at `end`, or as soon as the server is up again; never while it is down.
    pub(super) async fn wait_while_down(&self, server: usize, end: Tick) {
        let health = &self.servers[server];
        let mark = health.up.mark();
        if health.is_down() {
            return health.up.changed_since(mark).await;
        }
        tokio::select! {
            biased;
            () = health.up.changed_since(mark) => {}
            () = self.clients[server].core().clock.sleep_until(end) => {}
        }
    }

    fn last_reply(&self, server: usize) -> Tick {
        let scripts = &self.clients[server].core().scripts;
        scripts.transport.last_reply_at(Lane::Command, "")
    }

    fn now(&self) -> Tick {
        self.clients[0].core().clock.now()
    }
}

/// Asks a server that is down until it answers. Keeps neither the Redlock nor its clients alive.
async fn probe(health: Weak<Health>, server: usize) {
    while let Some(this) = health.upgrade() {
        let client = this.clients[server].clone();
        drop(this);
        let core = client.core();
        let closing = core.closing.mark();
        let is_up = core.is_closed()
            || tokio::select! {
                biased;
                () = core.closing.changed_since(closing) => true,
                // An answer that refuses is reported to calls that ask.
                answer = client.is_served() => !answer.is_err_and(|error| error.is_io()),
            };
        drop(client);
        if is_up {
            if let Some(this) = health.upgrade() {
                this.mark_up(server);
            }
            return;
        }
        tokio::time::sleep(PROBE_PAUSE_MAX.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
