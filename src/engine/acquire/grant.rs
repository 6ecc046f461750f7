//! From a server's grant to a hold: the holder ids of an attempt, the confirmation by replicas, and a lock that was
//! handed over.
//!
//! Invariants:
//!
//! - the client knows how to undo an attempt before it sends the attempt. So if the ids are dropped while an answer is
//!   under way or missing, the attempt is cancelled on its own lane, behind it. A grant that no caller takes is released,
//!   and a place in a queue is removed;
//! - this client has no hold of a grant until the replicas that were asked for have confirmed it, so no task enters it
//!   early, and a call that is dropped in between leaves the grant to be undone like any other.
//!
//! The script that frees a fair lock makes the next waiter its holder, and notifies it with one message. Invariants:
//!
//! - the lease of the hold counts from the waiter's last request to keep its place, never from the arrival of the
//!   message;
//! - a message is used only if it names the lock and exactly the place in the last answer. A stale message does not,
//!   nor does a message forged without access to the keys;
//! - no attempt is under way when a message is used, so no late command can meet the hold.
//!
//! A lost, late or unused message costs one round trip: the next attempt finds that the waiter holds the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::request::{LockRequest, Requests};
use crate::api::error::{Error, Kind};
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::api::options::Replication;
use crate::conn::Lane;
use crate::conn::error_reply::describe;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::hold::protocol::{HolderRef, Queue};
use crate::engine::hold::subscription::GrantMessage;
use crate::engine::hold::undo::{PendingRelease, Unguarded};
use crate::engine::hold::{NewHold, Share, Tokens, local_deadline};
use crate::engine::replicas::{Confirmation, Verdict};
use crate::script::{Call, catalog};

/// One new holder id for each lock.
pub(super) struct Holders<'a> {
    pub(super) requests: Requests<'a>,
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
            request.local.rare().followers.enter(&self.ids[at].1);
        }
    }

    /// Has the waiter behind the place at the server ask by itself, now that this one leaves.
    pub(super) fn wake_follower(&self) {
        if let Some(at) = self.queued_at {
            let followers = &self.requests.all[at].local.rare().followers;
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
                    is_joinable: request.joins_on().is_some(),
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

/// The result of waiting for the replicas.
pub(super) enum Confirmed {
    Replicated,
    /// Too few replicas have it, so it must not be handed out.
    NotReplicated(Error),
    /// Its lease has ended, or the server no longer has it.
    Ended,
    /// The client was closed first.
    Closed,
    /// The outcome is unknown and the server may be silent. It must not be handed out.
    Unknown(Error),
}

/// Waits until replicas have the grant of the request sent at `sent`, which is when its lease starts.
pub(super) async fn confirm(
    requests: Requests<'_>,
    holders: &Holders<'_>,
    replication: Replication,
    sent: Tick,
) -> Confirmed {
    let core = requests.core();
    let ends = requests
        .all
        .iter()
        .map(|each| local_deadline(sent, each.policy.lease()));
    let end = ends.min().unwrap_or(Tick::ZERO);
    let holds = holders.each().map(|(request, holder)| Confirmation {
        script: request.protocol.renewal(),
        key: request.name.key().clone(),
        holder: *holder,
        until: sent.after(request.policy.lease()),
    });
    let closing = core.closing.mark();
    if core.is_closed() {
        return Confirmed::Closed;
    }
    let confirming = core
        .replicas
        .confirm(&core.watchdog, holds.collect(), replication);
    let verdict = tokio::select! {
        biased;
        verdict = confirming => verdict,
        () = core.closing.changed_since(closing) => return Confirmed::Closed,
        () = core.clock.sleep_until(end) => return Confirmed::Ended,
    };
    let error = |kind, message| requests.of_locks(Error::new(kind, requests.operation(), message));
    let at = || core.scripts.transport.endpoint(requests.all[0].name.key());
    match verdict {
        Ok(Verdict::Confirmed) if core.clock.now() < end => Confirmed::Replicated,
        Ok(Verdict::Confirmed | Verdict::Gone) => Confirmed::Ended,
        Ok(Verdict::TooFew(replicas)) => {
            let Replication { count, within } = replication;
            let message = format!(
                "{replicas} of {count} replicas confirmed within {within:?}; the lock was \
                 released; check the replicas of {} and their links, ask for fewer, or allow more time",
                at()
            );
            Confirmed::NotReplicated(error(Kind::NotReplicated, message))
        }
        Ok(Verdict::Denied(denied)) => {
            let message = format!(
                "{}; waiting for replicas needs the right +wait; the lock was released",
                describe(&denied, &at())
            );
            Confirmed::NotReplicated(error(Kind::Denied, message).caused_by(denied))
        }
        Err(failure) => {
            let error = failure.into_error(requests.operation());
            Confirmed::Unknown(requests.of_locks(error))
        }
    }
}

/// The place of a waiter in the server's queue, from the last answer about it.
#[derive(Debug)]
pub(super) struct ServerPlace {
    /// When the lease would start if the answered request had been granted.
    pub(super) poll: Grant,
    /// When the place expires, in ms of the server's clock.
    pub(super) until_ms: u64,
    /// The place or hold directly ahead, if the server said so.
    pub(super) ahead: Option<HolderId>,
}

impl ServerPlace {
    /// The grant that this message reports, if it can be used.
    ///
    /// The script granted a lease as long as the rest of the place, `message.lease`. The place was asked for at
    /// `poll.sent`, and the lease was granted later. So the lease lasts at least until `poll.sent` plus
    /// `message.lease`.
    pub(super) fn grant(&self, requests: Requests<'_>, message: &GrantMessage) -> Option<Grant> {
        let request = &requests.all[0];
        // If less of the lease is left, the waiter asks instead, which gives it a full lease.
        let remaining_min = request.core.timing.heartbeat / 6;
        let end = local_deadline(self.poll.sent, message.lease);
        let is_usable = requests.accept_handover()
            && message.until_ms == self.until_ms
            && *message.key == **request.name.key()
            && request.core.clock.now().after(remaining_min) <= end
            && (message.token.is_some() || !request.options.fenced);
        is_usable.then_some(Grant {
            handover: Some(message.lease),
            spare_tokens: 0,
            ..self.poll
        })
    }
}
