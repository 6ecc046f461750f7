//! The state that all links to one server share: when the next attempt to connect may begin and how long its steps may
//! take, and which process answers at the address.
//!
//! Invariant of [`Reachability`]: while attempts fail, the links of a server together keep a pause between their
//! attempts. The first that succeeds ends all pauses. So does a signal that a server which was not in use is needed
//! again. A connection that ends before it has answered any call, or soon if it is for messages, is a failed attempt,
//! counted from its start.
//!
//! Invariant of [`SharedProcess`]: no link uses a connection to any process but the one that was met last. An address
//! may lead new connections to another server while old connections stay open. A client that took locks on one and
//! renewed them on the other would keep locks that other clients can acquire.

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;

use crate::conn::value::Process;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;

/// Back-off after failed attempts: doubled from the first to the last, plus or minus up to a quarter, so that clients
/// do not try at the same moment.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(400);

/// A step may take as long as the last successful attempt took in total, at least `STEP_MIN`, and longer after each
/// failure. A new attempt is better than a longer wait, because packets sent into a partition are lost.
const STEP_MIN: Duration = Duration::from_secs(1);
const STEP_MORE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Reachability {
    state: Mutex<State>,
    /// Given when an attempt has succeeded, or may succeed now.
    reached: Hint,
}

#[derive(Debug, Default)]
struct State {
    /// Failed attempts since the last successful one.
    failures: u32,
    /// Failed attempts before the last successful one. They count again if the new connection answers no call.
    failures_before: u32,
    /// After a failure, no attempt begins before this.
    next: Tick,
    /// The duration of the last successful attempt.
    took: Option<Duration>,
    /// The server is not in use, and no connection to it may be made.
    is_retired: bool,
}

impl State {
    fn pause(&self) -> Duration {
        let doubled = PAUSE_FIRST * (1 << self.failures.saturating_sub(1).min(8));
        doubled.min(PAUSE_MAX).mul_f64(0.75 + fastrand::f64() / 2.0)
    }

    /// Counts an attempt as failed, with the pause behind `at`.
    fn fail(&mut self, at: Tick) {
        self.failures = self.failures.saturating_add(1);
        self.next = self.next.max(at.after(self.pause()));
    }
}

impl Reachability {
    /// Waits until the caller may begin an attempt.
    pub(super) async fn wait_turn(&self, clock: Clock) {
        let reached = self.reached.mark();
        let at = {
            let mut state = self.state.lock();
            if state.failures == 0 {
                return;
            }
            let at = state.next.max(clock.now());
            state.next = at.after(state.pause());
            at
        };
        tokio::select! {
            biased;
            () = clock.sleep_until(at) => {}
            () = self.reached.changed_since(reached) => {}
        }
    }

    /// Whether attempts have to wait after a failed one.
    pub(super) fn is_backing_off(&self, now: Tick) -> bool {
        let state = self.state.lock();
        state.failures > 0 && now < state.next
    }

    /// The time for a step of the next attempt, at most `limit`.
    pub(super) fn step_timeout(&self, limit: Duration) -> Duration {
        let state = self.state.lock();
        let Some(took) = state.took else {
            return limit;
        };
        let usual = STEP_MIN.max(took);
        limit.min(usual + STEP_MORE * state.failures.min(1000))
    }

    /// Whether any attempt has succeeded.
    pub(super) fn was_reached(&self) -> bool {
        self.state.lock().took.is_some()
    }

    pub(super) fn succeeded(&self, took: Duration) {
        let mut state = self.state.lock();
        state.failures_before = state.failures_before.max(state.failures);
        state.failures = 0;
        // The assigned turns lapse.
        state.next = Tick::ZERO;
        state.took = Some(took);
        drop(state);
        self.reached.notify();
    }

    /// The server is not needed for now. Close its connections afterwards.
    pub(crate) fn retire(&self) {
        self.state.lock().is_retired = true;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().is_retired
    }

    /// Ends a retirement. Earlier failures no longer count.
    pub(crate) fn reinstate(&self) {
        let mut state = self.state.lock();
        if state.is_retired {
            *state = State {
                took: state.took,
                ..State::default()
            };
            drop(state);
            self.reached.notify();
        }
    }

    /// A connection that had answered a call has ended.
    pub(super) fn served(&self) {
        self.state.lock().failures_before = 0;
    }

    /// A connection made at `made` has ended without an answer to any call.
    pub(super) fn failed_after(&self, made: Tick) {
        let mut state = self.state.lock();
        state.failures = state.failures.max(state.failures_before);
        state.fail(made);
    }

    pub(super) fn failed(&self, now: Tick) {
        self.state.lock().fail(now);
    }
}

/// A link to the address.
pub(super) trait Sibling: Debug + Send + Sync {
    /// Stops using a connection to an earlier process.
    fn leave_earlier(&self);
}

#[derive(Debug, Default)]
pub(crate) struct SharedProcess {
    met: Mutex<Met>,
    /// How often another process was met. A connection keeps the number that its process had.
    generation: AtomicU64,
    links: Mutex<Vec<Weak<dyn Sibling>>>,
    /// Whether each new connection asks for the id of its node in the cluster.
    pub(crate) asks_node: AtomicBool,
}

/// The process behind the last new connection.
#[derive(Debug, Default)]
struct Met {
    /// `None` if the process did not say which it is.
    process: Option<Process>,
    /// The id of its node, empty for a server in no cluster; `None` if no connection has learned one.
    node: Option<String>,
    /// The ids that the map of the cluster has for the address. Empty if any server is accepted.
    expected: Vec<String>,
}

impl SharedProcess {
    /// Adds a link, which leaves its connection when another link meets another process.
    pub(super) fn add<S: Sibling + 'static>(&self, link: &Arc<S>) {
        let link: Weak<S> = Arc::downgrade(link);
        self.links.lock().push(link);
    }

    pub(super) fn known(&self) -> Option<Process> {
        self.met.lock().process.clone()
    }

    pub(super) fn is_earlier(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }

    /// Notes the process behind a new connection, with the id of its node: empty if it is in no cluster, `None` if it
    /// does not say. Returns its generation, and whether it replaces another process. In that case no other link uses
    /// a connection to the earlier process when this returns.
    ///
    /// # Errors
    /// If the map of the cluster has another node at this address.
    pub(super) fn met(
        &self,
        process: Option<Process>,
        node: Option<&str>,
        now: Tick,
    ) -> Result<(u64, bool), RedisError> {
        let (generation, is_another) = {
            // A question about replies on an earlier connection is answered for a later process from now on, which
            // errs on the safe side.
            let mut met = self.met.lock();
            let is_another_node = met.meet(node)?;
            let known = met.process.take();
            let stays =
                |known: &Process| process.as_ref().is_some_and(|one| one.is_same_run(known));
            let is_another = is_another_node || known.as_ref().is_some_and(|known| !stays(known));
            met.process = process.map(|process| process.after(known.as_ref(), now));
            let more = u64::from(is_another);
            let generation = self.generation.fetch_add(more, Ordering::AcqRel) + more;
            (generation, is_another)
        };
        if is_another {
            self.leave_earlier();
        }
        Ok((generation, is_another))
    }

    fn leave_earlier(&self) {
        let links = self.links.lock().clone();
        for link in links.iter().filter_map(Weak::upgrade) {
            link.leave_earlier();
        }
    }

    /// Sets the ids of nodes that are accepted at the address. Connections to any other node are left. Returns whether
    /// there was another.
    pub(crate) fn expect_node(&self, ids: Vec<String>) -> bool {
        let mut met = self.met.lock();
        met.expected = ids;
        let is_stranger = met.node.as_ref().is_some_and(|id| met.check(id).is_err());
        if is_stranger {
            met.node = None;
            // Under the mutex, so that a connection that is being made to the stranger counts as an earlier one.
            self.generation.fetch_add(1, Ordering::AcqRel);
            drop(met);
            self.leave_earlier();
        }
        is_stranger
    }
}

impl Met {
    /// Notes the id behind a new connection. Returns whether it is another than before, where the map names none.
    fn meet(&mut self, id: Option<&str>) -> Result<bool, RedisError> {
        let Some(id) = id else {
            return Ok(false);
        };
        self.check(id)?;
        let before = self.node.replace(id.to_owned());
        Ok(self.expected.is_empty() && before.is_some_and(|before| before != id))
    }

    fn check(&self, id: &str) -> Result<(), RedisError> {
        if self.expected.is_empty() || self.expected.iter().any(|expected| expected == id) {
            return Ok(());
        }
        let expected = self.expected.join(" or ");
        let found = match id {
            "" => "a server that is in no cluster".to_owned(),
            id => format!("node {id}"),
        };
        let why = format!("the cluster has node {expected} at this address, but {found} answered");
        Err(io::Error::other(why).into())
    }
}
