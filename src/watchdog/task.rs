//! The loop of the watchdog task, and its reports of servers at which renewals fail.
//!
//! Renewals come first in the loop. There may be a lot of other work, and none of it is as urgent as a lease.
//! Invariant: a server is reported at most once in [`REPORT_EVERY`] as failing, and once as late, however many holds it
//! has and however often it fails and recovers.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use super::batches::{self, Batch, Renewal, Servers};
use super::leased::{Job, Leased, Shared, Work};
use crate::api::error::Error;
use crate::api::loss::LostReason;
use crate::conn::Lane;
use crate::engine::clock::{LOOK_MAX, Pace, Tick};
use crate::engine::hint::{Hint, Mark};
use crate::observe::counts::{Fact, is_late};
use crate::observe::events::Event;
use crate::script::{Call, CallBudget, Failure, Scripts, millis, reply};

/// The shortest time between two reports about one server.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The longest random pause before a renewal without an answer is tried again, or a sixteenth of its lease if that is
/// less.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The effect of a renewal on one hold.
#[derive(Clone, Copy, Debug)]
enum PassOutcome {
    /// The lease counts from when the renewal was sent.
    Renewed,
    /// The server no longer has the hold.
    NotHeld,
    /// There was no answer, or no answer about this hold.
    Unknown,
}

/// One finished script of a batch. Its holds need not wait for the other scripts.
struct Completed {
    /// Shared by all scripts of the batch. When the last of them is done, the server has room again.
    server: Arc<u64>,
    /// When the script was sent first.
    sent: Tick,
    renewals: Vec<(Renewal, PassOutcome)>,
    /// Why some of the renewals have no answer.
    error: Option<Error>,
}

pub(super) async fn run(
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    moved: Arc<Hint>,
    mut doubted: Mark,
    inbox: mpsc::UnboundedReceiver<Job>,
    reply_max: Duration,
) {
    let clock = scripts.clock;
    let sooner = Arc::clone(shared.schedule.lock().sooner());
    let mut ends = Ends(Arc::clone(&shared), inbox);
    let mut work: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut while_needed: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut calls: FuturesUnordered<BoxFuture<'static, Completed>> = FuturesUnordered::new();
    let mut servers = Servers::default();
    let mut outages = Outages::default();
    let mut is_needed = true;
    let mut pace = Pace::of(clock);
    let mut publishing = pin!(scripts.observed.keep_publishing(clock));
    while is_needed || !work.is_empty() {
        if pace.has_jumped() {
            // The timers stood still, so tasks that sleep by them would wake too late.
            shared.all().iter().for_each(|lease| lease.wake());
        }
        let mark = sooner.mark();
        let now = clock.now();
        let next = if servers.may_go_on() {
            now
        } else {
            shared.schedule.lock().plan_wake(now)
        };
        tokio::select! {
            biased;
            Some(completed) = calls.next(), if !calls.is_empty() => {
                let server = Arc::clone(&completed.server);
                let answered_in = apply(&shared, &scripts, &mut outages, completed);
                if let Some(server) = Arc::into_inner(server) {
                    servers.end(server, answered_in);
                }
            }
            () = sooner.changed_since(mark) => {}
            () = moved.changed_since(doubted) => {
                doubted = moved.mark();
                let now = clock.now();
                shared.all().iter().for_each(|lease| lease.doubt(now));
                shared.schedule.lock().make_all_due(now);
            }
            () = clock.sleep_until(next.min(now.after(LOOK_MAX))), if next != Tick::NEVER => {
                for batch in batches::take_due(&shared, &scripts, &mut servers, reply_max) {
                    // The calls are polled first in the loop, so all of them are sent before it waits again.
                    calls.extend(start(&scripts, batch));
                }
            }
            // Polled before the work, because there may be a lot of work, while publishing is short and rare.
            never = &mut publishing => match never {},
            job = ends.1.recv(), if is_needed => match job {
                Some(Job::Drive(job)) => work.push(job),
                Some(Job::DriveWhileNeeded(job)) => while_needed.push(job),
                // No client, handle or guard is left.
                None => is_needed = false,
            },
            Some(()) = work.next(), if !work.is_empty() => {
                if shared.pending.fetch_sub(1, Ordering::Relaxed) == 1 {
                    shared.idle.notify();
                }
            }
            Some(()) = while_needed.next(), if is_needed && !while_needed.is_empty() => {}
        }
    }
}

/// Dropped with the task, or with its runtime. Closes the inbox before it notifies the holds.
struct Ends(Arc<Shared>, mpsc::UnboundedReceiver<Job>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.1.close();
        self.0.all().iter().for_each(|lease| lease.orphaned());
        self.0.idle.notify();
    }
}

/// Returns the calls that renew the holds of a batch.
fn start(
    scripts: &Arc<Scripts>,
    batch: Batch,
) -> impl Iterator<Item = BoxFuture<'static, Completed>> {
    let (server, wait) = (Arc::new(batch.server), batch.wait);
    // One script can name and renew holds of one slot and one kind.
    let mut calls: BTreeMap<(u16, &str), Vec<Renewal>> = BTreeMap::new();
    for hold in batch.holds {
        let request = &hold.request;
        let call = (scripts.transport.slot(&request.key), request.script.sha());
        calls.entry(call).or_default().push(hold);
    }
    let calls = calls.into_values();
    calls.map(move |holds| renew(Arc::clone(scripts), Arc::clone(&server), holds, wait).boxed())
}

async fn renew(
    scripts: Arc<Scripts>,
    server: Arc<u64>,
    holds: Vec<Renewal>,
    reply_wait: Duration,
) -> Completed {
    let (sent, mut error) = (scripts.clock.now(), None);
    let mut no_answer = |failure: Failure| {
        error = Some(failure.into_error("renew"));
        PassOutcome::Unknown
    };
    let outcomes = match ask(&scripts, &holds, reply_wait).await {
        Ok(outcomes) => outcomes,
        // The server may have refused only one of the keys, so each hold is renewed by a call of its own.
        Err(failure) if failure.may_concern_some_keys() && holds.len() > 1 => {
            let alone = holds.chunks(1).map(|hold| ask(&scripts, hold, reply_wait));
            let answers = join_all(alone).await.into_iter();
            answers
                .map(|answer| answer.map_or_else(&mut no_answer, |outcomes| outcomes[0]))
                .collect()
        }
        Err(failure) => vec![no_answer(failure); holds.len()],
    };
    Completed {
        server,
        sent,
        renewals: holds.into_iter().zip(outcomes).collect(),
        error,
    }
}

/// Runs one renewal script, once, on the renewal lane. If that lane gets no connection, runs it on the command lane,
/// but only if that has one: a second wait would only delay the next attempt. A hold without an answer is scheduled
/// again, and its next step is decided then.
async fn ask(
    scripts: &Scripts,
    holds: &[Renewal],
    reply_wait: Duration,
) -> Result<Vec<PassOutcome>, Failure> {
    let requests = || holds.iter().map(|hold| &hold.request);
    let keys: Vec<&str> = requests().map(|request| &*request.key).collect();
    let first = &holds[0].request;
    let call = Call::new(first.script, &first.key, &keys);
    let call = requests().fold(call, |call, request| {
        call.arg(&*request.holder).arg(millis(request.lease))
    });
    let budget = CallBudget::once(reply_wait);
    let is_open = |lane| scripts.transport.is_open(lane, &first.key);
    let answer = match scripts.run(Lane::Renewal, &call, budget).await {
        Err(failure) if failure.lacks_connection() && is_open(Lane::Command) => {
            scripts.run(Lane::Command, &call, budget).await?
        }
        answer => answer?,
    };
    let outcome = |held| match held {
        true => PassOutcome::Renewed,
        false => PassOutcome::NotHeld,
    };
    Ok(match reply::renewed(&answer.value, holds.len()) {
        Ok(held) => held.into_iter().map(outcome).collect(),
        Err(_) => vec![PassOutcome::Unknown; holds.len()],
    })
}

/// Passes the outcomes to the holds, plans when each is due next, and reports failures. Returns how long the answers
/// took, if all of them came.
fn apply(
    shared: &Shared,
    scripts: &Scripts,
    outages: &mut Outages,
    completed: Completed,
) -> Option<Duration> {
    let (server, sent) = (*completed.server, completed.sent);
    let (observed, now) = (&scripts.observed, scripts.clock.now());
    let answered_in = completed.error.is_none().then(|| sent.until(now));
    // The least time left at a late renewal, with the lease and the hold.
    let mut latest: Option<(Duration, Duration, Arc<dyn Leased>)> = None;
    for (Renewal { id, hold, request }, outcome) in completed.renewals {
        if !matches!(outcome, PassOutcome::Unknown) {
            outages.ended(id, now);
        }
        // If the entry is missing, the hold was withdrawn or has expired in the meantime.
        match (hold.upgrade(), outcome) {
            (Some(hold), PassOutcome::Renewed) => {
                let left = now.until(hold.deadline());
                let lease = hold.measure(request.lease);
                observed.note(Fact::Renewed { left, lease });
                hold.renewed(sent, request.lease);
                if is_late(left, lease) && latest.as_ref().is_none_or(|(least, ..)| left < *least) {
                    latest = Some((left, lease, Arc::clone(&hold)));
                }
                let mut schedule = shared.schedule.lock();
                schedule.shift(id, hold.next_check());
            }
            (Some(hold), PassOutcome::NotHeld) => {
                hold.lose(LostReason::Revoked);
                shared.schedule.lock().remove(id);
            }
            (Some(hold), PassOutcome::Unknown) => {
                observed.note(Fact::RenewalFailed);
                outages.failed(server, id, &hold, sent);
                // Brings the entry forward from the deadline, never past it.
                let pause = RETRY_PAUSE_MAX.min(request.lease / 16);
                let again = now.after(pause.mul_f64(fastrand::f64()));
                shared.schedule.lock().bring_forward(id, again);
            }
            (None, _) => {
                shared.schedule.lock().remove(id);
            }
        }
    }
    if let Some((left, lease, hold)) = latest
        && outages.reports_late(server, now)
    {
        let lock = hold.lock().as_str().into();
        observed.note(Fact::event(Event::RenewalLate { lock, left, lease }));
    }
    if let Some(error) = completed.error
        && let Some((first, holds, since)) = outages.report(server, now)
    {
        let lock = first.lock();
        observed.note(Fact::event(Event::RenewalFailed {
            lock: lock.as_str().into(),
            left: now.until(first.deadline()),
            holds,
            server: scripts.transport.endpoint(lock.key()).into(),
            since: since.until(now),
            error,
        }));
    }
    answered_in
}

/// Servers at which renewals fail or come late, and when they are reported.
#[derive(Debug, Default)]
struct Outages {
    failing: HashMap<u64, Outage>,
    /// When a late renewal may be reported again.
    late_after: HashMap<u64, Tick>,
}

#[derive(Debug)]
struct Outage {
    /// When the first failed renewal was sent, counted from when all holds were last renewed or over.
    since: Tick,
    report_after: Tick,
    /// The holds that fail, each with the end of its lease.
    holds: HashMap<u64, (Tick, Weak<dyn Leased>)>,
}

impl Outage {
    /// Whether the leases of all failing holds have ended at `now`.
    fn is_over(&self, now: Tick) -> bool {
        self.holds.values().all(|(end, _)| *end <= now)
    }
}

impl Outages {
    /// Records that a renewal of this hold at this server, sent at `sent`, has failed.
    fn failed(&mut self, server: u64, id: u64, hold: &Arc<dyn Leased>, sent: Tick) {
        let outage = self.failing.entry(server).or_insert_with(|| Outage {
            since: sent,
            report_after: Tick::ZERO,
            holds: HashMap::new(),
        });
        if outage.is_over(sent) {
            outage.since = sent;
            outage.holds.clear();
        }
        let failing = (hold.deadline(), Arc::downgrade(hold));
        outage.holds.insert(id, failing);
    }

    /// Records that this hold does not fail any longer: it was renewed, perhaps at another server, or it is over.
    fn ended(&mut self, id: u64, now: Tick) {
        self.failing.retain(|_, outage| {
            outage.holds.remove(&id);
            now < outage.report_after || !outage.is_over(now)
        });
    }

    /// Takes the report that is due about this server: the failing hold whose lease ends first, the number of failing
    /// holds, and since when they fail.
    fn report(&mut self, server: u64, now: Tick) -> Option<(Arc<dyn Leased>, usize, Tick)> {
        let outage = self.failing.get_mut(&server)?;
        if now < outage.report_after {
            return None;
        }
        let is_held = |deadline: Tick, hold: &Weak<_>| deadline > now && hold.strong_count() > 0;
        outage.holds.retain(|_, (end, hold)| is_held(*end, hold));
        let (_, first) = outage.holds.values().min_by_key(|(end, _)| *end)?;
        let hold = first.upgrade()?;
        outage.report_after = now.after(REPORT_EVERY);
        Some((hold, outage.holds.len(), outage.since))
    }

    /// Takes the report of a late renewal at this server. Returns whether it is due.
    fn reports_late(&mut self, server: u64, now: Tick) -> bool {
        self.late_after.retain(|_, after| *after > now);
        let is_due = !self.late_after.contains_key(&server);
        let again = self.late_after.entry(server);
        again.or_insert_with(|| now.after(REPORT_EVERY));
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::keys::LockName;
    use crate::watchdog::{Due, RenewalRequest};

    /// A hold whose lease ends at this time.
    struct Ends(Tick);

    impl Leased for Ends {
        fn doubt(&self, _: Tick) {}
        fn wake(&self) {}
        fn due(self: Arc<Self>, _: Tick) -> Due {
            Due::Gone
        }
        fn request(&self, _: Duration) -> RenewalRequest {
            unreachable!("an outage asks for nothing")
        }
        fn lock(&self) -> &LockName {
            unreachable!("an outage has no names")
        }
        fn renewed(&self, _: Tick, _: Duration) {}
        fn next_check(&self) -> Tick {
            self.0
        }
        fn deadline(&self) -> Tick {
            self.0
        }
        fn lose(&self, _: LostReason) {}
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO.after(Duration::from_secs(seconds))
    }

    /// The holds in the report that is due, and when the lease of the first ends.
    fn reported(outages: &mut Outages, now: Tick) -> Option<(usize, Tick, Tick)> {
        let (first, holds, since) = outages.report(1, now)?;
        Some((holds, since, first.deadline()))
    }

    #[test]
    fn one_report_counts_all_holds_of_a_server_and_names_the_first_to_end() {
        let mut outages = Outages::default();
        let holds: Vec<Arc<dyn Leased>> =
            [40, 30, 50].map(|end| Arc::new(Ends(at(end))) as _).into();
        for (id, hold) in (0..).zip(&holds) {
            outages.failed(1, id, hold, at(5));
        }
        outages.failed(2, 9, &holds[0], at(1));
        assert_eq!(reported(&mut outages, at(6)), Some((3, at(5), at(30))));
        outages.failed(1, 1, &holds[1], at(7));
        assert_eq!(
            reported(&mut outages, at(15)),
            None,
            "the next one is not due"
        );
        assert_eq!(reported(&mut outages, at(16)), Some((3, at(5), at(30))));
        // The lease of one hold has ended, and another was renewed.
        outages.ended(0, at(20));
        assert_eq!(reported(&mut outages, at(31)), Some((1, at(5), at(50))));
        assert_eq!(reported(&mut outages, at(60)), None, "no lease is left");
    }

    #[test]
    fn a_server_that_recovers_and_fails_again_is_not_reported_sooner() {
        let mut outages = Outages::default();
        let hold: Arc<dyn Leased> = Arc::new(Ends(at(100)));
        outages.failed(1, 0, &hold, at(1));
        assert!(reported(&mut outages, at(1)).is_some());
        outages.ended(0, at(2));
        outages.failed(1, 0, &hold, at(3));
        assert_eq!(reported(&mut outages, at(4)), None);
        assert_eq!(reported(&mut outages, at(11)), Some((1, at(3), at(100))));
        outages.ended(0, at(30));
        assert!(
            outages.failing.is_empty(),
            "nothing is kept of a server that is well"
        );
    }

    /// Nothing has failed in between.
    #[test]
    fn a_failure_after_all_leases_have_ended_is_a_new_one() {
        let mut outages = Outages::default();
        let holds: Vec<Arc<dyn Leased>> =
            [30, 5_000].map(|end| Arc::new(Ends(at(end))) as _).into();
        outages.failed(1, 0, &holds[0], at(5));
        assert_eq!(reported(&mut outages, at(6)), Some((1, at(5), at(30))));
        outages.failed(1, 1, &holds[1], at(3_600));
        let report = Some((1, at(3_600), at(5_000)));
        assert_eq!(reported(&mut outages, at(3_600)), report);
    }

    /// Of two holds, one was renewed and the lease of the other has ended.
    #[test]
    fn an_outage_ends_with_the_leases_of_the_holds_that_still_fail() {
        let mut outages = Outages::default();
        let holds: Vec<Arc<dyn Leased>> =
            [100, 30, 90].map(|end| Arc::new(Ends(at(end))) as _).into();
        outages.failed(1, 0, &holds[0], at(5));
        outages.failed(1, 1, &holds[1], at(5));
        outages.ended(0, at(10));
        outages.failed(1, 2, &holds[2], at(40));
        assert_eq!(reported(&mut outages, at(40)), Some((1, at(40), at(90))));
    }

    /// The new server renews what the old one did not.
    #[test]
    fn nothing_is_kept_of_a_server_that_another_took_over_from() {
        let mut outages = Outages::default();
        let hold: Arc<dyn Leased> = Arc::new(Ends(at(100)));
        outages.failed(1, 0, &hold, at(1));
        assert_eq!(reported(&mut outages, at(1)), Some((1, at(1), at(100))));
        outages.ended(0, at(5));
        assert_eq!(reported(&mut outages, at(20)), None, "it was renewed");
        outages.ended(0, at(20));
        assert!(outages.failing.is_empty());
    }

    #[test]
    fn a_hold_that_is_gone_is_not_reported() {
        let mut outages = Outages::default();
        let hold: Arc<dyn Leased> = Arc::new(Ends(at(100)));
        outages.failed(1, 0, &hold, at(1));
        drop(hold);
        assert_eq!(reported(&mut outages, at(2)), None);
    }
}
