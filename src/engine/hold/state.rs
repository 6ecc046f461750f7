//! The state of one hold: a plain value, without locks, clocks or servers.
//!
//! [`HoldState::apply`] takes an event and returns what its shell has to do. Invariants: a hold goes from held to
//! released, forgotten or lost, once, and never back. A grant counts only if it arrives before the local deadline.
//! The deadline is counted from before the request was sent, and never lies beyond the end of the longest share. The
//! server counts one hold for all shares, alive or forgotten, in the strongest of their modes. Only a hold that is
//! certain and consists of one exclusive share is handed off, or left to its client.

mod joining;
mod keeping;
mod passing;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use super::event::{Effects, Entered, Event, NewHold, NextStep, ReleaseStep};
use super::readers::Readers;
use super::server_lease::ServerLease;
use super::share_lease::{ShareLease, ShareLeases, lease_until, local_deadline};
use super::sticky_span::StickySpan;
use crate::api::fencing::FencingToken;
use crate::api::lost::LostReason;
use crate::api::owner::Owner;
use crate::engine::clock::{Now, Tick};
use crate::engine::counts::{Counts, Mode};

/// A lock that the server handed over comes with a short lease. Its holder can be done within this time, or within a
/// quarter of that lease, before a renewal sets the lease to its full length.
const HANDOVER_GRACE: Duration = Duration::from_millis(100);

/// Renewals may come early by this fraction of a lease, so that they can be sent together with others.
const RENEWED_TOGETHER: u32 = 32;

#[derive(Debug)]
pub(super) struct HoldState {
    phase: Phase,
    /// The present owner. One task of this client may hand the hold off to another.
    owner: Owner,
    /// The shares of live guards.
    counts: Counts,
    /// The shares that were forgotten. They are never released.
    forgotten: Counts,
    /// The counts that the server is known to have: one in one mode, or none. `None` if they are in doubt.
    server_counts: Option<Counts>,
    /// The local deadline.
    deadline: Tick,
    /// How long the server may have it.
    at_server: ServerLease,
    /// The longest lease that may have been requested.
    lease: Duration,
    /// A call about it ends after this time without an answer.
    give_up: Duration,
    /// The leases of live guards.
    leases: ShareLeases,
    /// Whether it belongs to a call that has not returned, or was handed off to a task that has not taken it yet.
    /// Neither may ever be polled again, so no renewal is sent for it.
    is_unclaimed: bool,
    /// Whether the watchdog does not check it before its deadline, because the hold was unclaimed at the last check.
    is_check_put_off: bool,
    /// Whether its owner has a guard of it. If not, it belongs to a call that is not finished.
    has_guard: bool,
    /// The time that released guards asked for: if its last share ends earlier, it is left at the server until then.
    /// [`Tick::ZERO`] if no guard asked, or if it must not be left.
    kept_until: Tick,
    /// How long it stays with its client without a guard.
    sticky: StickySpan,
    /// The readers that joined it, and which others may.
    readers: Readers,
    /// If its downgrade is or was deferred for readers: until when it may exclude others for them.
    downgrade_due: Option<Tick>,
    /// It was handed over and has not had its full lease yet: no renewal is due before this time.
    grace_end: Option<Tick>,
    token: Option<FencingToken>,
    /// Later tokens that the server reserves for this hold.
    spare_tokens: Range<u64>,
    /// When doubt arose whether the server has it. The answer to a later renewal ends the doubt.
    doubted_since: Option<Tick>,
    /// Whether a release was decided on and is not sent yet.
    is_release_unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// No guard is left: it was released, or the release is under way.
    Released,
    /// No guard is left, and nothing will release it.
    Forgotten,
    Lost(LostReason),
}

impl HoldState {
    /// The state of a hold that was just granted, with one share, and the lease of that share.
    pub(super) fn new(now: Tick, new: &NewHold) -> (Self, ShareLease) {
        let lease = new.policy.lease();
        let given = new.handover.unwrap_or(lease);
        let deadline = local_deadline(new.sent, given);
        let grace = HANDOVER_GRACE.min(now.until(deadline) / 4);
        let share = if new.policy.is_renewed() {
            ShareLease::of(new.policy, new.sent, now)
        } else {
            ShareLease::Until(deadline)
        };
        let deadline = deadline.min(share.end());
        let readers = if new.is_joinable {
            Readers::open(now, lease)
        } else {
            Readers::default()
        };
        let state = Self {
            phase: Phase::Held,
            owner: new.owner.clone(),
            counts: Counts::one(new.mode),
            forgotten: Counts::NONE,
            server_counts: Some(Counts::one(new.mode)),
            deadline,
            // All requests so far were executed by now.
            at_server: ServerLease::until(now.after(given)),
            lease,
            give_up: new.give_up,
            leases: ShareLeases::of(share),
            is_unclaimed: true,
            is_check_put_off: false,
            has_guard: false,
            kept_until: Tick::ZERO,
            sticky: StickySpan::default(),
            readers,
            downgrade_due: None,
            grace_end: new.handover.map(|_| now.after(grace)),
            token: new.token,
            spare_tokens: new.spare_tokens.clone(),
            doubted_since: None,
            is_release_unsent: false,
        };
        (state, share)
    }

    /// Applies an event, and returns the effects to carry out. Reads the clock only for events that need the time.
    pub(super) fn apply(&mut self, now: impl Now, event: Event) -> Effects {
        let mut effects = Effects::default();
        match event {
            Event::ClockRead => return self.expire_if_due(now.tick()),
            Event::Lost(LostReason::Expired) => return self.expire(now.tick()),
            Event::Lost(reason) => return self.lose(reason, Tick::ZERO),
            Event::GuardMade { sticky } => {
                self.has_guard = true;
                self.sticky.ask(sticky);
                effects.check_at = self.claim();
            }
            Event::LeftToClient { before, after, end } => {
                self.sticky.begin(end);
                effects.check_at = self.leave_to_client(before, after);
            }
            Event::Recalled => self.sticky.recall(),
            Event::Joined { owner, is_claimed } => {
                self.join(owner, is_claimed);
                if is_claimed {
                    effects.check_at = self.claim();
                }
            }
            Event::DowngradeDeferred(deferred) => {
                effects.check_at = self.defer_downgrade(deferred);
            }
            Event::DowngradeDue => return self.end_deferral(),
            Event::ShareReleased {
                owner,
                mode,
                lease,
                kept_until,
            } => {
                self.ask_to_keep(kept_until);
                return self.end_share(now, mode, Some((&owner, lease)));
            }
            Event::ShareDowngraded => return self.end_share(now, Mode::Exclusive, None),
            Event::ShareForgotten { owner, mode, lease } => {
                return self.forget_share(&owner, mode, lease);
            }
            Event::ShareLeaseChanged { before, after } => {
                self.leases.add(after);
                self.remove_lease(before);
                self.put_off_check();
                return Effects::check(self.next_check());
            }
            Event::CountsSent(counts) => return self.counts_sent(counts),
            Event::CountsSettled(counts) => self.server_counts = Some(counts),
            Event::CountsInDoubt => self.server_counts = None,
            Event::Doubted => self.doubted_since = Some(now.tick()),
            Event::RenewalBegun { lease } => self.at_server.note_sent(now.tick(), lease),
            Event::Renewed { sent, lease } => return self.renewed(now.tick(), sent, lease),
            Event::Entered(entered) => return self.add_share(now.tick(), entered),
            Event::LeaseSent { lease, until } => self.at_server.note_sent_until(until, lease),
            Event::LeaseAnswered { lease, is_repeated } => {
                self.at_server.note_answered(now.tick(), lease, is_repeated);
                self.lease = self.lease.max(lease);
            }
            Event::HandedOff(next) => self.change_owner(next),
            Event::HandoffAccepted(mode) => return self.accept_handoff(now.tick(), mode),
            Event::TokenRaised(token) => self.set_token(token),
        }
        effects
    }

    fn expire_if_due(&mut self, now: Tick) -> Effects {
        if now < self.deadline {
            return Effects::default();
        }
        self.expire(now)
    }

    /// Its deadline has passed: no renewal was answered in time, or its shares ended by themselves. In the second
    /// case the server still has it, and keeps it for as long as a released guard asked for.
    fn expire(&mut self, now: Tick) -> Effects {
        match self.leases.loss_at(now) {
            Some(reason) => self.lose(reason, self.kept_after(now)),
            None => self.lose(LostReason::Expired, Tick::ZERO),
        }
    }

    fn lose(&mut self, reason: LostReason, kept_until: Tick) -> Effects {
        if self.phase != Phase::Held {
            return Effects::default();
        }
        self.phase = Phase::Lost(reason);
        self.kept_until = kept_until;
        Effects {
            is_over: true,
            lost: Some(reason),
            wakes_waiters: true,
            ..Effects::default()
        }
    }

    /// Ends a share. If `ends` is `None`, turns an exclusive share into a shared share.
    fn end_share(
        &mut self,
        now: impl Now,
        mode: Mode,
        ends: Option<(&Owner, ShareLease)>,
    ) -> Effects {
        let was_exclusive = self.is_exclusive();
        let mut effects = Effects {
            is_local: !self.lower_counts(mode, ends),
            ..Effects::default()
        };
        if let Phase::Lost(reason) = self.phase {
            effects.refused = Some(reason);
            return effects;
        }
        if effects.is_local {
            effects.is_in_doubt = self.is_doubted();
            return effects;
        }
        match ends {
            Some((_, lease)) => self.remove_lease(lease),
            None => self.counts = self.counts.raised(Mode::Shared),
        }
        effects.is_over = self.counts.is_none();
        if effects.is_over && !self.forgotten.is_none() {
            self.phase = Phase::Forgotten;
            effects.wakes_waiters = true;
            return effects;
        }
        let lets_others_in = effects.is_over || (was_exclusive && !self.is_exclusive());
        if lets_others_in && !self.is_release_unsent {
            self.is_release_unsent = true;
            effects.release = Some(ReleaseStep::Decided);
        }
        if effects.is_over {
            self.phase = Phase::Released;
            if self.kept_until != Tick::ZERO {
                self.kept_until = self.kept_after(now.tick());
            }
            effects.is_released = !self.is_kept();
        } else {
            effects.is_local = self.is_settled();
            effects.is_in_doubt = effects.is_local && self.is_doubted();
            // It may have been renewed for the sake of this share.
            self.put_off_check();
            effects.check_at = Some(self.next_check());
        }
        effects
    }

    fn forget_share(&mut self, owner: &Owner, mode: Mode, lease: ShareLease) -> Effects {
        if !self.is_counted_of_forgotten(owner, mode, lease) {
            return Effects::default();
        }
        self.remove_lease(lease);
        let mode = self.counted_as(mode);
        self.counts = self.counts.lowered(mode);
        self.forgotten = self.forgotten.raised(mode);
        let is_over = self.counts.is_none() && self.phase == Phase::Held;
        if is_over {
            self.phase = Phase::Forgotten;
        }
        Effects {
            is_over,
            wakes_waiters: is_over,
            ..Effects::default()
        }
    }

    fn add_share(&mut self, now: Tick, entered: Entered) -> Effects {
        if let Some((sent, lease)) = entered.granted
            && !self.extend(now, sent, lease)
        {
            return Effects::default();
        }
        self.counts = self.counts.raised(entered.mode);
        self.is_unclaimed = false;
        self.readers.enter(&entered.owner, entered.token);
        if let Some(token) = entered.token {
            self.set_token(token);
        }
        self.leases.add(entered.share);
        self.keep_to_leases();
        Effects {
            is_accepted: true,
            check_at: Some(self.next_check()),
            ..Effects::default()
        }
    }

    fn renewed(&mut self, now: Tick, sent: Tick, lease: Duration) -> Effects {
        let wakes_guards = self.extend(now, sent, lease);
        self.is_check_put_off = self.is_unclaimed();
        self.doubted_since.take_if(|since| *since <= sent);
        // The share that needed this renewal may have ended since it was sent.
        self.keep_to_leases();
        Effects {
            wakes_guards,
            ..Effects::default()
        }
    }

    fn set_token(&mut self, token: FencingToken) {
        self.token = Some(token);
        self.spare_tokens = 0..0;
    }

    /// Accepts a lease that the server has confirmed, unless the answer came too late.
    fn extend(&mut self, now: Tick, sent: Tick, lease: Duration) -> bool {
        if self.phase != Phase::Held || now >= self.deadline {
            return false;
        }
        self.deadline = self.deadline.max(local_deadline(sent, lease));
        self.grace_end = None;
        true
    }

    fn remove_lease(&mut self, lease: ShareLease) {
        self.leases.remove(lease);
        self.keep_to_leases();
    }

    /// Limits the deadline to the end of the longest share. The server may have it for longer.
    fn keep_to_leases(&mut self) {
        self.deadline = self.deadline.min(self.leases.end());
    }

    /// The watchdog's next step for this hold.
    pub(super) fn next_step(&self, now: Tick) -> NextStep {
        if self.phase != Phase::Held {
            return NextStep::Gone;
        }
        if now >= self.deadline {
            return NextStep::Expired;
        }
        if self.next_check_of_lease() > now && self.doubted_since.is_none() {
            return NextStep::Wait(self.next_check());
        }
        // The server is asked about a hold that is not renewed, without lengthening its lease.
        let lease = match self.leases.lease() {
            Some(lease) => lease_until(lease, now, self.leases.end().max(self.kept_until)),
            None => now.until(self.deadline),
        };
        let wait = if self.grace_end.is_some() {
            // Leave time for a second attempt.
            (lease / 6).min(now.until(self.deadline) / 2)
        } else {
            lease / 6
        };
        NextStep::Renew { lease, wait }
    }

    /// When the watchdog has to check the hold: after a third of its lease, at its end, or when its downgrade is due.
    pub(super) fn next_check(&self) -> Tick {
        self.next_check_of_lease().min(self.downgrade_due())
    }

    fn next_check_of_lease(&self) -> Tick {
        if let Some(since) = self.doubted_since {
            // At once: an answer older than the doubt does not end it.
            since
        } else if self.is_unclaimed() {
            self.deadline
        } else {
            self.renewal_due()
        }
    }

    /// Returns when a renewal of a claimed hold is due.
    pub(super) fn renewal_due(&self) -> Tick {
        if let Some(lease) = self.leases.lease()
            // Otherwise a renewal would be of no use.
            && self.deadline < self.leases.end()
        {
            // Renewals that are due at about the same time go together, in one command.
            let check = self.deadline.before(lease * 2 / 3);
            let check = check.rounded_down(lease / RENEWED_TOGETHER);
            check.max(self.grace_end.unwrap_or(Tick::ZERO))
        } else {
            self.deadline
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(super) fn loss(&self) -> Option<LostReason> {
        match self.phase {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.target_counts().exclusive > 0
    }

    /// Whether the server may have lost it, as far as this client knows.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted_since.is_some()
    }

    /// The counts that the server should have: one, in the strongest mode of all shares.
    pub(super) fn target_counts(&self) -> Counts {
        self.counts.plus(self.forgotten).at_server()
    }

    /// Whether the server is known to have the target counts.
    pub(super) fn is_settled(&self) -> bool {
        self.server_counts == Some(self.target_counts())
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.token
    }

    pub(super) fn deadline(&self) -> Tick {
        self.deadline
    }

    /// No lease that was ever requested lasts longer at the server.
    pub(super) fn server_end(&self) -> Tick {
        self.at_server.end()
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) fn give_up(&self) -> Duration {
        self.give_up
    }
}
