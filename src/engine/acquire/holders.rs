//! The holder ids of an attempt, and what the server may have under them.
//!
//! Invariant: the client knows how to undo an attempt before it sends the attempt. So if the ids are dropped while an
//! answer is under way or missing, the attempt is cancelled on its own lane, behind it. A grant that no caller takes is
//! released, and a place in a queue is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::request::{LockRequest, Requests};
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::few::Few;
use crate::engine::hint::Mark;
use crate::engine::hold::protocol::{HolderRef, Queue};
use crate::engine::hold::undo::PendingRelease;
use crate::engine::hold::unguarded::Unguarded;
use crate::engine::hold::{NewHold, Share, Tokens};
use crate::script::{Call, catalog};

/// One new holder id for each lock.
pub(super) struct Holders<'a> {
    requests: Requests<'a>,
    /// The number in each holder id, and the id itself.
    ids: Few<(u64, HolderId)>,
    /// The lane of an attempt with an unknown outcome.
    unanswered: Option<Lane>,
    /// Whether the unanswered attempt may have left this client.
    was_sent: AtomicBool,
    /// The lock in whose queue at the server the ids may have a place.
    pub(super) queued_at: Option<usize>,
    /// Whether the client would undo the ids when it ends.
    is_known: bool,
}

/// When the lease of a grant starts, and what came with the grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// When the granted request was sent.
    pub(super) sent: Tick,
    /// A mark of failovers and moved slots, taken before the request was sent.
    pub(super) moved: Mark,
    /// The lease that is certain from `sent`, if the server handed the lock over.
    pub(super) handover: Option<Duration>,
    /// How many more tokens follow each token of the grant.
    pub(super) spare_tokens: u32,
}

impl<'a> Holders<'a> {
    pub(super) fn new(requests: Requests<'a>) -> Self {
        let core = requests.core();
        Self {
            requests,
            ids: requests.all.iter().map(|_| core.new_holder()).collect(),
            unanswered: None,
            was_sent: AtomicBool::new(false),
            queued_at: None,
            is_known: false,
        }
    }

    /// Each request with its holder id.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'a LockRequest, &HolderId)> {
        self.requests
            .all
            .iter()
            .zip(self.ids.iter().map(|(_, id)| id))
    }

    /// Each request with its holder.
    pub(super) fn each_ref(&self) -> impl Iterator<Item = (&'a LockRequest, HolderRef<'_>)> {
        self.each().map(|(request, id)| {
            let holder = HolderRef {
                name: &request.name,
                id,
                fenced: request.options.fenced,
                token_retention: request.core.timing.token_retention,
            };
            (request, holder)
        })
    }

    /// The channel on which the server notifies the waiter that this lock may be free.
    pub(super) fn channel(&self, at: usize) -> String {
        let request = &self.requests.all[at];
        request.protocol.channel(&request.name, &self.ids[at].1)
    }

    /// Records that an attempt is about to be sent, so the server may have it. The caller raises the returned flag when
    /// the attempt has left this client.
    pub(super) fn sending(&mut self, lane: Lane) -> &AtomicBool {
        if self.unanswered.replace(lane).is_none() {
            *self.was_sent.get_mut() = false;
        }
        if !std::mem::replace(&mut self.is_known, true) {
            for (request, (number, holder)) in self.requests.all.iter().zip(&self.ids) {
                let unguarded = Unguarded {
                    protocol: request.protocol,
                    name: request.name.clone(),
                    holder: *holder,
                    fenced: request.options.fenced,
                    places: Vec::new(),
                    lease: request.policy.lease(),
                };
                request.core.add_unguarded(*number, unguarded);
            }
        }
        &self.was_sent
    }

    /// Records that none of the attempts can still be executed.
    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Records that an attempt on this lane may have been executed in part.
    pub(super) fn doubt(&mut self, lane: Lane) {
        self.unanswered = Some(lane);
    }

    /// Whether an attempt may still arrive, so that the ids must not be used.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Records that the server has nothing under these ids.
    pub(super) fn gone(&mut self) {
        self.unanswered = None;
        self.queued_at = None;
    }

    /// Notes the place at the server for the call, if the lock queues there.
    pub(super) fn note_queued(&self) {
        if let Some(at) = self.queued_at
            && let request = &self.requests.all[at]
            && request.protocol.queue() == Queue::Server
        {
            request.queued.note(self.ids[at].0);
            request.local.followers.enter(&self.ids[at].1);
        }
    }

    /// Has the waiter behind the place at the server ask by itself, now that this one leaves.
    pub(super) fn wake_follower(&self) {
        if let Some(at) = self.queued_at {
            let followers = &self.requests.all[at].local.followers;
            followers.leave(&self.ids[at].1);
        }
    }

    /// The call that releases everything the server has under these ids.
    pub(super) fn release(&self) -> Call {
        let publish = self.requests.core().channels().publish();
        let mut holders = self.each_ref();
        if let [request] = self.requests.all
            && let Some((_, holder)) = holders.next()
        {
            return request.protocol.release(&holder, publish);
        }
        let parts = holders.map(|(request, holder)| request.protocol.release_as_member(&holder));
        Call::of_parts(&catalog::MULTI_RELEASE, &[publish], parts)
    }

    /// Makes a hold with one share for each grant. After this, dropping the shares releases the locks.
    pub(super) fn make_holds(
        &mut self,
        grant: Grant,
        tokens: &[Option<FencingToken>],
    ) -> Few<Share> {
        self.gone();
        let locks = self.requests.all.iter();
        let shares = locks
            .zip(self.ids.iter().zip(tokens))
            .map(|(request, ((number, holder), token))| {
                let hold = NewHold {
                    owner: request.options.owner.clone().unwrap_or_else(Owner::new),
                    number: *number,
                    holder: *holder,
                    sent: grant.sent,
                    moved: grant.moved,
                    handover: grant.handover,
                    policy: request.policy,
                    mode: request.mode,
                    tokens: Tokens::granted(*token, grant.spare_tokens),
                    replication: request.options.replication,
                    give_up: request.give_up(),
                    group: request.options.group,
                    is_joinable: request.join_request().is_some(),
                };
                Share::granted(
                    &request.core,
                    &request.local,
                    request.protocol,
                    &request.name,
                    hold,
                )
            })
            .collect();
        self.forget();
        shares
    }

    /// Tells the client that it need not undo the ids.
    fn forget(&mut self) {
        if std::mem::take(&mut self.is_known) {
            for (number, _) in &self.ids {
                self.requests.core().remove_unguarded(*number);
            }
        }
    }

    /// Releases everything the server has under these ids in the background, behind the commands already sent on this
    /// lane, for as long as that takes.
    fn undo_later(&self, lane: Lane) {
        let core = self.requests.core();
        let leases = self.requests.all.iter().map(|each| each.policy.lease());
        let lease = leases.max().unwrap_or_default();
        let locals = self.requests.all.iter();
        let locals = locals.map(|request| Arc::clone(&request.local));
        let release = PendingRelease::of(locals.collect());
        core.undo_later(self.release(), lane, lease, Some(release));
    }
}

impl Drop for Holders<'_> {
    fn drop(&mut self) {
        // An attempt that still waits for a connection is never executed.
        let was_sent = self.was_sent.load(Ordering::Relaxed);
        let unanswered = self.unanswered.filter(|_| was_sent);
        if unanswered.is_some() || self.queued_at.is_some() {
            self.undo_later(unanswered.unwrap_or(Lane::Command));
        }
        self.wake_follower();
        self.forget();
    }
}
