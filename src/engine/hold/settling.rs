//! Settling: the server is asked to release or downgrade one hold, or several together, until it agrees.
//!
//! The server counts one hold for all guards, in the strongest of their modes. Invariants: no caller's future drives
//! this. A release of whole holds is handed over to the connection, and the connection's task applies the reply. The
//! watchdog task drives everything else, and a release without a clear reply, until the server agrees or the lease is
//! over. So a caller that leaves, or is not polled, stops nothing.
//! [`HoldState::needed_change`](super::state::HoldState::needed_change) decides what to ask for, and the state decides
//! what the answer means.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::effects::ServerChange;
use super::facts::note_release_failed;
use super::release::release_all_call;
use super::shell::Hold;
use crate::api::error::{Error, Result};
use crate::api::loss::LostReason;
use crate::conn::{Fault, Lane, Recipient, Replies};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::Arrival;
use crate::script::reply::{self, Released};
use crate::script::{Call, CallBudget, Executed, Failure, once_sent};

/// The operation's name in errors, if no caller waits.
const RELEASE: &str = "release";

/// A request about these holds, on its way to the server and back.
#[derive(Debug)]
pub(super) struct Settling {
    /// At least one, all on one server.
    holds: Few<Arc<Hold>>,
    operation: &'static str,
    began: Tick,
    /// Until when a caller waits.
    until: Tick,
    is_awaited: AtomicBool,
    end: Arrival<Result<()>>,
}

/// Has the watchdog task ask for a downgrade. Sends nothing itself: the caller may have locked the schedule.
pub(super) fn downgrade_later(hold: Arc<Hold>, now: Tick) {
    Settling::new(Few::from_buf([hold]), RELEASE, now, false).drive();
}

/// Settles these holds in the background.
pub(super) fn settle_later(holds: Few<Arc<Hold>>, now: Tick) {
    Settling::new(holds, RELEASE, now, false).start();
}

impl Hold {
    /// Notes that a request was sent after which the server has the hold in this mode, or does not have it.
    fn change_sent(&self, mode: Option<Mode>) {
        self.change(self.core.clock, |state, _| state.change_sent(mode));
    }
}

impl Settling {
    fn new(
        holds: Few<Arc<Hold>>,
        operation: &'static str,
        now: Tick,
        is_awaited: bool,
    ) -> Arc<Self> {
        // At the latest, nothing is left of the holds at the server after the last of these times.
        let ends = holds.iter().map(|hold| hold.state().server_end());
        let end = ends.max();
        let give_up = holds[0].state().give_up();
        Arc::new(Self {
            until: now.after(give_up).min(end.unwrap_or(now)),
            holds,
            operation,
            began: now,
            is_awaited: AtomicBool::new(is_awaited),
            end: Arrival::default(),
        })
    }

    /// Begins to settle, for a caller that waits for the end. Goes on if the caller leaves.
    pub(super) fn begin(
        holds: Few<Arc<Hold>>,
        operation: &'static str,
        now: Tick,
    ) -> impl Future<Output = Result<()>> {
        let this = Self::new(holds, operation, now, true);
        Arc::clone(&this).start();
        let awaited = Awaited(this);
        async move {
            let settling = &*awaited.0;
            let ended = poll_fn(|context| settling.end.poll(context));
            let watchdog = &settling.holds[0].core.watchdog;
            let (operation, until) = (settling.operation, settling.until);
            let ended = watchdog.in_time(operation, until, ended).await;
            ended.map_err(|error| error.of_lock(&names(&settling.holds)))?
        }
    }

    fn start(self: Arc<Self>) {
        if !self.hand_over() {
            self.drive();
        }
    }

    /// Hands the release over to the connection. False if the watchdog task has to drive the settling.
    fn hand_over(self: &Arc<Self>) -> bool {
        let core = &self.holds[0].core;
        let is_short = self.until < self.began.after(core.timing.reply);
        if is_short && self.is_awaited() {
            return false;
        }
        let holds = self.holds.iter();
        let begun = holds
            .take_while(|hold| hold.begin_release(self.began))
            .count();
        let is_sent = begun == self.holds.len() && self.send();
        if !is_sent {
            self.end_operations(begun);
        }
        is_sent
    }

    /// Sends the releases. False if the connection cannot take them now.
    fn send(self: &Arc<Self>) -> bool {
        let core = &self.holds[0].core;
        let calls: Few<Call> = self.holds.iter().map(|hold| hold.release_call()).collect();
        let all = || release_all_call(&self.holds);
        let (scripts, to) = (&core.scripts, Arc::clone(self) as Arc<dyn Recipient>);
        core.request_begins();
        let is_sent = scripts.submit_releases(&calls, all, core.timing.reply, to);
        if !is_sent {
            core.request_ended();
            return false;
        }
        for hold in &self.holds {
            hold.change_sent(None);
        }
        true
    }

    fn end_operations(&self, begun: usize) {
        self.holds[..begun]
            .iter()
            .for_each(|hold| hold.end_operation());
    }

    /// Has the watchdog task drive the rest.
    fn drive(self: Arc<Self>) {
        let core = Arc::clone(&self.holds[0].core);
        core.watchdog.drive(finish(Unfinished(self)).boxed());
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// The outcome for the caller, if the holds were lost before for these reasons.
    fn outcome(&self, lost: impl IntoIterator<Item = Option<LostReason>>) -> Result<()> {
        let mut lost = self.holds.iter().zip(lost);
        match lost.find_map(|(hold, lost)| Some((hold, lost?))) {
            Some((hold, reason)) => Err(hold.not_held(self.operation, reason)),
            None => Ok(()),
        }
    }
}

impl Recipient for Settling {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        let core = Arc::clone(&self.holds[0].core);
        let scripts = &core.scripts;
        let released = scripts.released(self.began, outcome, self.holds.len());
        let is_over = self.end_if(released);
        self.end_operations(self.holds.len());
        if !is_over {
            self.drive();
        }
        core.request_ended();
    }
}

impl Settling {
    /// Ends the settling if all replies to its release are clear. False if not: the watchdog task asks again for the
    /// holds that were not released.
    fn end_if(&self, released: Result<Few<Result<Released, Executed>>, Failure>) -> bool {
        let (holds, sent) = (&self.holds, self.began);
        let Ok(each) = released else {
            let is_in_doubt = released.is_err_and(|failure| failure.executed == Executed::Maybe);
            for hold in holds.iter().filter(|_| is_in_doubt) {
                hold.state().may_be_released(sent);
            }
            return false;
        };
        let is_clear = each.iter().all(Result::is_ok);
        let mut lost = Few::<Option<LostReason>>::new();
        for (hold, released) in holds.iter().zip(each) {
            match released {
                Ok(released) => {
                    lost.push(hold.settled(ServerChange::Release, released, sent, false));
                }
                Err(Executed::Maybe) => hold.state().may_be_released(sent),
                Err(Executed::No) => {}
            }
        }
        if is_clear {
            self.end.put(self.outcome(lost));
        }
        is_clear
    }
}

/// A settling whose end a caller waits for, until this is dropped.
struct Awaited(Arc<Settling>);

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
    let settling = &*settling.0;
    let mut open: Few<&Arc<Hold>> = settling.holds.iter().collect();
    if settling.is_awaited() {
        let budget = CallBudget::until(settling.until, open[0].core.timing.reply);
        let each = open
            .iter()
            .map(|hold| settle(hold, budget, settling.operation));
        let each = join_all(each).await;
        let mut is_open = each.iter().map(Result::is_err);
        open.retain(|_| is_open.next() == Some(true));
        let lost: Result<Vec<_>> = each.into_iter().collect();
        settling
            .end
            .put(lost.and_then(|lost| settling.outcome(lost)));
    }
    join_all(open.into_iter().map(settle_at_last)).await;
}

fn names(holds: &[Arc<Hold>]) -> String {
    let names: Vec<_> = holds.iter().map(|hold| hold.name()).collect();
    names.join(", ")
}

/// Settles a hold without a waiting caller.
async fn settle_at_last(hold: &Arc<Hold>) {
    let core = &hold.core;
    let mut budget = core.call_budget(core.timing.linger);
    budget.deadline = budget.deadline.max(hold.state().server_end());
    let mut settled = settle(hold, budget, RELEASE).await;
    if let Err(error) = &settled {
        note_release_failed(core, hold.name(), error.clone());
        if !error.is_io() {
            // The failure is reported now, but the request is repeated until the lease ends.
            settled = settle(hold, budget.retrying_refusals(), RELEASE).await;
        }
    }
    let target = hold.state().target();
    hold.change_sent(target);
    if settled.is_err() {
        hold.leave_places();
    }
}

/// Asks the server for the change that the shares of the hold need. If the server did not have the hold, returns why it
/// was lost before.
async fn settle(
    hold: &Arc<Hold>,
    budget: CallBudget,
    operation: &'static str,
) -> Result<Option<LostReason>> {
    let _one_at_a_time = hold.one_at_a_time(budget, operation).await?;
    let (core, lane) = (&hold.core, Lane::Command);
    loop {
        let sent = core.clock.now();
        let change = hold.state().needed_change(sent);
        let Some(call) = hold.call_for(change) else {
            return Ok(None);
        };
        let mut window = budget;
        // A keep request contains the remaining time, so a later one differs. Within one reply time it is repeated
        // unchanged.
        let is_timed = matches!(change, ServerChange::Keep(_));
        if is_timed {
            window.deadline = budget.deadline.min(sent.after(budget.reply_timeout));
        }
        let run = pin!(core.scripts.run_behind(None, sent, lane, &call, window));
        let on_its_way = || hold.change_sent(change.mode());
        let in_doubt = || {
            if change.mode().is_none() {
                hold.state().may_be_released(sent);
            }
        };
        let failure = match once_sent(run, on_its_way).await {
            Ok(answer) => {
                let released = reply::released(&answer.value).map_err(|error| {
                    in_doubt();
                    error.during(operation).of_lock(hold.name())
                })?;
                let (first_sent, is_repeated) = (answer.first_sent, answer.repeated);
                let lost = hold.settled(change, released, first_sent, is_repeated);
                let is_next = change == ServerChange::Downgrade && hold.state().is_kept();
                if is_next && lost.is_none() {
                    continue;
                }
                if is_timed {
                    // Only now, because removing the places also releases the hold.
                    hold.leave_places();
                }
                return Ok(lost);
            }
            Err(failure) => failure,
        };
        if failure.executed == Executed::Maybe {
            in_doubt();
        }
        let is_over = budget.ends_with(&failure) || core.clock.now() >= budget.deadline;
        if is_over || !is_timed {
            return Err(failure.into_error(operation).of_lock(hold.name()));
        }
    }
}
