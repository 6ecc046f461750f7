//! The loop of the watchdog task.
//!
//! Renewals come before everything else in it: work that was handed over may be plenty, and none of
//! it is as urgent as a lease.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::{BATCH_HOLDS_MAX, Due, Item, Job, Leased, Shared, Work};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::hint::Hint;
use crate::script::{Call, Failure, Patience, Scripts, millis, reply};

/// Renewal scripts under way at once: the next start as these end.
const BATCHES_MAX: usize = 8;

/// A renewal that got no answer is tried again after a random time up to this, or a sixteenth of
/// its lease if that is less.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A renewal waits for its reply a sixth of its lease, but no less than this.
const REPLY_WAIT_MIN: Duration = Duration::from_millis(25);

/// A hold to be renewed, by its id.
type Renewal = (u64, Weak<dyn Leased>, Item);

/// What became of one hold: when the renewal was sent and whether the server still had the hold;
/// `None` if the server said nothing.
type Outcome = Option<(Tick, bool)>;

pub(super) async fn run(
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    moved: Arc<Hint>,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    reply_max: Duration,
) {
    let clock = scripts.clock;
    let mut work: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut batches: FuturesUnordered<BoxFuture<'static, Vec<(Renewal, Outcome)>>> =
        FuturesUnordered::new();
    // Told when all work that came before them is done.
    let mut closing: Vec<oneshot::Sender<()>> = Vec::new();
    let mut is_needed = true;
    let mut doubted = moved.mark();
    while is_needed || !work.is_empty() {
        if work.is_empty() {
            for done in closing.drain(..) {
                // Nobody may be waiting any more.
                let _ = done.send(());
            }
        }
        let mark = shared.sooner.mark();
        let next = match batches.len() < BATCHES_MAX {
            true => shared.schedule.lock().arm(clock.now()),
            // The end of a batch is the next thing to wait for.
            false => Tick::NEVER,
        };
        tokio::select! {
            biased;
            Some(batch) = batches.next(), if !batches.is_empty() => finish(&shared, &scripts, batch),
            () = shared.sooner.past(mark) => {}
            () = moved.past(doubted) => {
                doubted = moved.mark();
                shared.doubt_all(clock.now());
            }
            () = clock.sleep_until(next), if next != Tick::NEVER => {
                for batch in start(&shared, &scripts, reply_max, BATCHES_MAX - batches.len()) {
                    batches.push(batch);
                }
            }
            job = inbox.recv(), if is_needed => match job {
                Some(Job::Drive(job)) => work.push(job),
                Some(Job::Finish(done)) => closing.push(done),
                // No client, handle or guard is left.
                None => is_needed = false,
            },
            Some(()) = work.next(), if !work.is_empty() => {
                shared.pending.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Looks at what is due and makes at most about `batches_max` renewals of it.
fn start(
    shared: &Shared,
    scripts: &Arc<Scripts>,
    reply_max: Duration,
    batches_max: usize,
) -> Vec<BoxFuture<'static, Vec<(Renewal, Outcome)>>> {
    let now = scripts.clock.now();
    let mut expired = Vec::new();
    // By slot, by script, and by how long a reply may take: a short lease makes no long one
    // impatient.
    let mut groups: BTreeMap<(u16, &str, Duration), Vec<Renewal>> = BTreeMap::new();
    {
        // Held throughout, so that what is withdrawn from now on is not put back.
        let mut schedule = shared.schedule.lock();
        for (id, weak) in schedule.take_due(now, BATCH_HOLDS_MAX * batches_max) {
            let Some(lease) = weak.upgrade() else {
                continue;
            };
            // This task looks at the schedule again after this, so it needs no waking.
            let _needs_no_waking = match lease.due(now) {
                Due::Later(at) => schedule.insert(id, at, weak),
                Due::Renew { item, deadline } => {
                    let wait = (item.lease / 6).clamp(REPLY_WAIT_MIN.min(reply_max), reply_max);
                    let slot = scripts.transport.slot(&item.key);
                    let group = (slot, item.script.sha(), wait);
                    let entry = (id, Weak::clone(&weak), item);
                    groups.entry(group).or_default().push(entry);
                    // Until its renewal is answered, its deadline is the next thing to look at.
                    schedule.insert(id, deadline, weak)
                }
                Due::Expired => {
                    expired.push(lease);
                    false
                }
                Due::Gone => false,
            };
        }
    }
    for lease in expired {
        lease.expired();
    }
    let mut batches = Vec::new();
    for ((.., wait), holds) in groups {
        let mut holds = holds.into_iter().peekable();
        while holds.peek().is_some() {
            let batch = holds.by_ref().take(BATCH_HOLDS_MAX).collect();
            batches.push(renew(Arc::clone(scripts), batch, wait).boxed());
        }
    }
    batches
}

async fn renew(
    scripts: Arc<Scripts>,
    holds: Vec<Renewal>,
    reply_wait: Duration,
) -> Vec<(Renewal, Outcome)> {
    let outcomes = match ask(&scripts, &holds, reply_wait).await {
        Ok(outcomes) => outcomes,
        // One key may be refused, to a user without the right to it: it speaks for itself alone.
        Err(failure) if failure.is_final_answer() && holds.len() > 1 => {
            let alone = holds.chunks(1).map(|hold| ask(&scripts, hold, reply_wait));
            let answers = join_all(alone).await.into_iter();
            answers
                .map(|answer| answer.ok().and_then(|outcomes| outcomes[0]))
                .collect()
        }
        Err(_) => vec![None; holds.len()],
    };
    holds.into_iter().zip(outcomes).collect()
}

/// One renewal script. One attempt: what is not answered is scheduled again, with what is due then.
async fn ask(
    scripts: &Scripts,
    holds: &[Renewal],
    reply_wait: Duration,
) -> Result<Vec<Outcome>, Failure> {
    let keys: Vec<&str> = holds.iter().map(|(_, _, item)| &*item.key).collect();
    let mut call = Call::new(holds[0].2.script, &holds[0].2.key, &keys);
    for (_, _, item) in holds {
        call = call.arg(&*item.holder).arg(millis(item.lease));
    }
    let patience = Patience::once(reply_wait);
    let answer = scripts.run(Lane::Renewal, &call, patience).await?;
    Ok(match reply::renewed(&answer.value, holds.len()) {
        Ok(held) => held
            .into_iter()
            .map(|held| Some((answer.sent, held)))
            .collect(),
        Err(_) => vec![None; holds.len()],
    })
}

/// Tells each hold of a batch what became of it, and plans the next look.
fn finish(shared: &Shared, scripts: &Scripts, batch: Vec<(Renewal, Outcome)>) {
    let now = scripts.clock.now();
    for ((id, weak, item), outcome) in batch {
        let next = match (weak.upgrade(), outcome) {
            (Some(leased), Some((sent, true))) => Some(leased.renewed(sent, item.lease)),
            (Some(leased), Some((_, false))) => {
                leased.revoked();
                None
            }
            (Some(_), None) => {
                let pause = RETRY_PAUSE_MAX.min(item.lease / 16);
                Some(now.after(pause.mul_f64(fastrand::f64())))
            }
            (None, _) => None,
        };
        let mut schedule = shared.schedule.lock();
        match next {
            // An entry that is gone was withdrawn meanwhile, or has expired.
            Some(at) => {
                let _needs_no_waking = schedule.shift(id, at);
            }
            None => {
                schedule.remove(id);
            }
        }
    }
}
