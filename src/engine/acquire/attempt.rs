//! An attempt to take one lock or several, repeated until the wait for them ends.
//!
//! Each command is an [`Asked`], which goes on without the caller. Invariants: no command is under way between two
//! calls of [`Attempt::ask`]. The holder ids of a command without a clear answer are never used again. An attempt that
//! is dropped leaves nothing at the server.

use std::sync::Arc;

use super::asked::{Asked, Terms};
use super::grant::{Grant, Holders, ServerPlace, UndoneAtClose};
use super::request::{Attempted, Ids, Requests};
use crate::api::error::Result;
use crate::api::holder::HolderId;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::followers::Kept;
use crate::engine::hold::protocol::Queue;
use crate::engine::hold::subscription::GrantMessage;
use crate::engine::hold::turns::HANDOFFS_MAX;
use crate::engine::hold::{Share, local_deadline};
use crate::script::{CallBudget, Restore};

/// The attempts of a call, under one holder id for each lock.
pub(super) struct Attempt<'a> {
    requests: Requests<'a>,
    ids: Ids,
    /// When the last command was made.
    pub(super) asked_at: Tick,
    /// The lock in whose queue at the server the ids may have a place.
    queued_at: Option<usize>,
    /// Has the client undo the ids when it is closed, because they may have a place.
    undone_at_close: Option<Arc<UndoneAtClose>>,
    /// The place in the server's queue, where the server may hand the lock over. Boxed: most locks have no such queue.
    place: Option<Box<ServerPlace>>,
    /// The command that is under way.
    asked: Option<Arc<Asked>>,
    /// Whether the last command may have been executed but got no clear answer. If so, it is undone already.
    pub(super) is_unanswered: bool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(requests: Requests<'a>) -> Self {
        Self {
            requests,
            ids: requests.new_ids(),
            asked_at: Tick::ZERO,
            queued_at: None,
            undone_at_close: None,
            place: None,
            asked: None,
            is_unanswered: false,
        }
    }

    pub(super) fn requests(&self) -> Requests<'a> {
        self.requests
    }

    fn holders(&self) -> Holders<'_> {
        Holders {
            requests: self.requests,
            ids: &self.ids,
        }
    }

    /// The channel on which the server notifies this attempt that the lock may be free.
    pub(super) fn channel(&self, at: usize) -> String {
        self.holders().channel(at)
    }

    /// Undoes the attempt at the server in the background, and goes on under new holder ids.
    pub(super) fn start_over(&mut self) {
        self.leave();
        self.take_new_ids();
    }

    fn take_new_ids(&mut self) {
        self.place_used();
        self.ids = self.requests.new_ids();
    }

    /// Asks the server for all locks, from the head of the local queue of the lock at `at`. If there is a plain
    /// command, it is tried first. Repeats the command while there is no answer.
    ///
    /// `now` was read just now, before any await.
    pub(super) async fn ask(
        &mut self,
        mut plain: Option<&Restore>,
        mut now: Tick,
        at: usize,
        budget: CallBudget,
    ) -> Result<Attempted> {
        loop {
            let asked = self.send(plain.take(), now, at, budget);
            let end = self.asked.insert(asked).ended().await;
            self.asked = None;
            self.is_unanswered = end.is_undone;
            if end.is_undone {
                self.wake_follower();
                self.take_new_ids();
            }
            let Some(attempted) = end.attempted else {
                // An earlier command may still arrive, and must not find its holder id in use.
                now = self.requests.core().clock.now();
                // Boxed because it is rare and large.
                now = Box::pin(self.requests.releases_sent(budget.deadline, now)).await;
                continue;
            };
            match &attempted {
                Ok(Attempted::Granted(_)) => self.place_used(),
                Ok(Attempted::Refused { at: member, .. }) if !end.is_undone => {
                    self.note_refusal(*member, at, end.place, end.is_repeated);
                }
                _ => {}
            }
            return attempted;
        }
    }

    /// Sends one command.
    fn send(
        &mut self,
        plain: Option<&Restore>,
        asked: Tick,
        at: usize,
        budget: CallBudget,
    ) -> Arc<Asked> {
        self.asked_at = asked;
        let mut members = 0..self.requests.all.len();
        let may_queue = members.any(|member| self.requests.heartbeat(member, at, asked).is_some());
        if may_queue && self.undone_at_close.is_none() {
            self.undone_at_close = Some(self.holders().undone_at_close());
        }
        let terms = Terms {
            at,
            budget,
            asked,
            queued_at: self.queued_at,
            spare_tokens: self.spare_tokens(),
            undone_at_close: (self.undone_at_close.as_ref())
                .and_then(|entry| entry.closed_with.number()),
        };
        Asked::begin(self.holders(), plain, terms)
    }

    /// Notes the place that the attempt has at the server after a refusal.
    fn note_refusal(
        &mut self,
        member: usize,
        at: usize,
        place: Option<Box<ServerPlace>>,
        is_repeated: bool,
    ) {
        self.requests.all[member].local.note_refusal(self.asked_at);
        if let Some(mut place) = place {
            // Only the reply to a new place names what is ahead. Other replies are about the same place, unless an
            // earlier reply was lost.
            let same = self.place.take().filter(|_| !is_repeated);
            place.ahead = place.ahead.or_else(|| same?.ahead);
            self.place = Some(place);
        }
        let heartbeat = self.requests.heartbeat(member, at, self.asked_at);
        // The script has removed a place at another lock, and has kept a place at this lock.
        let had_place = self.queued_at == Some(member);
        let queued_at = (heartbeat.is_some() || had_place).then_some(member);
        if queued_at != self.queued_at {
            self.wake_follower();
        }
        self.queued_at = queued_at;
        self.note_queued();
    }

    /// Notes the place at the server for the call, if the lock queues there.
    fn note_queued(&self) {
        if let Some(at) = self.queued_at
            && let (request, (number, holder)) = (&self.requests.all[at], &self.ids[at])
            && request.protocol.queue() == Queue::Server
        {
            request.queued.note(*number);
            (request.local.lock()).with_followers(|followers, _| followers.enter(*holder));
        }
    }

    /// Wakes the follower of the place at the server, because this call leaves the place.
    fn wake_follower(&self) {
        if let Some(at) = self.queued_at {
            let (request, holder) = (&self.requests.all[at], &self.ids[at].1);
            let state = &mut request.local.lock();
            state.with_followers(|followers, woken| followers.leave(holder, woken));
        }
    }

    /// Undoes everything that the ids have at the server.
    fn leave(&mut self) {
        match self.asked.take() {
            Some(asked) => asked.leave(),
            None if self.queued_at.is_some() => self.holders().undo_later(),
            None => {}
        }
        self.wake_follower();
    }

    /// Takes the lock that this message hands over. `None` means that the server has to be asked.
    pub(super) fn accept_handover(&mut self, message: &GrantMessage) -> Option<Few<Share>> {
        if self.requests.core().is_closed() {
            return None;
        }
        let grant = self.place.as_ref()?.grant(self.requests, message)?;
        let [request] = self.requests.all else {
            return None;
        };
        let token = message.token.filter(|_| request.options.fenced);
        let shares = self.holders().make_holds(grant, &[token], None);
        self.place_used();
        Some(shares)
    }

    /// The place at the server, if there certainly is one. Returns its holder id, the place or hold directly ahead if
    /// known, and until when the server keeps the place at least.
    pub(super) fn place(&self) -> Option<(HolderId, Option<HolderId>, Tick)> {
        let place = self.place.as_ref()?;
        let heartbeat = self.requests.core().timing.heartbeat;
        let kept_until = local_deadline(place.poll.sent, heartbeat);
        Some((self.ids[0].1, place.ahead, kept_until))
    }

    /// Notes a heartbeat that keeps the place.
    pub(super) fn place_kept(&mut self, kept: Kept) {
        if let Some(place) = &mut self.place {
            place.poll = Grant {
                sent: kept.sent,
                moved: kept.moved,
                ..place.poll
            };
            place.until_ms = kept.until_ms;
        }
    }

    /// Notes that a hold of this client has the place now, so that the end of the hold removes the place.
    pub(super) fn place_used(&mut self) {
        (self.queued_at, self.place, self.undone_at_close) = (None, None, None);
    }

    /// How many tokens to ask for beyond the token of the grant, for the tasks that the lock may be handed off to.
    fn spare_tokens(&self) -> u32 {
        let [request] = self.requests.all else {
            return 0;
        };
        let may_pass = request.options.fenced
            && request.mode == Mode::Exclusive
            && request.protocol.queue() != Queue::Server
            && (request.local.lock().queue().has_more() || !request.sticky().is_zero());
        if may_pass { HANDOFFS_MAX } else { 0 }
    }

    /// The plain command that takes the lock, if it can be used. Its refusal says only that the lock is not free, so
    /// there must be time to ask again, and the lock must not have been refused lately.
    pub(super) fn plain(&self, now: Tick) -> Option<Restore> {
        let [request] = self.requests.all else {
            return None;
        };
        let core = &request.core;
        let soon = now.after(core.timing.reply);
        let is_plain = request.mode == Mode::Exclusive
            && !request.options.fenced
            && soon <= self.requests.bound.waits_until()
            && core.scripts.native.may_acquire()
            && !request.local.was_refused_lately(now);
        let (_, holder) = self.holders().each_ref().next().filter(|_| is_plain)?;
        let lease = request.policy.lease();
        request.protocol.acquire_plain(&holder, lease)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
