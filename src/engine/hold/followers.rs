//! The waiters of this client that may be handed a lock whose queue is at the server.
//!
//! A hold that ends may go in memory to the waiter of this client that stands directly behind it in that queue: a
//! follower. The order is the server's, because nobody can come between two places. Invariants: a waiter is listed
//! only while it rests with a place that the server keeps. While it asks, it is handed nothing. A handed-off value is
//! taken out by its task, or dropped with its entry, and never under the mutex.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::handoff::{Handoff, HandoffRequest};
use super::subscription::Subscription;
use crate::api::holder::HolderId;
use crate::engine::clock::Tick;

/// The followers, by the place or hold that each stands directly behind.
#[derive(Debug, Default)]
pub(crate) struct Followers(Mutex<FxHashMap<HolderId, Follower>>);

/// A waiter with a place at the server.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) place: HolderId,
    /// Until when the server keeps the place, at least.
    pub(crate) kept_until: Tick,
    pub(crate) request: HandoffRequest,
    /// Its hint wakes the waiter.
    pub(crate) waiter: Arc<Subscription>,
    pub(crate) handoff: Option<Handoff>,
}

/// Lists a waiter until dropped.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    followers: &'a Followers,
    ahead: HolderId,
    place: HolderId,
}

impl Followers {
    /// Lists a waiter that stands directly behind `ahead`.
    pub(crate) fn follow(&self, ahead: HolderId, follower: Follower) -> Following<'_> {
        let place = follower.place;
        // One that was listed before has lost its place.
        let replaced = self.0.lock().insert(ahead, follower);
        drop(replaced);
        Following {
            followers: self,
            ahead,
            place,
        }
    }

    /// Hands the follower of `ahead` what `offer` makes of its request and its place. True if there is a follower that
    /// could take it, and a value.
    pub(super) fn hand_off(
        &self,
        ahead: &HolderId,
        now: Tick,
        offer: impl FnOnce(&HandoffRequest, HolderId) -> Option<Handoff>,
    ) -> bool {
        let mut followers = self.0.lock();
        let Some(next) = followers.get_mut(ahead) else {
            return false;
        };
        if next.handoff.is_some() || now >= next.kept_until {
            return false;
        }
        next.handoff = offer(&next.request, next.place);
        if next.handoff.is_some() {
            next.waiter.hint.give();
        }
        next.handoff.is_some()
    }
}

impl Following<'_> {
    /// Ends the entry. Returns what the waiter was handed.
    pub(crate) fn end(self) -> Option<Handoff> {
        self.remove()?.handoff.take()
    }

    fn remove(&self) -> Option<Follower> {
        let mut followers = self.followers.0.lock();
        let is_own = followers
            .get(&self.ahead)
            .is_some_and(|listed| listed.place == self.place);
        is_own.then(|| followers.remove(&self.ahead)).flatten()
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        // Dropped outside the mutex: its hand-off is released, or handed off again.
        drop(self.remove());
    }
}
