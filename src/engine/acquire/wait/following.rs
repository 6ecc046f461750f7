//! Follows another task of this client in the queue at the server: the waiter directly behind it may be handed the lock
//! in memory.
//!
//! Only a plain request does, whose hold is renewed and may end at any time: no fencing token, no replicas, no minimum
//! hold time and no stay with the client.

use std::time::Duration;

use super::{Step, WaitLoop};
use crate::api::error::Result;
use crate::conn::Lane;
use crate::engine::acquire::heartbeats::send_heartbeats;
use crate::engine::acquire::local::{handoff_request, take_over};
use crate::engine::acquire::request::Attempted;
use crate::engine::clock::Tick;
use crate::engine::hold::followers::{Following, Handed};
use crate::engine::hold::heartbeats::KeptPlace;

/// A waiter asks by itself this often, even if its place is kept. Only an attempt renews Redisson's score of the place.
const ASKS_EVERY: Duration = Duration::from_secs(60);

impl<'a> WaitLoop<'a> {
    /// Lists this waiter, which rests now, behind the place or hold directly ahead of it.
    pub(super) fn follow(&self) -> Option<Following<'a>> {
        let [request] = self.requests.all else {
            return None;
        };
        let options = &request.options;
        let is_plain = request.policy.is_renewed()
            && !options.fenced
            && options.replication.is_none()
            && options.at_least.is_none()
            && request.sticky().is_zero();
        if !is_plain {
            return None;
        }
        let (ahead, place, kept_until) = self.attempt.place_behind()?;
        let (wish, channel) = (handoff_request(request), self.attempt.channel(self.at));
        let follower = self.waiter.follower(place, kept_until, wish, &channel)?;
        let following = request.local.followers.follow(ahead, follower);
        request.core.watch_followers(&request.local);
        Some(following)
    }

    /// Whether the waiter has to subscribe before it sleeps: it does not listen, and the one ahead is not of this
    /// client.
    pub(super) fn must_subscribe(&self, following: Option<&Following<'_>>) -> bool {
        self.lane != Lane::Push
            && !following.is_some_and(Following::is_woken)
            && self.waiter.may_subscribe(self.deadline())
            && !self.waiter.is_listening(&self.attempt.channel(self.at))
    }

    /// Lists this waiter, which rests now, among the waiters whose places one script keeps. Not if it has to ask to learn
    /// of its turn.
    pub(super) fn keep_place(&self, following: Option<&Following<'_>>) -> Option<KeptPlace<'a>> {
        let [request] = self.requests.all else {
            return None;
        };
        let is_told = self.waiter.is_listening(&self.attempt.channel(self.at))
            || following.is_some_and(Following::is_woken);
        if !is_told {
            return None;
        }
        let kept = self.waiter.keep_place(self.attempt.place()?)?;
        send_heartbeats(request);
        Some(kept)
    }

    /// Notes that the place was kept. Returns until when the waiter need not ask; `None` if it has to ask when its timer
    /// fires.
    pub(super) fn rest_longer(
        &mut self,
        place: Option<&KeptPlace<'_>>,
        following: Option<&Following<'_>>,
    ) -> Option<Tick> {
        let kept = place?.take()?;
        let kept_until = self.attempt.place_kept(kept);
        if let Some(following) = following {
            following.keep_until(kept_until);
        }
        let now = self.clock().now();
        let deadline = self.deadline().unwrap_or(Tick::NEVER);
        if now >= deadline || self.asked_at.after(ASKS_EVERY) <= now {
            return None;
        }
        // A heartbeat may get no answer before it asks, and its place is kept for longer than that.
        Some(kept.sent.after(self.poll_cap() * 2).min(deadline))
    }

    /// Takes the lock that the task ahead handed on, if it did. If that is lost by now, or was withdrawn because this
    /// task did not come, the place is gone with it.
    pub(super) fn end_following(
        &mut self,
        following: Option<Following<'_>>,
    ) -> Result<Option<Step>> {
        let share = match following.map(Following::end) {
            None | Some(Handed::Nothing) => return Ok(None),
            Some(Handed::Lock { handoff, .. }) => take_over(self.request(), handoff)?,
            Some(Handed::Withdrawn) => None,
        };
        let Some(share) = share else {
            self.attempt.start_over();
            return Ok(Some(Step::Again));
        };
        self.silence().end();
        self.attempt.place_used();
        Ok(Some(Step::Ended(Attempted::granted(share))))
    }
}
