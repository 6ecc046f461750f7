//! One hold at the server and everything local that belongs to it.
//!
//! A hold is shared by the guards of one owner on one lock. Invariants: its state goes from held to
//! left or lost and never back; its local deadline is counted from before the request was sent and
//! ends before the server's; the counts at the server are only ever set to numbers, one operation at
//! a time, so that a repeat changes nothing; leaving to no guard always ends in a release.

pub(crate) mod bound;
pub(crate) mod bundle;
pub(crate) mod core;
pub(crate) mod grant_message;
pub(crate) mod handoff;
pub(crate) mod head_watch;
pub(crate) mod local;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod quorum;
pub(crate) mod reenter;
pub(crate) mod registry;
mod settle;
mod share;
mod share_lease;
pub(crate) mod silence;
pub(crate) mod subscription;
pub(crate) mod undo;
pub(crate) mod unguarded;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use self::core::Core;
use self::local::LocalLock;
use self::unguarded::Unguarded;
use crate::clock::Tick;
use crate::conn::Lane;
use crate::counts::{Counts, Mode};
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::hint::{Hint, Mark};
use crate::hold::protocol::{HolderRef, Protocol};
use crate::keys::LockName;
use crate::lost::LostReason;
use crate::options::{LeasePolicy, Replication};
use crate::owner::Owner;
use crate::script::{Call, CallBudget, catalog};
use crate::watchdog::{Due, Leased, RenewalRequest};

pub(crate) use share::Share;
pub(crate) use share_lease::ShareLease;
use share_lease::ShareLeases;

#[derive(Debug)]
pub(crate) struct Hold {
    core: Arc<Core>,
    local: Arc<LocalLock>,
    protocol: &'static dyn Protocol,
    name: LockName,
    /// What replicas have confirmed of it.
    replication: Option<Replication>,
    /// When the request that was granted was sent.
    asked: Tick,
    /// Whether it was granted later than that, nobody here knows when.
    by_handover: bool,
    /// The id of this hold at the watchdog, and its number in the holder id.
    number: u64,
    holder: Arc<str>,
    state: Mutex<State>,
    /// One operation on the counts at a time.
    operation: tokio::sync::Mutex<()>,
    /// Given when the hold is lost, or its deadline moves.
    changed: Hint,
    /// Those it is a member of, to be told if it is lost.
    groups: Mutex<Vec<Weak<dyn Group>>>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Whose it is now: it may pass from one task of this client to another.
    owner: Owner,
    /// Guards alive.
    counts: Counts,
    /// Guards that were forgotten: their share is never given back.
    forgotten: Counts,
    /// The counts the server was last known to have; `None` if that is in doubt.
    confirmed: Option<Counts>,
    /// The end of the lease by the local clock.
    deadline: Tick,
    /// No lease that was asked for and answered lasts longer at the server, nor one of a renewal.
    server_deadline: Tick,
    /// Nor one that may still be executed.
    late_deadline: Tick,
    /// The longest lease that may have been asked for.
    lease: Duration,
    /// A call about it that gets no answer goes on for this long.
    give_up: Duration,
    /// Of the guards alive.
    leases: ShareLeases,
    /// It has passed to a task that has not taken it yet, and may never be polled again: nobody renews
    /// it for that one.
    unclaimed: bool,
    /// Whether a guard of it was made for its owner; until then it is a call's that goes on.
    guarded: bool,
    /// It was handed over, and has not had its whole lease yet: no renewal is due before this.
    grace_end: Option<Tick>,
    token: Option<FencingToken>,
    /// Later tokens that the server gives to nobody else.
    spare_tokens: Range<u64>,
    /// Since when it is in doubt whether the server has it; a renewal sent later tells.
    doubted: Option<Tick>,
    /// The server may still have a request to enter it again, and execute that when it can.
    late_entry: bool,
    /// A release is decided on and was not sent yet.
    unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// No guard is left: it was released, or is being released.
    Released,
    /// No guard is left and nobody will release it.
    Forgotten,
    Lost(LostReason),
}

/// What a new hold is made of.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) owner: Owner,
    pub(crate) number: u64,
    pub(crate) holder: Arc<str>,
    /// When the request that was granted was sent.
    pub(crate) sent: Tick,
    /// A mark of [`Locals::moved`](local::Locals::moved), taken before that.
    pub(crate) moved: Mark,
    /// If the lock was handed over, the lease that is certain from `sent` on. It was given later.
    pub(crate) handover: Option<Duration>,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    pub(crate) token: Option<FencingToken>,
    /// Later tokens that the server gives to nobody else.
    pub(crate) spare_tokens: Range<u64>,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

/// A lock that was handed over comes with a short lease. Its holder has this long, or a quarter of it, to
/// be done before a renewal makes it a whole one.
const HANDOVER_GRACE: Duration = Duration::from_millis(100);

/// Local deadlines end this much before the server's: clocks that differ by one percent in rate,
/// and the time a server takes to notice an expiry.
fn margin(lease: Duration) -> Duration {
    (lease / 100 + Duration::from_millis(2)).min(lease / 4)
}

/// Renewals come up to this part of a lease early, so as to be due together with others.
const RENEWED_TOGETHER: u32 = 32;

/// Holds that concern each other.
trait Group: Debug + Send + Sync {
    /// One of them is lost. Called without any lock.
    fn member_lost(self: Arc<Self>, reason: LostReason);
}

/// Until when a lease is certain that was asked for at `sent`.
pub(crate) fn local_deadline(sent: Tick, lease: Duration) -> Tick {
    sent.after(lease - margin(lease))
}

impl Hold {
    /// A hold that was just granted, with one share. Starts its renewals.
    pub(crate) fn granted(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        protocol: &'static dyn Protocol,
        name: &LockName,
        new: NewHold,
    ) -> Share {
        let lease = new.policy.lease();
        let given = new.handover.unwrap_or(lease);
        let now = core.clock.now();
        let deadline = local_deadline(new.sent, given);
        let grace = HANDOVER_GRACE.min(now.until(deadline) / 4);
        let grace_end = new.handover.map(|_| now.after(grace));
        let share_lease = match new.policy.is_renewed() {
            true => ShareLease::Renewed(lease),
            false => ShareLease::Until(deadline),
        };
        let hold = Arc::new(Self {
            core: Arc::clone(core),
            local: Arc::clone(local),
            protocol,
            name: name.clone(),
            replication: new.replication,
            asked: new.sent,
            by_handover: new.handover.is_some(),
            number: new.number,
            holder: new.holder,
            state: Mutex::new(State {
                phase: Phase::Held,
                owner: new.owner,
                counts: Counts::one(new.mode),
                forgotten: Counts::NONE,
                confirmed: Some(Counts::one(new.mode)),
                deadline,
                // What was asked of it so far was executed by now.
                server_deadline: now.after(given),
                late_deadline: Tick::ZERO,
                lease,
                give_up: new.give_up,
                leases: ShareLeases::of(share_lease),
                unclaimed: false,
                guarded: false,
                grace_end,
                token: new.token,
                spare_tokens: new.spare_tokens,
                doubted: None,
                late_entry: false,
                unsent: false,
            }),
            operation: tokio::sync::Mutex::new(()),
            changed: Hint::default(),
            groups: Mutex::default(),
        });
        let owner = hold.owner();
        local.add(&hold);
        // Of two that exclude each other, the one who asked later was granted later. The answer that
        // says so may be the first to be looked at. When a lock was handed over nobody here knows: the
        // one that is heard of now counts, if the server agrees.
        let mut in_doubt = false;
        for other in local.others(&hold) {
            if new.mode == Mode::Shared && !other.is_exclusive() {
                continue;
            }
            let is_known = !hold.by_handover && !other.by_handover;
            in_doubt |= !is_known;
            if !is_known || other.asked <= hold.asked {
                other.revoked();
            } else {
                hold.lose(LostReason::Revoked);
            }
        }
        let first_look = hold.state.lock().next_look();
        let weak: Weak<Self> = Arc::downgrade(&hold);
        core.watchdog.enrol(hold.number, first_look, weak);
        // The server that granted it may not be the one that answers now, and those that were looked at
        // for that reason were looked at without this one.
        if in_doubt || core.locals.moved.mark() != new.moved {
            hold.verify();
        }
        if core.is_closed() {
            hold.close();
        }
        Share::of(hold, new.mode, owner, share_lease)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Host and port of the server that has it, for messages.
    fn endpoint(&self) -> String {
        self.core.scripts.transport.endpoint(self.name.key())
    }

    pub(crate) fn holder_id(&self) -> &str {
        &self.holder
    }

    pub(crate) fn owner(&self) -> Owner {
        self.state.lock().owner.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Whether it keeps out everybody else.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.state.lock().wanted().exclusive > 0
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state.lock().token
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.state.lock().deadline
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.remaining_of(ShareLease::Until(Tick::NEVER))
    }

    /// Of one share.
    pub(crate) fn remaining_of(&self, share_lease: ShareLease) -> Duration {
        let now = self.core.clock.now();
        match self.expire_if_due() {
            Some(_) => Duration::ZERO,
            None => now.until(self.deadline().min(share_lease.end())),
        }
    }

    fn age(&self) -> Duration {
        self.asked.until(self.core.clock.now())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.expire_if_due().is_none() && self.state.lock().phase == Phase::Held
    }

    /// Whether it is held, and the server was not asked after it in vain.
    fn is_certain(&self) -> bool {
        self.is_held() && self.state.lock().doubted.is_none()
    }

    /// Has the server asked whether it still has it.
    fn verify(&self) {
        let now = self.core.clock.now();
        self.doubt(now);
        self.core.watchdog.shift(self.number, now);
    }

    /// Why it is lost, if it is. The clock decides, whatever the watchdog has had time to notice.
    pub(crate) fn expire_if_due(&self) -> Option<LostReason> {
        let (phase, deadline) = {
            let state = self.state.lock();
            (state.phase, state.deadline)
        };
        match phase {
            Phase::Lost(reason) => Some(reason),
            Phase::Held if self.core.clock.now() >= deadline => {
                self.lose(LostReason::Expired);
                Some(LostReason::Expired)
            }
            _ => None,
        }
    }

    /// Why one share is lost, if it is: with the hold, or at an end of its own.
    pub(crate) fn loss_of(&self, share_lease: ShareLease) -> Option<LostReason> {
        self.expire_if_due().or_else(|| self.ended(share_lease))
    }

    fn ended(&self, share_lease: ShareLease) -> Option<LostReason> {
        share_lease.loss_at(self.core.clock.now())
    }

    /// Resolves when this share is lost. Carries its own timer, so that it needs neither the watchdog
    /// nor the network. Cancel safe.
    pub(crate) async fn lost(&self, share_lease: ShareLease) -> LostReason {
        loop {
            let mark = self.changed.mark();
            if let Some(reason) = self.loss_of(share_lease) {
                return reason;
            }
            let is_held = self.state.lock().phase == Phase::Held;
            let end = self.deadline().min(share_lease.end());
            tokio::select! {
                () = self.changed.past(mark) => {}
                // One that was given back is never lost.
                () = self.core.clock.sleep_until(end), if is_held => {}
            }
        }
    }

    /// The client is being shut down: nobody will renew this any more. What no guard holds is given
    /// back.
    pub(crate) fn close(&self) {
        self.lose(LostReason::Closed);
        let unguarded = {
            let state = self.state.lock();
            (!state.guarded).then(|| self.unguarded(&state))
        };
        if let Some(unguarded) = unguarded {
            unguarded.undo_later(&self.core, Lane::Command);
        }
    }

    /// There is a guard of it.
    pub(crate) fn guarded(&self) {
        self.state.lock().guarded = true;
    }

    fn unguarded(&self, state: &State) -> Unguarded {
        Unguarded {
            protocol: self.protocol,
            name: self.name.clone(),
            holder: Arc::clone(&self.holder),
            fenced: state.token.is_some(),
            lease: state.lease,
        }
    }

    /// Ends a guard without giving its share back: when it was the last, renewals stop and the
    /// lease runs out by itself.
    pub(crate) fn forget(&self, mode: Mode, share_lease: ShareLease) {
        let mut state = self.state.lock();
        state.leaves(share_lease);
        state.counts = state.counts.lowered(mode);
        state.forgotten = state.forgotten.raised(mode);
        if state.counts.is_none() && state.phase == Phase::Held {
            state.phase = Phase::Forgotten;
            drop(state);
            self.end();
            self.local.wake_waiters();
        }
    }

    fn lose(&self, reason: LostReason) {
        let mut state = self.state.lock();
        if state.phase != Phase::Held {
            return;
        }
        state.phase = Phase::Lost(reason);
        drop(state);
        self.end();
        self.local.wake_waiters();
        self.changed.give();
        let groups = std::mem::take(&mut *self.groups.lock());
        for group in groups.iter().filter_map(Weak::upgrade) {
            group.member_lost(reason);
        }
    }

    /// No longer held, for whatever reason: no renewals, and nobody enters it.
    fn end(&self) {
        self.core.watchdog.withdraw(self.number);
        self.local.remove(self);
    }

    /// Makes the server's counter of fencing tokens at least `token`, which this hold has from then
    /// on: tokens that other servers gave for the same lock.
    pub(crate) async fn raise_token(
        &self,
        token: FencingToken,
        operation: &'static str,
    ) -> Result<()> {
        let key = self.name.key();
        let call = Call::new(&catalog::RAISE_TOKEN, key, &[&self.name.token_key()]);
        let call = call.arg(token.get()).arg(self.core.timing.token_retention);
        let budget = self.call_budget();
        let raised = self.core.scripts.run(Lane::Command, &call, budget).await;
        raised.map_err(|failure| failure.into_error(operation).of_lock(self.name()))?;
        let mut state = self.state.lock();
        state.token = Some(token);
        state.spare_tokens = 0..0;
        Ok(())
    }

    /// How long an operation on it that starts now may go on.
    fn call_budget(&self) -> CallBudget {
        let give_up = self.state.lock().give_up;
        self.core.call_budget(give_up)
    }

    /// Has `group` told when it is lost, if it is not lost yet.
    fn enter_group(&self, group: Weak<dyn Group>) {
        self.groups.lock().push(group);
    }

    fn leave_group(&self, group: *const ()) {
        let mut groups = self.groups.lock();
        groups.retain(|other| other.as_ptr().cast::<()>() != group);
    }

    fn holder_ref(&self, counts: Counts) -> HolderRef<'_> {
        HolderRef {
            name: &self.name,
            id: &self.holder,
            counts,
            fenced: self.token().is_some(),
            token_retention: self.core.timing.token_retention,
        }
    }

    /// Takes over what the server has confirmed, unless it is too late for that.
    fn extend(&self, sent: Tick, lease: Duration) -> bool {
        let now = self.core.clock.now();
        let mut state = self.state.lock();
        if state.phase != Phase::Held || now >= state.deadline {
            return false;
        }
        state.deadline = state.deadline.max(local_deadline(sent, lease));
        state.grace_end = None;
        true
    }
}

impl State {
    /// The counts the server should have.
    fn wanted(&self) -> Counts {
        self.counts.plus(self.forgotten)
    }

    /// A share is given back, or forgotten.
    fn leaves(&mut self, share_lease: ShareLease) {
        self.leases.remove(share_lease);
        self.keep_to_leases();
    }

    /// It lasts for none of its shares longer than that one wants, though it may at the server.
    fn keep_to_leases(&mut self) {
        self.deadline = self.deadline.min(self.leases.end());
    }

    /// A lease of this length is about to be asked for.
    fn will_ask(&mut self, now: Tick, lease: Duration) {
        self.server_deadline = self.server_deadline.max(now.after(lease));
    }

    /// A lease is about to be asked for that may be executed as late as `until`. What was known before, to
    /// be told by [`answered`](Self::answered).
    fn will_ask_until(&mut self, until: Tick, lease: Duration) -> Tick {
        let before = self.late_deadline;
        self.late_deadline = before.max(until.after(lease));
        before
    }

    /// That lease was given by now, and is not given once more.
    fn answered(&mut self, now: Tick, lease: Duration, before: Tick) {
        self.late_deadline = before;
        self.will_ask(now, lease);
    }

    /// No lease that was ever asked for lasts longer at the server.
    fn server_end(&self) -> Tick {
        self.server_deadline.max(self.late_deadline)
    }

    /// When the watchdog has to look at it: when a third of the lease has passed, or at its end.
    fn next_look(&self) -> Tick {
        if let Some(since) = self.doubted {
            // At once: an answer that is older than the doubt does not end it.
            since
        } else if let Some(lease) = self.leases.lease()
            && !self.unclaimed
        {
            // Those that are due at about the same time go together, over one command.
            let look = self
                .deadline
                .before(lease * 2 / 3)
                .rounded_down(lease / RENEWED_TOGETHER);
            look.max(self.grace_end.unwrap_or(Tick::ZERO))
        } else {
            self.deadline
        }
    }
}

impl Leased for Hold {
    fn doubt(&self, now: Tick) {
        self.state.lock().doubted = Some(now);
    }

    fn wake(&self) {
        self.changed.give();
    }

    fn due(&self, now: Tick) -> Due {
        let mut state = self.state.lock();
        if state.phase != Phase::Held {
            return Due::Gone;
        }
        if now >= state.deadline {
            return Due::Expired;
        }
        let look = state.next_look();
        if look > now && state.doubted.is_none() {
            return Due::Later(look);
        }
        // A lease that is not renewed is asked after, and gets no more than it has.
        let lease = state.leases.lease();
        let lease = lease.unwrap_or_else(|| now.until(state.deadline));
        state.will_ask(now, lease);
        let wait = match state.grace_end.is_some() {
            // There is to be time for another.
            true => (lease / 6).min(now.until(state.deadline) / 2),
            false => lease / 6,
        };
        Due::Renew {
            request: RenewalRequest {
                script: self.protocol.renewal(),
                key: Arc::clone(self.name.key()),
                holder: Arc::clone(&self.holder),
                lease,
            },
            deadline: state.deadline,
            wait,
        }
    }

    fn renewed(&self, sent: Tick, lease: Duration) -> Tick {
        if self.extend(sent, lease) {
            self.changed.give();
        }
        let mut state = self.state.lock();
        state.doubted.take_if(|since| *since <= sent);
        // The one it was renewed for may have gone meanwhile.
        state.keep_to_leases();
        state.next_look()
    }

    fn revoked(&self) {
        self.lose(LostReason::Revoked);
    }

    fn expired(&self) {
        self.lose(LostReason::Expired);
    }
}
