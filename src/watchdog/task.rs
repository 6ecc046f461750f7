//! The loop of the watchdog task.
//!
//! Renewals come before everything else in it: work that was handed over may be plenty, and none of
//! it is as urgent as a lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::round::{self, Batch, Renewal, Rooms};
use super::{Job, Shared, Work};
use crate::clock::{LOOK_MAX, Pace, Tick};
use crate::conn::Lane;
use crate::hint::Hint;
use crate::script::{Call, CallBudget, Failure, Scripts, millis, reply};

/// A renewal that got no answer is tried again after a random time up to this, or a sixteenth of
/// its lease if that is less.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

/// What became of one hold: when the renewal was sent and whether the server still had the hold;
/// `None` if the server said nothing.
type Outcome = Option<(Tick, bool)>;

/// The end of one script of a batch: its holds are told at once, whatever becomes of the others.
struct Ended {
    /// Shared by all scripts of the batch: the last of them makes room at this server.
    server: Arc<u64>,
    renewals: Vec<(Renewal, Outcome)>,
}

pub(super) async fn run(
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    moved: Arc<Hint>,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    reply_max: Duration,
) {
    let clock = scripts.clock;
    let mut work: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut beside: FuturesUnordered<Work> = FuturesUnordered::new();
    let mut calls: FuturesUnordered<BoxFuture<'static, Ended>> = FuturesUnordered::new();
    let mut rooms = Rooms::default();
    // Told when all work that came before them is done.
    let mut closing: Vec<oneshot::Sender<()>> = Vec::new();
    let mut is_needed = true;
    let mut doubted = moved.mark();
    let mut pace = Pace::of(clock);
    while is_needed || !work.is_empty() {
        if pace.has_jumped() {
            // All that sleep go by timers that stood still.
            shared.look_all();
        }
        if work.is_empty() {
            for done in closing.drain(..) {
                // Nobody may be waiting any more.
                let _ = done.send(());
            }
        }
        let mark = shared.sooner.mark();
        let now = clock.now();
        let next = next_look(&shared, &rooms, now);
        tokio::select! {
            biased;
            Some(ended) = calls.next(), if !calls.is_empty() => {
                finish(&shared, clock.now(), ended.renewals);
                if let Some(server) = Arc::into_inner(ended.server) {
                    rooms.leave(server);
                }
            }
            () = shared.sooner.past(mark) => {}
            () = moved.past(doubted) => {
                doubted = moved.mark();
                shared.doubt_all(clock.now());
            }
            () = clock.sleep_until(next.min(now.after(LOOK_MAX))), if next != Tick::NEVER => {
                for batch in round::look(&shared, &scripts, &mut rooms, reply_max) {
                    // All of them are on their way before the loop waits again.
                    calls.extend(start(&scripts, batch));
                }
            }
            job = inbox.recv(), if is_needed => match job {
                Some(Job::Drive(job)) => work.push(job),
                Some(Job::Beside(job)) => beside.push(job),
                Some(Job::Finish(done)) => closing.push(done),
                // No client, handle or guard is left.
                None => is_needed = false,
            },
            Some(()) = work.next(), if !work.is_empty() => {
                shared.pending.fetch_sub(1, Ordering::Relaxed);
            }
            Some(()) = beside.next(), if is_needed && !beside.is_empty() => {}
        }
    }
}

/// At once if there is room again that something waits for.
fn next_look(shared: &Shared, rooms: &Rooms, now: Tick) -> Tick {
    let mut schedule = shared.schedule.lock();
    let is_wanted = schedule.waited_for().any(|server| rooms.has_room(server));
    match is_wanted {
        true => now,
        false => schedule.arm(now),
    }
}

fn start(scripts: &Arc<Scripts>, batch: Batch) -> impl Iterator<Item = BoxFuture<'static, Ended>> {
    let (server, wait) = (Arc::new(batch.server), batch.wait);
    let calls = batch.into_calls(scripts);
    calls.map(move |holds| renew(Arc::clone(scripts), Arc::clone(&server), holds, wait).boxed())
}

async fn renew(
    scripts: Arc<Scripts>,
    server: Arc<u64>,
    holds: Vec<Renewal>,
    reply_wait: Duration,
) -> Ended {
    let outcomes = match ask(&scripts, &holds, reply_wait).await {
        Ok(outcomes) => outcomes,
        // One key may be refused: it speaks for itself alone.
        Err(failure) if failure.may_be_of_some() && holds.len() > 1 => {
            let alone = holds.chunks(1).map(|hold| ask(&scripts, hold, reply_wait));
            let answers = join_all(alone).await.into_iter();
            answers
                .map(|answer| answer.ok().and_then(|outcomes| outcomes[0]))
                .collect()
        }
        Err(_) => vec![None; holds.len()],
    };
    Ended {
        server,
        renewals: holds.into_iter().zip(outcomes).collect(),
    }
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
    let budget = CallBudget::once(reply_wait);
    let answer = scripts.run(Lane::Renewal, &call, budget).await?;
    Ok(match reply::renewed(&answer.value, holds.len()) {
        Ok(held) => held
            .into_iter()
            .map(|held| Some((answer.sent, held)))
            .collect(),
        Err(_) => vec![None; holds.len()],
    })
}

/// Tells each hold what became of it, and plans the next look.
fn finish(shared: &Shared, now: Tick, renewals: Vec<(Renewal, Outcome)>) {
    for ((id, weak, item), outcome) in renewals {
        let leased = weak.upgrade();
        // An entry that is gone by now was withdrawn meanwhile, or has expired.
        match (leased, outcome) {
            (Some(leased), Some((sent, true))) => {
                let next = leased.renewed(sent, item.lease);
                let _needs_no_waking = shared.schedule.lock().shift(id, next);
            }
            (Some(leased), Some((_, false))) => {
                leased.revoked();
                shared.schedule.lock().remove(id);
            }
            (Some(_), None) => {
                // Not past its deadline, which is where it is.
                let pause = RETRY_PAUSE_MAX.min(item.lease / 16);
                let again = now.after(pause.mul_f64(fastrand::f64()));
                shared.schedule.lock().bring_forward(id, again);
            }
            (None, _) => {
                shared.schedule.lock().remove(id);
            }
        }
    }
}
