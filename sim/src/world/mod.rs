//! A world in which one seed decides everything: who asks for what and when, what goes wrong, in which order.
//!
//! Invariant: the same seed makes the same history, so a world that ends badly can be had again, with all that
//! happened in it, and made smaller.

mod actor;
mod checks;
mod plan;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockset::Client;
use parking_lot::Mutex;

use self::actor::Actor;
use self::checks::Checks;
use self::plan::{Fault, LEASE, Plan};
use crate::connections::Peer;
use crate::net::Net;
use crate::node::Rewrite;
use crate::process::Process;

/// Every call has ended by then: no wait is longer, with so many holds before it.
const END: Duration = Duration::from_secs(600);

/// After this, nothing is left of a queue that nobody asks about.
const QUEUE: Duration = Duration::from_secs(2 * 3600);

/// Several processes with all kinds of locks on one simulated server, and faults between them.
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
    /// Calls that were made.
    pub operations: usize,
    /// Guards that were given out.
    pub grants: u64,
    /// Guards whose hold was lost.
    pub losses: u64,
    /// What happened, if it was [asked for](World::with_history).
    pub history: Vec<String>,
}

struct Running {
    net: Arc<Net>,
    processes: Vec<Arc<Process>>,
    clients: Vec<Option<Client>>,
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
        let mut checks = running.checks.lock();
        Report {
            violation: checks.violation.take(),
            operations: self.plan.operations(),
            grants: checks.grants,
            losses: checks.losses,
            history: checks.history.take().unwrap_or_default(),
        }
    }

    fn begin(&self) -> Running {
        let net = Net::new(1, self.plan.seed);
        let checks = Arc::new(Mutex::new(Checks::new(self.wants_history)));
        let noting = self.wants_history.then(|| Arc::clone(&checks));
        net.with(|state| {
            state.slots[0].drift_ppm = self.plan.drift_ppm;
            state.delay = Duration::ZERO..=self.plan.delay;
            if let Some(rewrite) = &self.rewrite {
                state.node(0).rewrite_scripts(Arc::clone(rewrite));
            }
            if let Some(checks) = noting {
                state.trace = Some(Box::new(move |_, client, lane, command, reply| {
                    let shown = || {
                        format!(
                            "server: {client} {:?} {} -> {reply:?}",
                            lane.lane,
                            command.shown()
                        )
                    };
                    checks.lock().note(shown);
                }));
            }
        });
        let processes: Vec<Arc<Process>> = self.plan.tasks.iter().map(|_| Arc::default()).collect();
        let clients = processes.iter().map(|process| {
            let id = net.with(crate::net::State::new_uuid);
            let builder = Client::builder("redis://simulated").lease(LEASE);
            let client = lockset::simulated::client(builder, &id, |events| {
                Arc::new(Peer::new(&net, events, 0, Arc::clone(process)))
            });
            Some(client.expect("settings that work"))
        });
        let clients = clients.collect();
        Running {
            net,
            processes,
            clients,
            checks,
        }
    }

    fn start(&self, running: &Running) -> Vec<tokio::task::JoinHandle<Option<()>>> {
        let mut tasks = Vec::new();
        for (process, plans) in self.plan.tasks.iter().enumerate() {
            for ops in plans {
                let actor = Actor {
                    process,
                    client: running.clients[process].clone().expect("made"),
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
        running.happens(Fault::Restart);
        running.happens(Fault::Delay(self.plan.delay));
    }
}

impl Running {
    fn happens(&mut self, fault: Fault) {
        let net = &self.net;
        match fault {
            Fault::Reset(process) => net.reset(process),
            Fault::Stall(process, way) => net.stall(process, way),
            Fault::CutOff(process, way) => net.cut_off(process, 0, way),
            Fault::Heal => net.heal(),
            Fault::Pause(process) if self.clients[process].is_some() => {
                net.pause(process);
                self.processes[process].pause();
            }
            Fault::Resume(process) if self.clients[process].is_some() => {
                self.processes[process].resume();
                net.resume(process);
            }
            Fault::Pause(_) | Fault::Resume(_) => {}
            Fault::Crash(process) => {
                self.checks.lock().crashed(process);
                self.processes[process].end();
                net.forget(process, true);
                self.clients[process] = None;
            }
            Fault::Kill => net.kill(0),
            Fault::Restart if net.with(|state| state.slots[0].is_up) => {}
            Fault::Restart => net.restart(0, true),
            Fault::Delay(most) => net.with(|state| state.delay = Duration::ZERO..=most),
            Fault::FlushScripts => net.with(|state| state.node(0).forget_scripts()),
        }
    }

    /// Closes all clients; then nothing may be left but what a process that crashed has left, and that for no
    /// longer than a lease.
    async fn end(&mut self, had_faults: bool) {
        let mut is_clean = self.clients.iter().all(Option::is_some);
        for client in self.clients.iter_mut().filter_map(Option::take) {
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
        let (keys, listeners) = self.net.with(|state| {
            // A server does not see the end of a connection on which nothing arrives any more.
            let seen_ended = !state.has_stalled();
            let node = state.node(0);
            let listeners = if seen_ended { node.subscriptions() } else { 0 };
            (node.store.keys(), listeners)
        });
        let names = keys
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned());
        let left: Vec<String> = names.filter(|name| !may_stay(name)).collect();
        if !left.is_empty() || listeners > 0 {
            let what = format!("{left:?} and {listeners} subscriptions are left at the server");
            self.checks.lock().violate(what);
        }
    }
}
