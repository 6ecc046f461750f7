//! Settling: downgrade and release at the server, of one hold or several, and raising its counter of tokens.
//!
//! The server counts one hold for all guards, in the strongest of their modes. An operation that is interrupted, by a
//! dropped future or by a server without an answer, goes to the watchdog task, which repeats it until the server agrees
//! or the lease is over. Releases of several holds on one server are sent in one write.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::event::{Effects, Event};
use super::facts::{ask_why, note_release_failed};
use super::registry::SharedHold;
use super::release::{Releasing, release_call};
use super::shell::{Hold, RawShare};
use crate::api::error::Result;
use crate::api::loss::LostReason;
use crate::conn::Lane;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::{Counts, Mode};
use crate::engine::hint::Operation;
use crate::script::reply::{self, Released};
use crate::script::{Answer, CallBudget, on_first_poll};

/// The operation's name in errors.
const DOWNGRADE: &str = "downgrade";

impl RawShare {
    /// Turns an exclusive share into a shared share. The server does not know of it yet.
    ///
    /// # Errors
    /// Fails if the share is lost. It has ended then.
    pub(super) fn begin_downgrade(self) -> Result<Self> {
        let hold = Arc::clone(&self.hold);
        let now = hold.core.clock.now();
        if let Some(reason) = self.lease.loss_at(now) {
            self.release_later(now);
            return Err(hold.not_held(DOWNGRADE, reason));
        }
        if let Some(reason) = hold.end_share(Event::ShareDowngraded, now).refused {
            let error = hold.not_held(DOWNGRADE, reason);
            hold.clean_up(reason);
            return Err(error);
        }
        Ok(Self {
            mode: Mode::Shared,
            ..self
        })
    }

    /// Releases the share and waits for the server to agree. `now` was read just before. If this future is dropped,
    /// the watchdog task finishes the release.
    pub(super) fn release(self, now: Tick) -> impl Future<Output = Result<()>> {
        release_all(now, Few::from_buf([self]))
    }

    /// Releases the share without waiting, as `Drop` does. Never blocks or panics.
    pub(super) fn release_later(self, now: Tick) {
        release_all_later(now, Few::from_buf([self]));
    }
}

impl Hold {
    /// Whether one script can release both. A downgrade goes alone, and so does a hold with used places.
    fn is_beside(&self, other: &Self) -> bool {
        let ends = |hold: &Self| {
            let state = hold.state();
            state.target_counts().is_none() && state.places().is_empty()
        };
        let (key, others_key) = (self.name.key(), other.name.key());
        self.core.is_beside(key, &other.core, others_key) && ends(self) && ends(other)
    }

    /// Waits for the server to agree to a downgrade. If this future is dropped, the watchdog task finishes it.
    pub(super) async fn settle_downgrade(self: &Arc<Self>) -> Result<()> {
        let holds = std::slice::from_ref(self);
        let now = self.core.clock.now();
        settle_by(holds, Repair::armed(holds), DOWNGRADE, now).await
    }

    /// Ends or downgrades one share.
    fn end_share(&self, event: Event, now: Tick) -> Effects {
        // Mark the hold lost if its deadline has passed.
        self.loss_at(now);
        self.apply_to(self.state(), now, event)
    }

    /// Releases a lost hold after its last guard, because the work under it is over. The server may still have it,
    /// and others need not wait for its lease.
    fn clean_up(self: Arc<Self>, reason: LostReason) {
        // A guard that outlives its client leaves the lock to its lease.
        let is_left = reason == LostReason::Closed && self.core.is_shut();
        if !is_left && self.state().counts().is_none() {
            settle_later(Few::from_buf([self]));
        }
    }

    /// Applies the server's answer to a request for these counts. Returns why the hold was lost before, if the server
    /// had no such hold. `is_repeated` means that the counts were sent before, by this call or for another guard.
    fn settled(
        &self,
        counts: Counts,
        released: Released,
        answer: &Answer,
        is_repeated: bool,
    ) -> Option<LostReason> {
        if counts.is_none() {
            self.core.remove_unguarded(self.number);
        }
        let was_in_time = answer.first_sent < self.deadline();
        let lost = match released {
            Released::Done { receivers } => {
                self.local.note_receivers(receivers);
                None
            }
            // An earlier request without a reply has released it, as far as anyone can tell: this holder id is used
            // for nothing else.
            Released::NotHeld if is_repeated && counts.is_none() && was_in_time => None,
            // It was sent while the server should have had the hold.
            Released::NotHeld if was_in_time => Some(LostReason::Revoked),
            Released::NotHeld => Some(LostReason::Expired),
        };
        match lost {
            None => {
                self.apply(Event::CountsSettled(counts));
            }
            Some(reason) if !counts.is_none() => {
                self.apply(Event::Lost(reason));
            }
            // Its loss was never reported, and only this caller will learn of it.
            Some(LostReason::Revoked) if self.state().loss().is_none() => {
                ask_why(&self.core, self.name(), self.holder_id());
            }
            Some(_) => {}
        }
        lost
    }
}

/// Releases shares and waits for the servers to agree.
pub(super) async fn release_all(now: Tick, shares: Few<RawShare>) -> Result<()> {
    const OPERATION: &str = "release";
    // Also for shares of which the server need not hear.
    let alive = shares.first().map_or(Ok(()), |share| {
        let alive = share.hold.core.ensure_alive(OPERATION);
        alive.map_err(|error| error.of_lock(share.hold.name()))
    });
    let Ended {
        to_settle,
        lost,
        in_doubt,
    } = end_all(shares, now);
    let lost = lost.map(|(hold, reason)| hold.not_held(OPERATION, reason));
    let settled = match by_server(to_settle).as_slice() {
        // The others check that themselves.
        [] => alive,
        [holds] => settle_by(holds, Repair::armed(holds), OPERATION, now).await,
        servers => {
            // Arm all repairs before the first of them is awaited.
            let mut all = Vec::with_capacity(servers.len());
            for holds in servers {
                all.push(settle_by(holds, Repair::armed(holds), OPERATION, now));
            }
            join_all(all).await.into_iter().collect()
        }
    };
    if !in_doubt.is_empty() {
        // Boxed, because it is rare and large.
        Box::pin(all_confirmed(in_doubt)).await?;
    }
    lost.map_or(settled, Err)
}

async fn all_confirmed(holds: Vec<Arc<Hold>>) -> Result<()> {
    for hold in holds {
        hold.confirmed("release").await?;
    }
    Ok(())
}

/// Releases shares without waiting.
pub(super) fn release_all_later(now: Tick, shares: Few<RawShare>) {
    for holds in by_server(end_all(shares, now).to_settle) {
        settle_later(holds);
    }
}

/// The result of ending several shares.
struct Ended {
    /// The server has to hear of these.
    to_settle: Few<Arc<Hold>>,
    /// The first hold that was lost before.
    lost: Option<(Arc<Hold>, LostReason)>,
    /// Other readers have these, if the server still has them.
    in_doubt: Vec<Arc<Hold>>,
}

/// Ends shares, last one first. Each is handed on, left to the client or to readers that joined, or ended. A waiter
/// for several locks waits for the first of them, and then finds all of them free.
fn end_all(shares: Few<RawShare>, now: Tick) -> Ended {
    let mut first_lost = None;
    let mut in_doubt = Vec::new();
    let mut to_settle = Few::with_capacity(shares.len());
    for share in shares.into_iter().rev() {
        let RawShare {
            hold,
            owner,
            mode,
            lease,
            kept_until,
        } = share;
        let is_to_be_left = now < kept_until;
        if !is_to_be_left && (hold.hand_off_next(mode, lease) || hold.leave_to_client(mode, lease))
        {
            continue;
        }
        let ended = lease.loss_at(now);
        let released = Event::ShareReleased {
            owner,
            mode,
            lease,
            kept_until,
        };
        let effects = hold.end_share(released, now);
        match effects.refused {
            None => {
                first_lost = ended
                    .map(|reason| (Arc::clone(&hold), reason))
                    .or(first_lost);
                if effects.is_in_doubt {
                    in_doubt.push(hold);
                } else if !effects.is_local {
                    to_settle.push(hold);
                }
            }
            Some(reason) => {
                Arc::clone(&hold).clean_up(reason);
                first_lost = Some((hold, reason));
            }
        }
    }
    Ended {
        to_settle,
        lost: first_lost,
        in_doubt,
    }
}

/// Groups holds that one script can release, in order.
fn by_server(holds: Few<Arc<Hold>>) -> Few<Few<Arc<Hold>>> {
    // Nearly always one group.
    if let Some((first, others)) = holds.split_first()
        && others.iter().all(|other| first.is_beside(other))
    {
        return Few::from_buf([holds]);
    }
    let mut servers: Few<Few<Arc<Hold>>> = Few::new();
    for hold in holds {
        match servers.iter_mut().find(|holds| holds[0].is_beside(&hold)) {
            Some(holds) => holds.push(hold),
            None => servers.push(Few::from_buf([hold])),
        }
    }
    servers
}

/// Settles for a waiting caller. Holds that end are released in the caller's future, because no other operation
/// follows on them. If that is interrupted, the watchdog task finishes it. It drives all other operations from the
/// start.
async fn settle_by(
    holds: &[Arc<Hold>],
    mut repair: Repair<'_>,
    operation: &'static str,
    now: Tick,
) -> Result<()> {
    let core = &holds[0].core;
    let alive = core.ensure_alive(operation);
    alive.map_err(|error| error.of_lock(&names(holds)))?;
    let given_up = now.after(holds[0].state().give_up());
    let budget = CallBudget::until(given_up.min(end_of_leases(holds)), core.timing.reply);
    let settled = match begin_to_end(holds) {
        Some(_begun) => settle_begun(holds, budget, operation).await?,
        None => {
            let all: Few<Arc<Hold>> = holds.into();
            let settling = async move {
                let mut repair = Repair::armed(&all);
                let settled = settle(&all, budget, operation).await?;
                repair.disarm();
                Ok(settled)
            };
            let settling = holds[0].driven(operation, settling);
            repair.disarm();
            settling.await?
        }
    };
    repair.disarm();
    let mut lost = holds.iter().zip(settled);
    match lost.find_map(|(hold, lost)| Some((hold, lost?))) {
        Some((hold, reason)) => Err(hold.not_held(operation, reason)),
        None => Ok(()),
    }
}

/// Begins the last operation on these holds, if it releases all of them and no other operation is under way.
fn begin_to_end(holds: &[Arc<Hold>]) -> Option<Few<Operation<'_>>> {
    let ends = |hold: &Arc<Hold>| {
        let state = hold.state();
        state.target_counts().is_none() && !state.is_kept()
    };
    if !holds.iter().all(ends) {
        return None;
    }
    holds.iter().map(|hold| hold.begin_operation()).collect()
}

fn names(holds: &[Arc<Hold>]) -> String {
    let names: Vec<_> = holds.iter().map(|hold| hold.name()).collect();
    names.join(", ")
}

pub(super) fn settle_later(holds: Few<Arc<Hold>>) {
    let core = Arc::clone(&holds[0].core);
    let work = async move {
        let core = &holds[0].core;
        let mut budget = core.call_budget(core.timing.linger);
        budget.deadline = budget.deadline.max(end_of_leases(&holds));
        let mut settled = settle(&holds, budget, "release").await;
        if let Err(error) = &settled {
            note_release_failed(core, names(&holds), error.clone());
            if !error.is_io() {
                // Reported at once, but repeated until the lease ends.
                settled = settle(&holds, budget.retrying_refusals(), "release").await;
            }
        }
        for hold in &holds {
            let counts = hold.state().target_counts();
            hold.apply(Event::CountsSent(counts));
            if settled.is_err() {
                hold.leave_places();
                hold.core.remove_unguarded(hold.number);
            }
        }
    };
    core.watchdog.drive(work.boxed());
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
    settle_begun(holds, budget, operation).await
}

/// As [`settle`], for holds whose operations have begun.
async fn settle_begun(
    holds: &[Arc<Hold>],
    budget: CallBudget,
    operation: &'static str,
) -> Result<Few<Option<LostReason>>> {
    let mut settled = keep_all(holds, budget, operation).await?;
    // Indices of 32 bits, because the future keeps them until the reply.
    let open: Few<(u32, &Hold, Counts, bool)> = (0_u32..)
        .zip(holds)
        .filter(|(index, _)| settled[*index as usize].is_none())
        .filter_map(|(index, hold)| {
            let state = hold.state();
            let counts = state.target_counts();
            let may_be_gone = counts.is_none() && state.may_be_released();
            // The server is asked for two things only: to end a hold, and to downgrade it.
            let is_open = !state.is_settled() && counts.exclusive == 0;
            is_open.then_some((index, &**hold, counts, may_be_gone))
        })
        .collect();
    let Some((_, first, ..)) = open.first() else {
        return Ok(settled);
    };
    let call = match open[..] {
        [(_, hold, counts, _)] if !counts.is_none() => hold.downgrade_call(),
        _ => release_call(open.iter().map(|(_, hold, ..)| *hold)),
    };
    let run = pin!(first.core.scripts.run(Lane::Command, &call, budget));
    let released = open.iter().filter(|(_, _, counts, _)| counts.is_none());
    let releasing = Releasing::of(released.map(|(_, hold, ..)| *hold));
    let on_its_way = || {
        for (_, hold, counts, _) in &open {
            hold.apply(Event::CountsSent(*counts));
        }
    };
    let answer = on_first_poll(pin!(releasing.drive(run)), on_its_way)
        .await
        .map_err(|failure| {
            // The hold that the failure is about, or all of them.
            let about = failure.member().and_then(|member| open.get(member));
            let names: Vec<_> = match about {
                Some((_, hold, ..)) => vec![hold.name()],
                None => open.iter().map(|(_, hold, ..)| hold.name()).collect(),
            };
            failure.into_error(operation).of_lock(&names.join(", "))
        })?;
    let released = match open.len() {
        1 => Few::from_buf([first.protocol.released(&answer.value)?]),
        count => reply::released_each(&answer.value, count)?,
    };
    releasing.answered();
    for ((index, hold, counts, may_be_gone), released) in open.into_iter().zip(released) {
        // A client that is being shut down releases beside our own request, which may not be polled.
        let may_be_gone = may_be_gone || counts.is_none() && hold.core.has_undone(hold.number);
        let is_repeated = answer.repeated || may_be_gone;
        settled[index as usize] = hold.settled(counts, released, &answer, is_repeated);
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

/// Passes holds whose counts at the server are in doubt to the watchdog task when it is dropped.
pub(super) struct Repair<'a>(&'a [Arc<Hold>]);

impl<'a> Repair<'a> {
    pub(super) fn armed(holds: &'a [Arc<Hold>]) -> Self {
        Self(holds)
    }

    pub(super) fn disarm(&mut self) {
        self.0 = &[];
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        for hold in self.0 {
            hold.apply(Event::CountsInDoubt);
        }
        settle_later(self.0.into());
    }
}
