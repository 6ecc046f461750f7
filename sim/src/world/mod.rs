//! A world that follows from one seed: its calls and their times, its faults, and their order.
//!
//! Invariant: the same seed makes the same history, so a world that ends badly can be had again, with all that
//! happened in it, and made smaller.

mod actor;
mod checks;
mod forgotten;
mod held;
mod interrupt;
mod left;
mod names;
mod order;
mod permits;
mod plan;
mod rounds;
mod running;
mod shutdown;
mod trace;
mod wakes;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, ClientBuilder, Owner, Redlock};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::actor::Actor;
use self::checks::Checks;
use self::interrupt::Interrupt;
use self::names::lock_names;
use self::plan::{Fault, LEASE, OWNERS, Plan};
use self::running::Running;
use crate::clients::Made;
use crate::deployment::{Deployment, Layout};
use crate::net::{Moment, Net, State};
use crate::node::Rewrite;
use crate::process::Process;
use crate::words::Words;

/// Every call has ended before this time: no wait is longer, with this number of holds before it.
const END: Duration = Duration::from_secs(600);

/// Every server has a vote after this time: it has been up for longer than a lease, and says up to two seconds less.
const VOTES: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 21 / 20 + 2_000);

/// The lane of a connection with this name: "lockset", the lane, and the id of its client.
fn lane_of(name: &[u8]) -> Cow<'_, str> {
    let lane = name.split(|byte| *byte == b'-').nth(1);
    String::from_utf8_lossy(lane.unwrap_or(b"-"))
}

/// Several processes with all kinds of locks on one simulated server, or with a `Redlock` on three or five, behind
/// sentinels or in a cluster, and faults between them.
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

/// The result of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The first promise that was broken, if one was.
    pub violation: Option<String>,
    /// Calls that came to their end: acquires, re-entries, downgrades, releases, ends by force. Dropped calls and drops
    /// of guards are not counted.
    pub operations: u64,
    /// The servers' commands for them. Commands inside scripts do not count, nor do commands that set up a connection.
    pub commands: u64,
    /// Guards that were given out.
    pub grants: u64,
    /// Guards of readers that shared a hold with others of their process, as far as the process lived to the end.
    pub joins: u64,
    /// Guards whose hold was lost.
    pub losses: u64,
    /// Lost guards that were held for as long as their handle allows.
    pub ended: u64,
    /// Holds that stayed at the server for as long as their handle asks for, though their guard was released.
    pub kept: u64,
    /// Keys that were claimed for a window.
    pub claims: u64,
    /// Guards of permits that were given out.
    pub permits: u64,
    /// Waits for latches and at barriers that ended because the latch was open, or all parties had come.
    pub rounds: u64,
    /// Replicas that took over.
    pub failovers: u64,
    /// Restarts of a single server that lost its data.
    pub restarts: u64,
    /// Commands that a single server refused, as their user may not do them.
    pub denials: u64,
    /// Commands that it refused for want of replicas.
    pub shortages: u64,
    /// Calls that ended as too few replicas had confirmed their grant.
    pub unconfirmed: u64,
    /// How often a lock had two holders, as the replica that took over had not received the grant of one of them, or
    /// the server had lost it: what a failover or a restart without data may cost, for at most a lease.
    pub overlaps: u64,
    /// For how long at most.
    pub longest_overlap: Duration,
    /// The history, if it was [asked for](World::with_history).
    pub history: Vec<String>,
}

/// One for each task.
fn interrupts(tasks: &[Vec<plan::Op>]) -> Vec<Arc<Interrupt>> {
    tasks.iter().map(|_| Arc::default()).collect()
}

/// The text of a violation without its time, its lock and its numbers.
fn kind_of(violation: &str) -> String {
    let words = violation.split_whitespace().skip(2);
    let kind = words.filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()));
    kind.collect::<Vec<_>>().join(" ")
}

impl World {
    /// The world of this seed. Those whose seed is a multiple of four have no fault in them.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::of_plan(Plan::draw(seed))
    }

    /// The world of this seed on a primary with replicas that sentinels watch. Where the seed is a multiple of four
    /// nothing goes wrong; one more than that, nothing but failovers.
    ///
    /// ```
    /// let report = lockset_sim::World::behind_sentinels(1).run();
    /// assert_eq!(report.violation, None);
    /// assert!(report.failovers > 0);
    /// ```
    #[must_use]
    pub fn behind_sentinels(seed: u64) -> Self {
        let layout = Layout::Sentinel {
            replicas: 1 + usize::from(seed.is_multiple_of(3)),
            sentinels: 3,
        };
        Self::deployed(seed, layout)
    }

    /// The world of this seed in a cluster of two or three shards. Where the seed is a multiple of four nothing goes
    /// wrong, but slots move; one more than that, nothing but failovers besides.
    ///
    /// ```
    /// let report = lockset_sim::World::in_cluster(4).run();
    /// assert_eq!(report.violation, None);
    /// ```
    #[must_use]
    pub fn in_cluster(seed: u64) -> Self {
        let shards = 2 + usize::from(seed.is_multiple_of(3));
        Self::deployed(seed, Layout::Cluster { shards })
    }

    /// The world of this seed on one server with up to two replicas, whose users lack rights. Where the seed is a
    /// multiple of four nothing goes wrong. In the others, rights are taken away and restored, the server restarts
    /// without its data, and replicas it demands are cut off; if the seed is one more, only one of these.
    ///
    /// ```
    /// let report = lockset_sim::World::on_one_server(1).run();
    /// assert_eq!(report.violation, None);
    /// ```
    #[must_use]
    pub fn on_one_server(seed: u64) -> Self {
        Self::of_plan(Plan::draw_on_one_server(seed))
    }

    fn deployed(seed: u64, layout: Layout) -> Self {
        Self::of_plan(Plan::draw_deployed(seed, layout))
    }

    /// Small worlds without faults: two processes, with two calls of different kinds and terms at a time. One for each
    /// pair of these, in one process and in two.
    pub fn pairs() -> impl Iterator<Item = Self> {
        Plan::pairs().map(Self::of_plan)
    }

    fn of_plan(plan: Plan) -> Self {
        Self {
            plan,
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
        self.run_noting_moments().0
    }

    fn run_noting_moments(&self) -> (Report, Vec<Moment>) {
        // Random choices of the engine, such as pauses between attempts.
        fastrand::seed(self.plan.seed);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O");
        let report = runtime.block_on(self.happen());
        drop(runtime);
        report
    }

    /// The smallest plan that still has a violation of this kind; itself, if it has none.
    #[must_use]
    pub fn shrink(&self) -> Self {
        let mut smallest = self.clone();
        let Some(violation) = smallest.run().violation else {
            return smallest;
        };
        let kind = kind_of(&violation);
        while let Some(smaller) = smallest.smaller(&kind) {
            smallest = smaller;
        }
        smallest
    }

    /// Tries to remove each part once, in addition to earlier removals; `None` if all of them are needed.
    fn smaller(&self, kind: &str) -> Option<Self> {
        let mut smallest = None;
        let mut part = 0;
        loop {
            let known: &Self = smallest.as_ref().unwrap_or(self);
            let Some(plan) = known.plan.smaller().nth(part) else {
                return smallest;
            };
            let smaller = Self {
                plan,
                ..self.clone()
            };
            let violation = smaller.run().violation;
            if violation.is_some_and(|violation| kind_of(&violation) == kind) {
                smallest = Some(smaller);
            } else {
                part += 1;
            }
        }
    }

    /// Its plan, in words.
    #[must_use]
    pub fn plan(&self) -> String {
        self.plan.to_string()
    }

    async fn happen(&self) -> (Report, Vec<Moment>) {
        let mut running = self.begin().await;
        if self.plan.is_redlock() {
            tokio::time::sleep(VOTES).await;
        }
        let tasks = self.start(&running);
        let ends = async {
            for task in tasks {
                // Tasks of a process that crashed have been cancelled.
                let _ = task.await;
            }
        };
        let all = async {
            if self.plan.before.is_empty() {
                tokio::join!(self.faults(&mut running), ends);
            } else {
                tokio::select! {
                    () = ends => {}
                    () = self.faults_before_deliveries(&mut running) => {}
                }
            }
        };
        if tokio::time::timeout(END, all).await.is_err() {
            running
                .checks
                .lock()
                .violate("some calls do not end".to_owned());
        }
        running.deployment.net.go_on();
        running.none_was_stopped();
        let take_moments = |state: &mut State| state.moments.noted.take();
        let moments = running.deployment.net.with(take_moments);
        let moments = moments.unwrap_or_default();
        let had_faults = !self.plan.is_quiet();
        running.end(had_faults).await;
        let commands = running.deployment.net.with(|state| {
            let servers = 0..self.plan.layout.servers();
            servers.map(|server| state.node(server).commands).sum()
        });
        let refused = |state: &mut State| (state.node(0).denials, state.node(0).shortages);
        let (denials, shortages) = running.deployment.net.with(refused);
        let mut checks = running.checks.lock();
        let report = Report {
            violation: checks.violation.take(),
            operations: checks.calls,
            commands,
            grants: checks.grants,
            joins: checks.joins,
            losses: checks.losses,
            ended: checks.ended,
            kept: checks.left.holds,
            claims: checks.left.claimed,
            permits: checks.permits.grants,
            rounds: checks.rounds.ended,
            failovers: running.failovers,
            restarts: running.restarts,
            denials,
            shortages,
            unconfirmed: checks.unconfirmed,
            overlaps: checks.forgotten.count,
            longest_overlap: checks.forgotten.longest,
            history: checks.history.take().unwrap_or_default(),
        };
        (report, moments)
    }

    /// As [`run`](Self::run). Also returns this world with one fault more, after those that it has: one world for each
    /// moment at which something can go wrong, and for each fault that is possible then.
    #[must_use]
    pub fn explore(&self) -> (Report, Vec<Self>) {
        let (report, moments) = self.run_noting_moments();
        let plans = self.plan.with_one_fault_more(&moments);
        let world = |plan| Self {
            plan,
            ..self.clone()
        };
        (report, plans.map(world).collect())
    }

    async fn begin(&self) -> Running {
        let layout = self.plan.layout;
        let servers = layout.servers();
        let net = Net::new(servers, self.plan.seed);
        let (is_quiet, is_safe) = (self.plan.is_quiet(), self.plan.is_safe());
        let mut checks = Checks::new(self.wants_history, !is_quiet, !is_safe);
        checks.polls = self.plan.polls();
        let checks = Arc::new(Mutex::new(checks));
        net.with(|state| {
            for (server, clock) in self.plan.clocks.iter().enumerate() {
                state.slots[server].drift_ppm = clock.drift_ppm;
                state.slots[server].offset_us = clock.ahead_us;
                if let Some(rewrite) = &self.rewrite {
                    state.node(server).rewrite_scripts(Arc::clone(rewrite));
                }
            }
            state.delay = Duration::ZERO..=self.plan.delay;
        });
        // Each begins by its own clock: one that is ahead is no older.
        (0..servers).for_each(|server| net.restart(server, false));
        for (process, right) in &self.plan.lacking {
            checks.lock().denied(*right);
            net.deny(*process, *right);
        }
        let deployment = Arc::new(Deployment::new(&net, layout));
        self.trace(&deployment, &checks);
        let processes: Vec<Arc<Process>> = self.plan.tasks.iter().map(|_| Arc::default()).collect();
        let mut clients = Vec::new();
        for process in &processes {
            clients.push(self.clients(&deployment, process).await);
        }
        // A fault cannot happen at an earlier one.
        net.with(|state| state.moments.noted = Some(Vec::new()));
        Running {
            processes,
            clients,
            deployment,
            checks,
            failovers: 0,
            restarts: 0,
            kept_up: true,
            interrupts: self
                .plan
                .tasks
                .iter()
                .map(|of_process| interrupts(of_process))
                .collect(),
            left: None,
            ended: Arc::default(),
        }
    }

    /// Has the checks see each command.
    fn trace(&self, deployment: &Arc<Deployment>, checks: &Arc<Mutex<Checks>>) {
        let (deployed, seen) = (Arc::downgrade(deployment), Arc::clone(checks));
        let layout = self.plan.layout;
        let see = move |client, server, name: &[u8], command: &Words, reply: &_, keys: &_| {
            let mut checks = seen.lock();
            checks.note(|| {
                let (lane, shown) = (lane_of(name), command.shown());
                format!("server {server}: {client} {lane} {shown} -> {reply:?}")
            });
            let Some(deployed) = deployed.upgrade() else {
                return;
            };
            match layout {
                Layout::Apart(1) | Layout::Primary { .. } => checks.done(command, reply, keys),
                Layout::Apart(_) => {}
                _ if deployed.is_deposed(server) => {
                    let named = lock_names().filter(|name| command.names(name.as_bytes()));
                    named.for_each(|name| checks.forgotten.forgets(&name));
                }
                _ => checks.look_for_late_wakes(keys, |name| deployed.is_at(name, server)),
            }
        };
        deployment
            .net
            .with(|state| state.trace = Some(Box::new(see)));
    }

    /// The clients of a process: one, or one for each server of a `Redlock`.
    async fn clients(&self, deployment: &Deployment, process: &Arc<Process>) -> Vec<Client> {
        let settings = |builder: ClientBuilder| {
            let builder = builder.lease(LEASE).native(self.plan.is_native);
            // Nobody looks.
            let builder = builder.announce_every(Duration::MAX);
            // Then what goes wrong may go wrong while they connect.
            match self.plan.layout {
                Layout::Apart(_) => builder.lazy(),
                _ => builder,
            }
        };
        let mut clients = Vec::new();
        for url in deployment.urls() {
            let made = Made::new(&deployment.net, process, &url, settings).await;
            clients.push(made.client.expect("servers that are there"));
        }
        clients
    }

    fn start(&self, running: &Running) -> Vec<JoinHandle<Option<()>>> {
        let mut tasks = Vec::new();
        for (process, plans) in self.plan.tasks.iter().enumerate() {
            let clients = &running.clients[process];
            let owners: [Owner; OWNERS] = std::array::from_fn(|_| Owner::new());
            let redlock = || Redlock::new(clients.clone()).expect("several servers");
            let redlock = (clients.len() > 1).then(redlock);
            for (task, ops) in plans.iter().enumerate() {
                let actor = Actor {
                    process,
                    client: clients[0].clone(),
                    redlock: redlock.clone(),
                    checks: Arc::clone(&running.checks),
                    deployment: Arc::clone(&running.deployment),
                    owners: owners.clone(),
                    interrupt: Arc::clone(&running.interrupts[process][task]),
                };
                let (ops, ended) = (ops.clone(), Arc::clone(&running.ended));
                let work = Box::pin(async move {
                    actor.run(ops).await;
                    ended.lock().push((process, task, Instant::now()));
                });
                tasks.push(running.processes[process].spawn(work));
            }
        }
        tasks
    }

    /// Never ends.
    async fn faults_before_deliveries(&self, running: &mut Running) {
        let net = Arc::clone(&running.deployment.net);
        for (number, fault) in &self.plan.before {
            net.stop_before(*number).await;
            running.checks.lock().note(|| format!("{fault:?}"));
            running.happens(*fault);
            net.go_on();
        }
        std::future::pending().await
    }

    async fn faults(&self, running: &mut Running) {
        let began = Instant::now();
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
        running.happens(Fault::MinReplicas(0));
        running.happens(Fault::RestartAll);
        running.deployment.finish();
        running.happens(Fault::Delay(self.plan.delay));
    }
}
