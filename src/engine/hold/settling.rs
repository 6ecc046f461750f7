//! Settling: the server is asked to release or downgrade one hold, or several together, until it agrees.
//!
//! The server counts one hold for all guards, in the strongest of their modes. Invariants: no caller's future drives
//! this. A release that needs nothing else is handed over to the connection, and the connection's task applies the reply.
//! The watchdog task drives everything else, and a release without a clear reply, until the server agrees or the lease is
//! over. So a caller that leaves, or is not polled, stops nothing.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::event::Event;
use super::facts::note_release_failed;
use super::release::{note_maybe_released, release_call};
use super::shell::Hold;
use crate::api::error::{Error, Kind, Result};
use crate::api::loss::LostReason;
use crate::conn::{Fault, Lane, Recipient, Replies};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Counts;
use crate::engine::hint::{Arrival, Operation};
use crate::script::reply::{self, Released};
use crate::script::{CallBudget, Executed, Failure, on_first_poll};

/// The operation's name in errors, if no caller waits.
const RELEASE: &str = "release";

/// A request about these holds, on its way to the server and back.
#[derive(Debug)]
pub(super) struct Settling {
    /// At least one, all on one server.
    holds: Few<Arc<Hold>>,
    operation: &'static str,
    began: Tick,
    /// A caller waits until then.
    until: Tick,
    is_awaited: AtomicBool,
    end: Arrival<Result<()>>,
}

/// Settles in the background, from now on.
pub(super) fn settle_later(holds: Few<Arc<Hold>>, now: Tick) {
    Settling::new(holds, RELEASE, now, false).start();
}

impl Settling {
    fn new(
        holds: Few<Arc<Hold>>,
        operation: &'static str,
        now: Tick,
        is_awaited: bool,
    ) -> Arc<Self> {
        let given_up = now.after(holds[0].state().give_up());
        Arc::new(Self {
            until: given_up.min(end_of_leases(&holds)),
            holds,
            operation,
            began: now,
            is_awaited: AtomicBool::new(is_awaited),
            end: Arrival::default(),
        })
    }

    /// Begins, for a caller that waits for the end. If the caller leaves, it goes on.
    pub(super) fn begin(
        holds: Few<Arc<Hold>>,
        operation: &'static str,
        now: Tick,
    ) -> impl Future<Output = Result<()>> {
        let this = Self::new(holds, operation, now, true);
        Arc::clone(&this).start();
        // The client's runtime may stand still, while the caller's does not.
        let is_elsewhere = !this.holds[0].core.scripts.is_here();
        let awaited = Awaited(this);
        async move {
            if is_elsewhere {
                Box::pin(awaited.in_time()).await
            } else {
                awaited.await
            }
        }
    }

    fn start(self: Arc<Self>) {
        if !self.hand_over() {
            self.drive();
        }
    }

    /// Hands a release over to the connection, if it needs nothing else.
    fn hand_over(self: &Arc<Self>) -> bool {
        let core = &self.holds[0].core;
        let is_short = self.until < self.began.after(core.timing.reply);
        if is_short && self.is_awaited() {
            return false;
        }
        let begun = self.holds.iter().map(|hold| hold.begin_operation());
        let Some(begun) = begun.collect::<Option<Few<_>>>() else {
            return false;
        };
        if !self.holds.iter().all(|hold| hold.needs_only_a_release()) {
            return false;
        }
        let call = release_call(self.holds.iter().map(|hold| &**hold));
        let (scripts, to) = (&core.scripts, Arc::clone(self) as Arc<dyn Recipient>);
        core.release_begins();
        let is_sent = scripts.submit_release(Lane::Command, &call, core.timing.reply, to);
        if !is_sent {
            core.release_ended();
            return false;
        }
        begun.into_iter().for_each(Operation::go_on);
        for hold in &self.holds {
            hold.apply(Event::CountsSent(Counts::NONE));
        }
        true
    }

    /// Has the watchdog task go on.
    fn drive(self: Arc<Self>) {
        let core = Arc::clone(&self.holds[0].core);
        core.watchdog.drive(finish(Unfinished(self)).boxed());
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// The outcome, if the holds were lost before for these reasons.
    fn outcome(&self, lost: impl IntoIterator<Item = Option<LostReason>>) -> Result<()> {
        let mut lost = self.holds.iter().zip(lost);
        match lost.find_map(|(hold, lost)| Some((hold, lost?))) {
            Some((hold, reason)) => Err(hold.not_held(self.operation, reason)),
            None => Ok(()),
        }
    }

    fn error(&self, message: &str) -> Error {
        let error = Error::new(Kind::Io, self.operation, message).of_lock(&names(&self.holds));
        error.at(&self.holds[0].endpoint())
    }
}

impl Recipient for Settling {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        let core = Arc::clone(&self.holds[0].core);
        let scripts = &core.scripts;
        let released = scripts.released(Lane::Command, self.began, outcome, self.holds.len());
        let is_over = self.end_if(released);
        self.holds.iter().for_each(|hold| hold.operations.end());
        if !is_over {
            self.drive();
        }
        core.release_ended();
    }
}

impl Settling {
    /// Ends if the replies to its release are clear. If not, notes for which holds they are.
    fn end_if(&self, released: Result<Few<Option<Released>>, Failure>) -> bool {
        let (holds, sent) = (&self.holds, self.began);
        match released {
            Ok(each) if each.iter().all(Option::is_some) => {
                let each = holds.iter().zip(each.into_iter().flatten());
                let lost: Few<_> = each
                    .map(|(hold, released)| hold.settled(Counts::NONE, released, sent, false))
                    .collect();
                self.end.put(self.outcome(lost));
                return true;
            }
            Ok(each) => {
                let released = holds.iter().zip(each);
                let released = released.filter(|(_, released)| released.is_some());
                note_maybe_released(released.map(|(hold, _)| &**hold), sent);
            }
            Err(failure) if failure.executed == Executed::Maybe => {
                note_maybe_released(holds.iter().map(|hold| &**hold), sent);
            }
            Err(_) => {}
        }
        false
    }
}

impl Hold {
    fn needs_only_a_release(&self) -> bool {
        let state = self.state();
        state.target_counts().is_none() && !state.is_settled() && !state.is_kept()
    }
}

/// Waits for the end of a settling.
struct Awaited(Arc<Settling>);

impl Awaited {
    /// For a caller on another runtime than the client's.
    async fn in_time(self) -> Result<()> {
        let settling = Arc::clone(&self.0);
        let core = &settling.holds[0].core;
        let span = core.clock.now().until(settling.until) + core.timing.reply;
        let ended = core.clock.within(span, self).await;
        ended.unwrap_or_else(|| {
            let message = "no answer in time; check that the server is up and reachable, and that the runtime of the \
                           client is not blocked";
            Err(settling.error(message))
        })
    }
}

impl Future for Awaited {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.end.poll(context)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.is_awaited.store(false, Ordering::Relaxed);
    }
}

/// A settling that the watchdog task drives. If that task ends first, the caller gets an error.
struct Unfinished(Arc<Settling>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let settling = &self.0;
        let error = || {
            let error = Error::orphaned(settling.operation).of_lock(&names(&settling.holds));
            error.at(settling.holds[0].core.scripts.transport.address())
        };
        if settling.is_awaited() {
            settling.end.put(Err(error()));
        }
    }
}

async fn finish(settling: Unfinished) {
    let Settling { holds, until, .. } = &*settling.0;
    let core = &holds[0].core;
    if settling.0.is_awaited() {
        let budget = CallBudget::until(*until, core.timing.reply);
        let settled = settle(holds, budget, settling.0.operation).await;
        let is_settled = settled.is_ok();
        let outcome = settled.and_then(|lost| settling.0.outcome(lost));
        settling.0.end.put(outcome);
        if is_settled {
            return;
        }
        for hold in holds {
            hold.apply(Event::CountsInDoubt);
        }
    }
    let mut budget = core.call_budget(core.timing.linger);
    budget.deadline = budget.deadline.max(end_of_leases(holds));
    let mut settled = settle(holds, budget, RELEASE).await;
    if let Err(error) = &settled {
        note_release_failed(core, names(holds), error.clone());
        if !error.is_io() {
            // Reported at once, but repeated until the lease ends.
            settled = settle(holds, budget.retrying_refusals(), RELEASE).await;
        }
    }
    for hold in holds {
        let counts = hold.state().target_counts();
        hold.apply(Event::CountsSent(counts));
        if settled.is_err() {
            hold.leave_places();
        }
    }
}

fn names(holds: &[Arc<Hold>]) -> String {
    let names: Vec<_> = holds.iter().map(|hold| hold.name()).collect();
    names.join(", ")
}

/// When nothing is left of these holds at the server, in any case.
fn end_of_leases(holds: &[Arc<Hold>]) -> Tick {
    let ends = holds.iter().map(|hold| hold.state().server_end());
    ends.max().unwrap_or(Tick::ZERO)
}

/// Sets the counts at the server to what the guards need. Returns for each hold why it was lost before, if the
/// server had no such hold. All holds must be on one server.
async fn settle(
    holds: &[Arc<Hold>],
    budget: CallBudget,
    operation: &'static str,
) -> Result<Few<Option<LostReason>>> {
    // Ordered by number, so that callers with several holds cannot deadlock.
    let mut in_order: Few<&Arc<Hold>> = holds.iter().collect();
    in_order.sort_by_key(|hold| hold.number);
    let mut begun: Few<_> = Few::with_capacity(holds.len());
    for hold in in_order {
        begun.push(hold.one_at_a_time(budget, operation).await?);
    }
    let mut settled = keep_all(holds, budget, operation).await?;
    let open: Few<(usize, &Hold, Counts)> = (0..)
        .zip(holds)
        .filter(|(index, _)| settled[*index].is_none())
        .filter_map(|(index, hold)| {
            let state = hold.state();
            let counts = state.target_counts();
            // The server is asked for two things only: to end a hold, and to downgrade it.
            let is_open = !state.is_settled() && counts.exclusive == 0;
            is_open.then_some((index, &**hold, counts))
        })
        .collect();
    let Some((_, first, ..)) = open.first() else {
        return Ok(settled);
    };
    let call = match open[..] {
        [(_, hold, counts)] if !counts.is_none() => hold.downgrade_call(),
        _ => release_call(open.iter().map(|(_, hold, ..)| *hold)),
    };
    let sent = first.core.clock.now();
    let run = pin!(
        first
            .core
            .scripts
            .run_at(sent, Lane::Command, &call, budget)
    );
    let on_its_way = || {
        for (_, hold, counts) in &open {
            hold.apply(Event::CountsSent(*counts));
        }
    };
    let in_doubt = || {
        let ended = open.iter().filter(|(.., counts)| counts.is_none());
        note_maybe_released(ended.map(|(_, hold, _)| *hold), sent);
    };
    let answer = on_first_poll(run, on_its_way).await.map_err(|failure| {
        if failure.executed == Executed::Maybe {
            in_doubt();
        }
        // The hold that the failure is about, or all of them.
        let about = failure.member().and_then(|member| open.get(member));
        let names: Vec<_> = match about {
            Some((_, hold, _)) => vec![hold.name()],
            None => open.iter().map(|(_, hold, _)| hold.name()).collect(),
        };
        failure.into_error(operation).of_lock(&names.join(", "))
    })?;
    let released = match open.len() {
        1 => reply::released(&answer.value).map(|released| Few::from_buf([released])),
        count => reply::released_each(&answer.value, count),
    };
    let released = released.inspect_err(|_| in_doubt())?;
    for ((index, hold, counts), released) in open.into_iter().zip(released) {
        let (first_sent, is_repeated) = (answer.first_sent, answer.repeated);
        settled[index] = hold.settled(counts, released, first_sent, is_repeated);
    }
    Ok(settled)
}

/// Leaves those holds at the server that have to be kept for a while. Returns for each why it was lost before, if it
/// was.
async fn keep_all(
    holds: &[Arc<Hold>],
    budget: CallBudget,
    operation: &'static str,
) -> Result<Few<Option<LostReason>>> {
    let mut lost = Few::from_elem(None, holds.len());
    // The last guard of another hold may end in the meantime: then that hold has to be kept as well.
    loop {
        let kept = holds.iter().enumerate();
        let kept = kept.filter(|(index, hold)| lost[*index].is_none() && hold.is_to_be_kept());
        let keeping = kept.map(|(index, hold)| async move {
            let kept = hold.keep(budget, operation).await;
            kept.map(|kept| (index, kept))
        });
        let keeping: Vec<_> = keeping.collect();
        if keeping.is_empty() {
            return Ok(lost);
        }
        for kept in join_all(keeping).await {
            let (index, reason) = kept?;
            lost[index] = reason;
        }
    }
}
