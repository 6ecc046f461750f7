//! The loop of the watchdog task.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::{BATCH_HOLDS_MAX, Due, Item, Job, Leased, Shared, Work};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::script::{Call, Patience, Scripts, catalog, reply};

/// Renewal scripts under way at once: the next start as these end.
const BATCHES_MAX: usize = 8;

/// A renewal that got no answer is tried again after a random time up to this, or a sixteenth of
/// its lease if that is less.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A renewal waits for its reply a sixth of the shortest lease in its batch, but no less than this.
const REPLY_WAIT_MIN: Duration = Duration::from_millis(25);

/// A hold to be renewed, by its id.
type Renewal = (u64, Weak<dyn Leased>, Item);

/// What became of one batch.
struct Batch {
    holds: Vec<(u64, Weak<dyn Leased>, Duration)>,
    /// When it was sent and what the server said of each hold; `None` if it said nothing.
    outcome: Option<(Tick, Vec<bool>)>,
}

pub(super) async fn run(
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    reply_max: Duration,
) {
    let clock = scripts.clock;
    let mut work: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut batches: FuturesUnordered<BoxFuture<'static, Batch>> = FuturesUnordered::new();
    let mut closing: Option<Option<oneshot::Sender<()>>> = None;
    while closing.is_none() || !work.is_empty() {
        let mark = shared.sooner.mark();
        let next = match batches.len() < BATCHES_MAX {
            true => shared.schedule.lock().arm(clock.now()),
            // The end of a batch is the next thing to wait for.
            false => Tick::NEVER,
        };
        tokio::select! {
            biased;
            job = inbox.recv(), if closing.is_none() => match job {
                Some(Job::Drive(job)) => work.push(job),
                Some(Job::Close(done)) => {
                    // What was handed over before is in the inbox already.
                    inbox.close();
                    while let Ok(job) = inbox.try_recv() {
                        if let Job::Drive(job) = job {
                            work.push(job);
                        }
                    }
                    closing = Some(Some(done));
                }
                // No client, handle or guard is left.
                None => closing = Some(None),
            },
            Some(()) = work.next(), if !work.is_empty() => {
                shared.pending.fetch_sub(1, Ordering::Relaxed);
            }
            Some(batch) = batches.next(), if !batches.is_empty() => finish(&shared, &scripts, batch),
            () = shared.sooner.past(mark) => {}
            () = clock.sleep_until(next), if next != Tick::NEVER => {
                for batch in start(&shared, &scripts, reply_max, BATCHES_MAX - batches.len()) {
                    batches.push(batch);
                }
            }
        }
    }
    if let Some(Some(done)) = closing {
        // Nobody may be waiting any more.
        let _ = done.send(());
    }
}

/// Looks at what is due and makes at most `batches_max` renewals of it.
fn start(
    shared: &Shared,
    scripts: &Arc<Scripts>,
    reply_max: Duration,
    batches_max: usize,
) -> Vec<BoxFuture<'static, Batch>> {
    let now = scripts.clock.now();
    let due = shared
        .schedule
        .lock()
        .take_due(now, BATCH_HOLDS_MAX * batches_max);
    let mut groups: BTreeMap<u64, Vec<Renewal>> = BTreeMap::new();
    for (id, weak) in due {
        let Some(lease) = weak.upgrade() else {
            continue;
        };
        match lease.due(now) {
            // The task itself looks again after this, so it needs no waking.
            Due::Later(at) => {
                let _needs_no_waking = shared.schedule.lock().insert(id, at, weak);
            }
            Due::Renew { item, deadline } => {
                // Until its renewal is answered, its deadline is the next thing to look at.
                let watched = Weak::clone(&weak);
                let _needs_no_waking = shared.schedule.lock().insert(id, deadline, watched);
                let group = scripts.transport.group(&item.key);
                groups.entry(group).or_default().push((id, weak, item));
            }
            Due::Expired => lease.expired(),
            Due::Gone => {}
        }
    }
    let mut batches = Vec::new();
    for holds in groups.into_values() {
        let mut holds = holds.into_iter().peekable();
        while holds.peek().is_some() {
            let batch = holds.by_ref().take(BATCH_HOLDS_MAX).collect();
            batches.push(renew(Arc::clone(scripts), batch, reply_max).boxed());
        }
    }
    batches
}

async fn renew(scripts: Arc<Scripts>, holds: Vec<Renewal>, reply_max: Duration) -> Batch {
    let keys: Vec<&str> = holds.iter().map(|(_, _, item)| &*item.key).collect();
    let mut call = Call::new(&catalog::RENEW, &holds[0].2.key, &keys);
    for (_, _, item) in &holds {
        call = call.arg(&*item.holder).arg(millis(item.lease));
    }
    let shortest = holds.iter().map(|(_, _, item)| item.lease).min();
    let reply_wait = shortest.map_or(reply_max, |lease| {
        (lease / 6).clamp(REPLY_WAIT_MIN.min(reply_max), reply_max)
    });
    let patience = Patience {
        reply: reply_wait,
        // One attempt: what is not answered is scheduled again, with what is due by then.
        until: Tick::ZERO,
    };
    let outcome = match scripts.run(Lane::Renewal, &call, patience).await {
        Ok(answer) => reply::renewed(&answer.value, holds.len())
            .ok()
            .map(|held| (answer.sent, held)),
        Err(_) => None,
    };
    let holds = holds
        .into_iter()
        .map(|(id, weak, item)| (id, weak, item.lease))
        .collect();
    Batch { holds, outcome }
}

/// Tells each hold of a batch what became of it, and plans the next look.
fn finish(shared: &Shared, scripts: &Scripts, batch: Batch) {
    let now = scripts.clock.now();
    let (sent, held) = batch.outcome.unzip();
    for (index, (id, weak, lease)) in batch.holds.into_iter().enumerate() {
        let Some(leased) = weak.upgrade() else {
            shared.schedule.lock().remove(id);
            continue;
        };
        let next = match (sent, held.as_ref().map(|held| held[index])) {
            (Some(sent), Some(true)) => Some(leased.renewed(sent, lease)),
            (_, Some(false)) => {
                leased.revoked();
                None
            }
            _ => Some(now.after(RETRY_PAUSE_MAX.min(lease / 16).mul_f64(fastrand::f64()))),
        };
        if let Some(at) = next {
            // An entry that is gone was withdrawn meanwhile, or has expired.
            let _needs_no_waking = shared.schedule.lock().shift(id, at);
        }
    }
}

/// A duration as scripts take it, rounded up.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
