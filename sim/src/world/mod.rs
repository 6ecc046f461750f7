//! A world in which one seed decides everything: who asks for what and when, what goes wrong, in which order.
//!
//! Invariant: the same seed makes the same history, so a world that ends badly can be had again, with all that
//! happened in it, and made smaller.

mod actor;
mod checks;
mod order;
mod plan;
mod trace;
mod wakes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, Redlock};
use parking_lot::Mutex;

use self::actor::Actor;
use self::checks::Checks;
use self::plan::{Fault, LEASE, Plan};
use crate::connections::Peer;
use crate::net::{LaneId, Net, State};
use crate::node::Rewrite;
use crate::process::Process;

/// Every call has ended by then: no wait is longer, with so many holds before it.
const END: Duration = Duration::from_secs(600);

/// After this, nothing is left of a queue that nobody asks about.
const QUEUE: Duration = Duration::from_secs(2 * 3600);

/// By then every server has a vote: it has been up for longer than a lease.
const VOTES: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 21 / 20);

/// Several processes with all kinds of locks on one simulated server, or with a `Redlock` on three or five,
/// and faults between them.
///
/// ```
/// let report = lockset_sim::World::new(1).run();
/// assert_eq!(report.violation, None);
/// assert!(report.grants > 0);
/// ```
#[derive(Clone)]
pub struct World {
    plan: Plan,
    rewrite: Option<Rewrite>,
    wants_history: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.plan.seed)
            .finish_non_exhaustive()
    }
}

/// What became of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The first promise that was broken, if one was.
    pub violation: Option<String>,
    /// Calls that came to their end: acquires, re-entries, downgrades, releases, ends by force. Not counted
    /// are those that were dropped, and the drops of guards.
    pub operations: u64,
    /// What the servers did for them: commands, those inside of scripts not counted.
    pub commands: u64,
    /// Guards that were given out.
    pub grants: u64,
    /// Those of readers that had a hold together with others of their process, as far as it lived to the end.
    pub joins: u64,
    /// Guards whose hold was lost.
    pub losses: u64,
    /// What happened, if it was [asked for](World::with_history).
    pub history: Vec<String>,
}

struct Running {
    net: Arc<Net>,
    processes: Vec<Arc<Process>>,
    /// By process and by server; none of a process that has crashed.
    clients: Vec<Vec<Client>>,
    servers: usize,
    checks: Arc<Mutex<Checks>>,
}

impl World {
    /// The world of this seed. Those whose seed is a multiple of four have no fault in them.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            plan: Plan::draw(seed),
            rewrite: None,
            wants_history: false,
        }
    }

    /// Notes everything that happens, for [`Report::history`].
    #[must_use]
    pub fn with_history(mut self) -> Self {
        self.wants_history = true;
        self
    }

    /// Changes every script before the server runs it: to see whether a defect would be found.
    #[must_use]
    pub fn with_scripts(mut self, change: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.rewrite = Some(Arc::new(change));
        self
    }

    /// Lets everything happen.
    ///
    /// # Panics
    /// Inside of a tokio runtime: a world has its own.
    #[must_use]
    pub fn run(&self) -> Report {
        // What the engine leaves to chance, such as pauses between attempts.
        fastrand::seed(self.plan.seed);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O");
        let report = runtime.block_on(self.happen());
        drop(runtime);
        report
    }

    /// What is left of its plan after everything was taken out that its violation does not need; itself, if it
    /// has none.
    #[must_use]
    pub fn shrink(&self) -> Self {
        let mut smallest = self.clone();
        if smallest.run().violation.is_none() {
            return smallest;
        }
        while let Some(smaller) = smallest.smaller() {
            smallest = smaller;
        }
        smallest
    }

    /// One that is smaller by one step, and still ends badly.
    fn smaller(&self) -> Option<Self> {
        let worlds = self.plan.smaller().map(|plan| Self {
            plan,
            ..self.clone()
        });
        { worlds }.find(|world| world.run().violation.is_some())
    }

    /// Its plan, in words.
    #[must_use]
    pub fn plan(&self) -> String {
        self.plan.to_string()
    }

    async fn happen(&self) -> Report {
        let mut running = self.begin();
        if self.plan.servers() > 1 {
            tokio::time::sleep(VOTES).await;
        }
        let tasks = self.start(&running);
        let faults = self.faults(&mut running);
        let ends = async {
            for task in tasks {
                // Tasks of a process that crashed have been cancelled.
                let _ = task.await;
            }
        };
        let all = async { tokio::join!(faults, ends) };
        if tokio::time::timeout(END, all).await.is_err() {
            running
                .checks
                .lock()
                .violate("some calls do not end".to_owned());
        }
        running.end(!self.plan.faults.is_empty()).await;
        let commands = running.net.with(|state| {
            let servers = 0..self.plan.servers();
            servers.map(|server| state.node(server).commands).sum()
        });
        let mut checks = running.checks.lock();
        Report {
            violation: checks.violation.take(),
            operations: checks.calls,
            commands,
            grants: checks.grants,
            joins: checks.joins,
            losses: checks.losses,
            history: checks.history.take().unwrap_or_default(),
        }
    }

    fn begin(&self) -> Running {
        let servers = self.plan.servers();
        let net = Net::new(servers, self.plan.seed);
        let checks = Checks::new(self.wants_history, !self.plan.faults.is_empty());
        let checks = Arc::new(Mutex::new(checks));
        let seen = Arc::clone(&checks);
        net.with(|state| {
            for (server, clock) in self.plan.clocks.iter().enumerate() {
                state.slots[server].drift_ppm = clock.drift_ppm;
                state.slots[server].offset_us = clock.ahead_us;
                if let Some(rewrite) = &self.rewrite {
                    state.node(server).rewrite_scripts(Arc::clone(rewrite));
                }
            }
            state.delay = Duration::ZERO..=self.plan.delay;
            state.trace = Some(Box::new(move |client, lane, command, reply, keys| {
                let mut checks = seen.lock();
                checks.note(|| {
                    let shown = command.shown();
                    let LaneId { server, lane } = lane;
                    format!("server {server}: {client} {lane:?} {shown} -> {reply:?}")
                });
                if servers == 1 {
                    checks.done(command, reply, keys);
                }
            }));
        });
        // Each begins by its own clock: one that is ahead is no older.
        (0..servers).for_each(|server| net.restart(server, false));
        let processes: Vec<Arc<Process>> = self.plan.tasks.iter().map(|_| Arc::default()).collect();
        let clients = processes.iter().map(|process| {
            let of_server = |server| {
                let id = net.with(State::new_uuid);
                let builder = Client::builder("redis://simulated")
                    .lease(LEASE)
                    .native(self.plan.is_native);
                let client = lockset::simulated::client(builder, &id, |events| {
                    Arc::new(Peer::new(&net, events, server, Arc::clone(process)))
                });
                client.expect("settings that work")
            };
            (0..servers).map(of_server).collect()
        });
        let clients = clients.collect();
        Running {
            net,
            processes,
            clients,
            servers,
            checks,
        }
    }

    fn start(&self, running: &Running) -> Vec<tokio::task::JoinHandle<Option<()>>> {
        let mut tasks = Vec::new();
        for (process, plans) in self.plan.tasks.iter().enumerate() {
            let clients = &running.clients[process];
            let redlock = || Redlock::new(clients.clone()).expect("several servers");
            let redlock = (clients.len() > 1).then(redlock);
            for ops in plans {
                let actor = Actor {
                    process,
                    client: clients[0].clone(),
                    redlock: redlock.clone(),
                    checks: Arc::clone(&running.checks),
                };
                let work = Box::pin(actor.run(ops.clone()));
                tasks.push(running.processes[process].spawn(work));
            }
        }
        tasks
    }

    async fn faults(&self, running: &mut Running) {
        let began = tokio::time::Instant::now();
        for (at, fault) in &self.plan.faults {
            tokio::time::sleep_until(began + *at).await;
            running.checks.lock().note(|| format!("{fault:?}"));
            running.happens(*fault);
        }
        // Then all is well again.
        for process in 0..running.processes.len() {
            running.happens(Fault::Resume(process));
        }
        running.happens(Fault::Heal);
        for server in 0..running.servers {
            running.happens(Fault::Restart(server));
        }
        running.happens(Fault::Delay(self.plan.delay));
    }
}

impl Running {
    /// The clients of a process, by their numbers in the network.
    fn peers(&self, process: usize) -> std::ops::Range<usize> {
        process * self.servers..(process + 1) * self.servers
    }

    fn happens(&mut self, fault: Fault) {
        let net = Arc::clone(&self.net);
        let is_up = |server: usize| net.with(|state| state.slots[server].is_up);
        match fault {
            Fault::Reset(process) => self.peers(process).for_each(|peer| net.reset(peer)),
            Fault::Stall(process, way) => {
                self.peers(process).for_each(|peer| net.stall(peer, way));
            }
            Fault::CutOff(process, server, way) => {
                net.cut_off(self.peers(process).start + server, server, way);
            }
            Fault::Heal => net.heal(),
            Fault::Pause(process) | Fault::Resume(process) if self.clients[process].is_empty() => {}
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
                self.peers(process).for_each(|peer| net.forget(peer, true));
                self.clients[process].clear();
            }
            Fault::Kill(server) => net.kill(server),
            Fault::Restart(server) | Fault::RestartEmpty(server) if is_up(server) => {}
            Fault::Restart(server) => net.restart(server, true),
            Fault::RestartEmpty(server) => net.restart(server, false),
            Fault::Delay(most) => net.with(|state| state.delay = Duration::ZERO..=most),
            Fault::FlushScripts => net.with(|state| {
                (0..self.servers).for_each(|server| state.node(server).forget_scripts());
            }),
        }
    }

    /// Closes all clients; then nothing may be left but what a process that crashed has left, and that for no
    /// longer than a lease.
    async fn end(&mut self, had_faults: bool) {
        let mut is_clean = self.clients.iter().all(|clients| !clients.is_empty());
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
        if !is_clean {
            tokio::time::sleep(3 * LEASE).await;
            self.must_be_gone(|name| name.starts_with("lockset_") || name.starts_with("redisson_"));
            // So long at most is a queue kept in which somebody has died.
            tokio::time::sleep(QUEUE).await;
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // Counters of tokens have lives of their own.
        self.must_be_gone(|name| name.starts_with("redisson_lock_token:"));
    }

    fn must_be_gone(&self, may_stay: impl Fn(&str) -> bool) {
        for server in 0..self.servers {
            self.must_be_gone_at(server, &may_stay);
        }
    }

    fn must_be_gone_at(&self, server: usize, may_stay: impl Fn(&str) -> bool) {
        let (keys, listeners) = self.net.with(|state| {
            // A server does not see the end of a connection on which nothing arrives any more.
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
