//! Confirms grants that count only once replicas have them.
//!
//! `WAIT` returns how many replicas have the writes of the connection on which it is sent. So the hold is renewed
//! first, which is a write after the grant, and `WAIT` follows directly on the same connection. On another connection,
//! or a replaced one, its answer would mean nothing. `WAIT` delays every command behind it, so it has a connection of
//! its own.
//!
//! Invariants: one `WAIT` is under way to each server. Requests that come in the meantime share the next `WAIT` with
//! all others of equal terms. A renewal names a holder id that is used once, so a late or repeated renewal changes
//! nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::sync::oneshot;

use crate::api::holder::HolderId;
use crate::api::options::Replication;
use crate::conn::Lane;
use crate::conn::error_reply::{code, is_temporary, is_unknown_command};
use crate::conn::value::shown;
use crate::engine::clock::Tick;
use crate::script::{Call, Failure, Script, Scripts, millis, reply};
use crate::watchdog::{BATCH_HOLDS_MAX, Watchdog};

#[derive(Debug)]
pub(crate) struct Replicas {
    scripts: Arc<Scripts>,
    /// The time limit for a reply that the server sends at once.
    reply: Duration,
    /// The requests for the next `WAIT`, by server. A queue exists while a `WAIT` is under way.
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
    /// Cancel safe: a round that is under way goes on, and concerns only holds that were granted.
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
            // The watchdog drives it, so that a caller that leaves does not cancel the requests of others.
            watchdog.drive(Arc::clone(self).serve(server).boxed());
        }
        confirmed
            .await
            .unwrap_or_else(|_| Err(Failure::silent("the client is gone")))
    }

    /// Adds a request. True if the queue is new, so that the caller has to start its task.
    fn enqueue(&self, server: u64, request: Request) -> bool {
        let mut queues = self.queues.lock();
        let is_new = !queues.contains_key(&server);
        queues.entry(server).or_default().push_back(request);
        is_new
    }

    async fn serve(self: Arc<Self>, server: u64) {
        while let Some(round) = self.next_round(server) {
            run(&self.scripts, self.reply, round).await;
        }
    }

    /// Takes out the first request of the queue, with all others of equal terms. `None` if the queue was empty and is
    /// removed.
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

/// One hold to confirm.
#[derive(Debug)]
pub(crate) struct Confirmation {
    /// Renews any number of holds of this kind. See [`RenewalRequest`](crate::watchdog::RenewalRequest).
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: HolderId,
    /// The end of the lease. The renewal for the confirmation does not lengthen it.
    pub(crate) until: Tick,
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The requested number of replicas has the hold.
    Confirmed,
    /// The server no longer has the hold, or is no longer a primary.
    Gone,
    /// Only this number of replicas had the hold in time.
    TooFew(i64),
    /// The server does not permit this user to run `WAIT`.
    Denied(RedisError),
}

type ConfirmOutcome = Result<Verdict, Failure>;

/// Holds in one slot that are confirmed for one caller.
#[derive(Debug)]
struct Request {
    holds: Vec<Confirmation>,
    replication: Replication,
    outcome: oneshot::Sender<ConfirmOutcome>,
}

/// Confirms all requests. Their keys were at one server when they were queued.
async fn run(scripts: &Scripts, reply: Duration, requests: Vec<Request>) {
    let mut elsewhere: BTreeMap<u16, Vec<Request>> = BTreeMap::new();
    let answers = ask(scripts, reply, &requests).await;
    for (request, answer) in requests.into_iter().zip(answers) {
        if answer.as_ref().is_err_and(Failure::is_elsewhere) {
            let slot = scripts.transport.slot(&request.holds[0].key);
            elsewhere.entry(slot).or_default().push(request);
        } else {
            // Fails if the caller is gone, here and below.
            let _ = request.outcome.send(answer);
        }
    }
    // The requests of each slot that has moved, or is moving, are sent again separately.
    for requests in elsewhere.into_values() {
        let answers = ask(scripts, reply, &requests).await;
        for (request, answer) in requests.into_iter().zip(answers) {
            let _ = request.outcome.send(answer);
        }
    }
}

/// Runs one wait, and returns an answer for each request.
async fn ask(scripts: &Scripts, reply: Duration, requests: &[Request]) -> Vec<ConfirmOutcome> {
    let now = scripts.clock.now();
    let replication = requests[0].replication;
    // The holds of each slot and script, each with the index of its request.
    let mut groups: BTreeMap<(u16, &str), Vec<(usize, &Confirmation)>> = BTreeMap::new();
    for (at, request) in requests.iter().enumerate() {
        for hold in &request.holds {
            let group = (scripts.transport.slot(&hold.key), hold.script.sha());
            groups.entry(group).or_default().push((at, hold));
        }
    }
    let renewal = |holds: &Vec<(usize, &Confirmation)>| {
        let keys: Vec<&str> = holds.iter().map(|(_, hold)| &*hold.key).collect();
        let (_, first) = holds[0];
        let call = Call::new(first.script, &first.key, &keys);
        holds.iter().fold(call, |call, (_, hold)| {
            let left = now.until(hold.until).max(Duration::from_millis(1));
            call.arg(&*hold.holder).arg(millis(left))
        })
    };
    let calls: Vec<Call> = groups.values().map(renewal).collect();
    let mut wait = redis::cmd("WAIT");
    wait.arg(replication.count).arg(millis(replication.within));
    let limit = replication.within + reply;
    let route = &requests[0].holds[0].key;
    let asked = scripts.run_before(Lane::Confirm, route, &calls, &wait, limit);
    let mut answers = match asked.await {
        Ok(answers) => answers,
        Err(failure) => return vec![Err(failure); requests.len()],
    };
    let waited = verdict(answers.pop(), i64::from(replication.count));
    let mut verdicts = vec![waited; requests.len()];
    for (holds, answer) in groups.values().zip(answers) {
        let held = renewed(answer, holds.len());
        for (number, (at, _)) in holds.iter().enumerate() {
            match &held {
                Ok(held) if held[number] => {}
                // One missing hold decides, even if the server has the others of the request.
                Ok(_) => verdicts[*at] = Ok(Verdict::Gone),
                Err(failure) => verdicts[*at] = Err(failure.clone()),
            }
        }
    }
    verdicts
}

/// Whether each hold was renewed. After a temporary error no hold counts as renewed, so that the caller acquires them
/// again.
fn renewed(answer: Result<Value, RedisError>, holds: usize) -> Result<Vec<bool>, Failure> {
    match answer {
        Ok(value) => {
            reply::renewed(&value, holds).map_err(|error| Failure::silent(error.to_string()))
        }
        Err(error) if is_temporary(&error) => Ok(vec![false; holds]),
        Err(error) => Err(error.into()),
    }
}

/// Reads the answer to `WAIT`.
fn verdict(answer: Option<Result<Value, RedisError>>, count: i64) -> ConfirmOutcome {
    match answer {
        Some(Ok(Value::Int(replicas))) if replicas >= count => Ok(Verdict::Confirmed),
        Some(Ok(Value::Int(replicas))) => Ok(Verdict::TooFew(replicas)),
        Some(Err(error)) if is_temporary(&error) => Ok(Verdict::Gone),
        Some(Err(error)) if code(&error) == Some("NOPERM") || is_unknown_command(&error) => {
            Ok(Verdict::Denied(error))
        }
        Some(Err(error)) => Err(error.into()),
        Some(Ok(other)) => {
            let what = shown(&other);
            let why = format!("WAIT returned {what}; is a proxy changing replies?");
            Err(Failure::silent(why))
        }
        None => Err(Failure::silent("WAIT has no answer")),
    }
}

#[cfg(test)]
mod tests;
