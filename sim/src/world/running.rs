//! A world while it happens: its processes and servers, what goes wrong, and what has to be left of it.

use std::sync::Arc;
use std::time::Duration;

use lockset::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::checks::Checks;
use super::interrupt::Interrupt;
use super::left::lock_of;
use super::names::{lock_names, names, semaphore_names};
use super::permits::Permits;
use super::plan::{Fault, Kind, LEASE};
use super::rounds::is_of_rounds;
use crate::deployment::{Deployment, Layout};
use crate::process::Process;

/// After this time an abandoned queue is gone.
const QUEUE: Duration = Duration::from_secs(2 * 3600);

/// A call that is not polled may stop others for this long: for a lease and some times of a reply, and for the time of
/// one fault more.
const STOPPED_MAX: Duration = Duration::from_secs(20);

pub(super) struct Running {
    pub(super) processes: Vec<Arc<Process>>,
    /// By process and by server; none of a process that has crashed.
    pub(super) clients: Vec<Vec<Client>>,
    pub(super) deployment: Arc<Deployment>,
    pub(super) checks: Arc<Mutex<Checks>>,
    pub(super) failovers: u64,
    /// Of a single server, without its data.
    pub(super) restarts: u64,
    /// Whether every replica was connected to its primary all the time.
    pub(super) kept_up: bool,
    /// By process and task.
    pub(super) interrupts: Vec<Vec<Arc<Interrupt>>>,
    /// A call that is not polled and has no guard: its process and task, and since when.
    pub(super) left: Option<(usize, usize, Instant)>,
    /// By process and task, when each of them ended.
    pub(super) ended: Arc<Mutex<Vec<(usize, usize, Instant)>>>,
}

/// Does this after a time.
fn later(span: Duration, then: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(span).await;
        then();
    });
}

/// Counters of tokens have lives of their own, and a semaphore stays. So do latches and barriers.
fn stays(name: &str) -> bool {
    let is_token = name.starts_with("redisson_lock_token:");
    let is_of = |semaphore: &str| name == semaphore || name == format!("{{{semaphore}}}:timeout");
    is_token || is_of_rounds(name) || semaphore_names().any(|semaphore| is_of(&semaphore))
}

impl Running {
    /// The clients of a process, by their numbers in the network.
    fn peers(&self, process: usize) -> std::ops::Range<usize> {
        let each = self.deployment.layout.clients();
        process * each..(process + 1) * each
    }

    pub(super) fn happens(&mut self, fault: Fault) {
        let deployment = Arc::clone(&self.deployment);
        let layout = deployment.layout;
        let net = Arc::clone(&deployment.net);
        let is_up = |server: usize| net.with(|state| state.slots[server].is_up);
        match fault {
            Fault::Reset(process) => self.peers(process).for_each(|peer| net.reset(peer)),
            Fault::Stall(process, way) => {
                self.peers(process).for_each(|peer| net.stall(peer, way));
            }
            Fault::CutOff(process, server, way) => {
                let peers = self.peers(process);
                // One client for each server, or one for all.
                let peer = if peers.len() > 1 {
                    peers.start + server
                } else {
                    peers.start
                };
                net.cut_off(peer, server, way);
            }
            Fault::Heal => net.heal(),
            Fault::Pause(process) | Fault::Resume(process) | Fault::PauseFor(process, _)
                if self.clients[process].is_empty() => {}
            Fault::Pause(process) => {
                self.peers(process).for_each(|peer| net.pause(peer));
                self.processes[process].pause();
            }
            Fault::Resume(process) => {
                self.processes[process].resume();
                self.peers(process).for_each(|peer| net.resume(peer));
            }
            Fault::Crash(process) => {
                self.checks.lock().crashed(process);
                self.processes[process].end();
                self.peers(process).for_each(|peer| net.forget(peer));
                self.clients[process].clear();
            }
            Fault::Shutdown(process) => self.shut_down(process),
            Fault::Kill(server) => net.kill(server),
            Fault::Restart(server) | Fault::RestartEmpty(server) if is_up(server) => {}
            Fault::Restart(server) => net.restart(server, true),
            Fault::RestartEmpty(server) => {
                net.restart(server, false);
                if matches!(layout, Layout::Primary { .. }) {
                    self.restarts += 1;
                    self.checks.lock().loses_data();
                }
            }
            Fault::Delay(most) => net.with(|state| state.delay = Duration::ZERO..=most),
            Fault::FlushScripts => net.with(|state| {
                (0..layout.servers()).for_each(|server| state.node(server).forget_scripts());
            }),
            Fault::RestartAll => {
                (0..layout.servers()).for_each(|server| self.happens(Fault::Restart(server)));
            }
            fault => self.happens_for_a_time(fault),
        }
    }

    /// Those faults that end by themselves, and those of one delivery or one call.
    fn happens_for_a_time(&mut self, fault: Fault) {
        let net = Arc::clone(&self.deployment.net);
        match fault {
            Fault::BreakNext => net.break_next(),
            Fault::DelayNext(span) => net.delay_next(span),
            Fault::PauseFor(process, span) => {
                self.happens(Fault::Pause(process));
                let (paused, peers) = (Arc::clone(&self.processes[process]), self.peers(process));
                later(span, move || {
                    paused.resume();
                    peers.for_each(|peer| net.resume(peer));
                });
            }
            Fault::KillFor(server, span) => {
                net.kill(server);
                later(span, move || net.restart(server, true));
            }
            Fault::DropCall(process, task) => self.interrupts[process][task].drop_call(),
            Fault::LeaveCall(process, task, span) => {
                let interrupt = Arc::clone(&self.interrupts[process][task]);
                interrupt.leave_call();
                let is_free = !self.checks.lock().has_guard(process);
                self.left = is_free.then(|| (process, task, Instant::now()));
                later(span, move || interrupt.poll_again());
            }
            fault => self.happens_among_servers(fault),
        }
    }

    /// Those faults that servers have which belong together.
    fn happens_among_servers(&mut self, fault: Fault) {
        let deployment = Arc::clone(&self.deployment);
        let layout = deployment.layout;
        let net = Arc::clone(&deployment.net);
        match fault {
            Fault::Lag(most) => net.with(|state| state.lag = Duration::ZERO..=most),
            Fault::KillPrimary(shard) => net.kill(deployment.primary(shard)),
            Fault::Sever(shard) => {
                self.kept_up = false;
                let primary = deployment.primary(shard);
                let others = (0..layout.data_servers()).filter(|other| *other != primary);
                others.for_each(|other| net.split(primary, other));
            }
            Fault::Promote(shard) => self.promote(shard),
            Fault::Learn(server) => deployment.learn(server),
            Fault::Mislead(sentinel) => {
                if let Layout::Sentinel { sentinels, .. } = layout {
                    deployment.mislead(layout.data_servers() + sentinel % sentinels);
                }
            }
            Fault::Settle => deployment.settle(),
            Fault::BeginMove(kind, lock) => {
                let kind = [Kind::Reentrant, Kind::Fair, Kind::Write][kind];
                let name = names(kind, lock).remove(0);
                if deployment.begin_move(&name) {
                    self.checks.lock().wakes.moves(&name);
                }
            }
            Fault::MoveKeys(most) => self.moves(|deployment| deployment.move_keys(most)),
            Fault::EndMove => self.moves(Deployment::end_move),
            Fault::Deny(process, right) => {
                self.checks.lock().denied(right);
                net.deny(process, right);
            }
            Fault::Allow(process, right) => net.allow(process, right),
            Fault::MinReplicas(least) => net.with(|state| state.node(0).min_replicas = least),
            Fault::CutReplica(replica) => net.split(0, replica),
            Fault::HealReplicas => net.heal_servers(),
            Fault::Look => self.checks.lock().look(&deployment),
            // Of clients and the network.
            _ => {}
        }
    }

    /// Takes a step of a move: waiters for the moving locks have to find out.
    fn moves(&self, step: impl FnOnce(&Deployment)) {
        let deployment = &self.deployment;
        let moving = lock_names().filter(|name| deployment.moves(name));
        moving.for_each(|name| self.checks.lock().wakes.moves(&name));
        step(deployment);
    }

    fn promote(&mut self, shard: usize) {
        let deployment = &self.deployment;
        let Some((old, new)) = deployment.promote(shard) else {
            return;
        };
        self.failovers += 1;
        let lacks = lock_names().filter(|name| !deployment.agree(name, [old, new]));
        let lacks: Vec<String> = lacks.collect();
        let mut checks = self.checks.lock();
        checks.note(|| format!("server {new} takes over from {old}, and lacks {lacks:?}"));
        checks.promoted(&lacks, deployment, self.kept_up);
    }

    /// A call that is not polled, and has no guard, stops no other for longer than the bound.
    pub(super) fn none_was_stopped(&self) {
        let Some((process, task, since)) = self.left else {
            return;
        };
        let ended = self.ended.lock();
        let others = ended
            .iter()
            .filter(|ended| (ended.0, ended.1) != (process, task));
        let waited = others.map(|(.., at)| at.saturating_duration_since(since));
        if let Some(waited) = waited.max().filter(|waited| *waited > STOPPED_MAX) {
            let what = format!("calls are stopped for {waited:?} by one that is not polled");
            self.checks.lock().violate(what);
        }
    }

    /// Closes all clients; then nothing may be left but what a process that crashed has left, and that for no
    /// longer than a lease.
    pub(super) async fn end(&mut self, had_faults: bool) {
        // A failover may bring back what was released.
        let mut is_clean =
            self.failovers == 0 && self.clients.iter().all(|clients| !clients.is_empty());
        is_clean &= !self.checks.lock().leaves_leases;
        // A client does not try to release them for as long.
        is_clean &= !self.deployment.had_stuck_move();
        for client in std::mem::take(&mut self.clients).into_iter().flatten() {
            self.checks.lock().joins += client.stats().totals.read.in_memory;
            let closed = client.shutdown().await;
            let mut checks = self.checks.lock();
            checks.note(|| format!("a client is closed: {closed:?}"));
            if let Err(error) = closed {
                // After an outage longer than a lease it may not know what became of an attempt, and says so.
                is_clean = false;
                if !(had_faults && error.is_io()) {
                    checks.violate(format!("a client does not close: {error}"));
                }
            }
        }
        self.deployment.net.all_in_time().await;
        if !is_clean {
            tokio::time::sleep(3 * LEASE).await;
            self.must_be_gone(|name| {
                let is_helper = name.starts_with("lockset_") || name.starts_with("redisson_");
                is_helper || stays(name)
            });
            // A queue with a dead waiter is kept for at most this long.
            tokio::time::sleep(QUEUE).await;
        } else {
            // The last releases are on their way to replicas.
            let lag = self.deployment.net.with(|state| *state.lag.end());
            tokio::time::sleep(Duration::from_millis(200) + lag).await;
            let checks = Arc::clone(&self.checks);
            self.no_permit_is_taken();
            self.must_be_gone(|name| stays(name) || checks.lock().left.may_have(lock_of(name)));
            let longest = self.checks.lock().left.longest();
            tokio::time::sleep(longest).await;
        }
        self.must_be_gone(stays);
    }

    /// All permits are free again.
    fn no_permit_is_taken(&self) {
        if matches!(self.deployment.layout, Layout::Apart(1)) {
            let net = &self.deployment.net;
            let taken = net.with(|state| Permits::are_taken(&state.node(0).store));
            taken
                .into_iter()
                .for_each(|what| self.checks.lock().violate(what));
        }
    }

    fn must_be_gone(&self, may_stay: impl Fn(&str) -> bool) {
        for server in 0..self.deployment.layout.servers() {
            self.must_be_gone_at(server, &may_stay);
        }
    }

    fn must_be_gone_at(&self, server: usize, may_stay: impl Fn(&str) -> bool) {
        let (keys, listeners) = self.deployment.net.with(|state| {
            // A server does not see the end of a stalled connection.
            let seen_ended = !state.has_stalled();
            let node = state.node(server);
            let listeners = if seen_ended { node.subscriptions() } else { 0 };
            (node.store.keys(), listeners)
        });
        let names = keys
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned());
        let left: Vec<String> = names.filter(|name| !may_stay(name)).collect();
        if !left.is_empty() || listeners > 0 {
            let what =
                format!("{left:?} and {listeners} subscriptions are left at server {server}");
            self.checks.lock().violate(what);
        }
    }
}
