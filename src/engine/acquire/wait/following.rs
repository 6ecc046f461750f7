//! Follows another task of this client in the queue at the server: the waiter directly behind it may be handed the lock
//! in memory.
//!
//! Only a plain request does, whose hold is renewed and may end at any time: no fencing token, no replicas, no minimum
//! hold time and no stay with the client.

use super::{Step, WaitLoop};
use crate::api::error::Result;
use crate::conn::Lane;
use crate::engine::acquire::local::{handoff_request, take_over};
use crate::engine::acquire::request::Attempted;
use crate::engine::hold::followers::{Following, Handed};

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
