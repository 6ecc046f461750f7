//! How a server's grant becomes a hold: the holder ids of an attempt, and locks that were handed over.
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

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::request::{Ids, LockRequest, Requests};
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::core::{AtClose, ClosedWith};
use crate::engine::hold::handoff::GrantedCall;
use crate::engine::hold::protocol::HolderRef;
use crate::engine::hold::subscription::GrantMessage;
use crate::engine::hold::undo::PendingRelease;
use crate::engine::hold::{NewHold, Share, Tokens, local_deadline};
use crate::script::{Call, catalog};

/// The locks of an attempt, each with its holder id.
#[derive(Clone, Copy)]
pub(super) struct Holders<'a> {
    pub(super) requests: Requests<'a>,
    pub(super) ids: &'a [(u64, HolderId)],
}

/// Holder ids that may have a place at the server, of a call that may never be polled again.
#[derive(Debug)]
pub(super) struct UndoneAtClose {
    requests: Few<LockRequest>,
    bound: Bound,
    ids: Ids,
    pub(super) closed_with: ClosedWith,
}

impl AtClose for UndoneAtClose {
    fn close(self: Arc<Self>) {
        let requests = Requests {
            all: &self.requests,
            bound: &self.bound,
        };
        let ids = &self.ids;
        Holders { requests, ids }.undo_later();
    }
}

/// The facts about a grant: when its lease starts, and how many tokens came with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// When the granted request was sent.
    pub(super) sent: Tick,
    /// A mark of failovers and moved slots, taken before the request was sent.
    pub(super) moved: Mark,
    /// If the server handed the lock over: the lease that is certain from `sent` on.
    pub(super) handover: Option<Duration>,
    /// How many more tokens follow each token of the grant.
    pub(super) spare_tokens: u32,
}

impl<'a> Holders<'a> {
    /// Each request with its holder.
    pub(super) fn each_ref(self) -> impl Iterator<Item = (&'a LockRequest, HolderRef<'a>)> {
        let all = self.requests.all.iter().zip(self.ids);
        all.map(|(request, (_, id))| {
            let (core, fenced) = (&request.core, request.options.fenced);
            (request, core.holder_ref(&request.name, id, fenced))
        })
    }

    /// The channel on which the server notifies the waiter that this lock may be free.
    pub(super) fn channel(self, at: usize) -> String {
        let request = &self.requests.all[at];
        request.protocol.channel(&request.name, &self.ids[at].1)
    }

    /// The call that releases everything the server has under these ids.
    pub(super) fn release(self) -> Call {
        let mut holders = self.each_ref();
        if let [request] = self.requests.all
            && let Some((_, holder)) = holders.next()
        {
            return request.protocol.release(&holder, &[]);
        }
        let publish = self.requests.core().channels().publish();
        let parts = holders.map(|(request, holder)| request.protocol.release_as_member(&holder));
        Call::of_parts(&catalog::MULTI_RELEASE, &[publish], parts)
    }

    /// Makes a hold with one share for each lock of a grant: for a `call` that does not know of the grant yet, or for
    /// the caller. After this, dropping the shares releases the locks.
    pub(super) fn make_holds(
        self,
        grant: Grant,
        tokens: &[Option<FencingToken>],
        call: Option<Weak<dyn GrantedCall>>,
    ) -> Few<Share> {
        let locks = self.requests.all.iter().zip(self.ids.iter().zip(tokens));
        let shares = locks.map(|(request, ((number, _), token))| {
            let hold = NewHold {
                owner: request.options.owner.clone().unwrap_or_else(Owner::new),
                number: *number,
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
                call: call.clone(),
            };
            Share::granted(
                &request.core,
                &request.local,
                request.protocol,
                &request.name,
                hold,
            )
        });
        shares.collect()
    }

    /// Has the client undo the ids when it is closed. Dropping the result ends that.
    pub(super) fn undone_at_close(self) -> Arc<UndoneAtClose> {
        let Requests { all, bound } = self.requests;
        Arc::new_cyclic(|this| UndoneAtClose {
            requests: all.iter().cloned().collect(),
            bound: *bound,
            ids: self.ids.iter().copied().collect(),
            closed_with: self.requests.core().close_with(Weak::clone(this)),
        })
    }

    /// Releases everything the server has under these ids in the background, behind the commands already sent, for as
    /// long as that takes.
    pub(super) fn undo_later(self) {
        let leases = self.requests.all.iter().map(|each| each.policy.lease());
        let (core, lease) = (self.requests.core(), leases.max().unwrap_or_default());
        let release = Some(self.pending_release());
        core.undo_later(self.release(), lease, (release, None));
    }

    /// Counts as an unsent release of all the locks, until the result is dropped.
    pub(super) fn pending_release(self) -> PendingRelease {
        let locals = self.requests.all.iter();
        PendingRelease::of(locals.map(|request| Arc::clone(&request.local)).collect())
    }
}

/// The place of a waiter in the server's queue, from the last answer about it.
#[derive(Debug)]
pub(super) struct ServerPlace {
    /// The grant that the answered request would have been.
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
        // If less of the lease is left, the waiter asks instead, and gets a full lease.
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
