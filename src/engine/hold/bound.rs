//! How long one call may go on: the time limits of a client, and for how long the waiters that ask for a lock have had
//! no answer.
//!
//! The limit of a call covers all its commands together, not each of them. Only the head of a local queue asks the
//! server. While the server is silent towards the head, the waiters behind it count that silence as their own, each
//! from its own start and up to its own limit. So waiters that have waited equally long end together, and not one after
//! another.
//!
//! Invariants: a call ends when the server has not answered it for as long as its client or handle allows, no matter
//! how many commands it sent, or on which lanes. A call with a deadline ends at the deadline at the latest, or one
//! reply time after the silence began if that is later. An answer to any of the waiters ends their silence. A waiter
//! that is not polled cannot receive an answer, so its silence proves nothing.

use std::time::Duration;

use parking_lot::Mutex;

use crate::api::error::{Error, Kind, Result};
use crate::api::options::TOKEN_RETENTION;
use crate::engine::clock::{Clock, Tick};
use crate::script::{CallBudget, millis};

/// The longest time that a call that asks once waits for an answer, unless its client or handle says otherwise: enough
/// for one reply, and for another over a new connection.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The time limits of the engine. All but one are derived from the client's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The lease of a hold, unless its handle sets another.
    pub(crate) lease: Duration,
    /// A connection without a reply for this long counts as broken.
    pub(crate) reply: Duration,
    /// A call without an answer ends after this time, unless its handle sets another.
    pub(crate) give_up: Duration,
    /// A call that asks once ends after this time without an answer, unless its handle sets another.
    pub(crate) give_up_at_once: Duration,
    /// Background work without an answer goes on for at least this long, and for as long as its result matters.
    pub(crate) linger: Duration,
    /// The longest time that a waiter goes without an attempt, with or without a notification.
    pub(crate) poll_cap: Duration,
    /// A waiter that makes no attempt for this long loses its place at the server. At most 3 s: if a place is kept
    /// for longer than that, the scripts conclude that the clock was set back.
    pub(crate) heartbeat: Duration,
    /// How long the counter of fencing tokens is kept after a grant, in ms; 0 keeps it for ever.
    pub(crate) token_retention: u64,
}

impl Timing {
    /// The limit without an answer of a call that waits until then, or asks once if that is [`Tick::ZERO`].
    pub(crate) fn give_up(&self, until: Tick) -> Duration {
        match until {
            Tick::ZERO => self.give_up_at_once,
            _ => self.give_up,
        }
    }

    pub(crate) fn of_lease(lease: Duration) -> Self {
        let reply = (lease / 6).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let poll_cap = (lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1));
        // Time for three answers, so that a call whose connection was cut off can try again.
        let linger = (lease / 3).max(reply * 3);
        Self {
            lease,
            reply,
            give_up: linger,
            give_up_at_once: linger.min(AT_ONCE),
            linger,
            poll_cap,
            heartbeat: (poll_cap * 3).max(Duration::from_secs(1)),
            token_retention: millis(TOKEN_RETENTION),
        }
    }
}

/// The error of a call that got no answer in its time.
pub(crate) fn silent(operation: &'static str, give_up: Duration) -> Error {
    let message = format!(
        "no answer from the server for {give_up:?}, to this call or to the calls queued before it; \
         check that it is up and reachable"
    );
    Error::new(Kind::Io, operation, message)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    start: Tick,
    /// When the call stops waiting for a lock. [`Tick::ZERO`] if it asks once, [`Tick::NEVER`] if it has no deadline.
    waits_until: Tick,
    /// The call ends after this time without an answer.
    give_up: Duration,
    reply: Duration,
}

impl Bound {
    /// For a call that starts now and waits until then, or asks once if that is [`Tick::ZERO`]. `own` is the limit of its
    /// handle. Without one, a call that asks once has less time for an answer.
    pub(crate) fn new(start: Tick, until: Tick, own: Option<Duration>, timing: &Timing) -> Self {
        Self {
            start,
            waits_until: until,
            give_up: own.unwrap_or(timing.give_up(until)),
            reply: timing.reply,
        }
    }

    pub(crate) fn start(&self) -> Tick {
        self.start
    }

    pub(crate) fn waits_until(&self) -> Tick {
        self.waits_until
    }

    /// The deadline of a call that waits. A call that asks once has none.
    pub(crate) fn deadline(&self) -> Tick {
        match self.waits_until {
            Tick::ZERO => Tick::NEVER,
            deadline => deadline,
        }
    }

    /// Returns when the call ends if the silence began at `silent_since` and no answer comes.
    pub(crate) fn end(&self, silent_since: Tick) -> Tick {
        let since = silent_since.max(self.start);
        let end = since.after(self.give_up);
        end.min(self.deadline().max(since.after(self.reply)))
    }

    /// The budget of a command that is sent `now`, if the silence began at `silent_since`. Even if the silence has
    /// reached the limit, there is time for one reply: the earlier waiters may have had no answer only because they
    /// were not polled.
    pub(crate) fn call_budget(&self, silent_since: Tick, now: Tick) -> CallBudget {
        let mut end = self.end(silent_since);
        if end <= now {
            end = now.after(self.reply.min(self.give_up));
        }
        CallBudget::until(end, self.reply)
    }
}

/// The silence of the server: when it began, and the error of the last waiter that ended because of it.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<Asking>>);

type Asking = (Tick, Option<Error>);

/// Why a wait behind others is over.
pub(crate) enum Over {
    NotInTime,
    /// The waiters that ask get no answer. Contains the error of the last of them that ended.
    Silent(Option<Error>),
}

impl Silence {
    /// Notes that a waiter asks now. Returns since when there has been no answer.
    ///
    /// # Errors
    /// Fails with the error of an earlier waiter if the silence has reached the limit of this call, so that it need not
    /// ask.
    pub(crate) fn begin_asking(&self, now: Tick, bound: &Bound) -> Result<Tick> {
        let mut state = self.0.lock();
        match state.get_or_insert((now, None)) {
            (since, Some(why)) if bound.end(*since) <= now => Err(why.clone()),
            (since, _) => Ok(*since),
        }
    }

    /// Ends the silence, because a waiter was answered or need not ask.
    pub(crate) fn end(&self) {
        let ended = self.0.lock().take();
        drop(ended);
    }

    /// Notes that a waiter ends with this error. Unless the error is an answer of the server, the waiters behind end
    /// with the same error once the silence reaches their limits.
    pub(crate) fn note_error(&self, error: &Error) {
        let is_answer = !error.is_transient() || error.is_not_replicated();
        if is_answer {
            self.end();
        } else if let Some((_, why)) = &mut *self.0.lock() {
            *why = Some(error.clone());
        }
    }

    /// Resolves when a call that waits behind others is over, by its deadline or by their silence. This needs no
    /// wake-up by another task. Cancel safe.
    pub(crate) async fn until_over(&self, clock: Clock, bound: &Bound) -> Over {
        loop {
            let now = clock.now();
            let deadline = bound.deadline();
            let state = self.0.lock().clone();
            let check_at = match state {
                None if deadline <= now => return Over::NotInTime,
                // A silence may begin at any moment, at the earliest now.
                None => bound.end(now).min(deadline),
                Some((since, why)) => {
                    let end = bound.end(since);
                    let reported = match why {
                        Some(_) => end,
                        // No error is reported yet: the waiters that ask may not have been polled for a while.
                        None => end.after(bound.reply * 2),
                    };
                    if reported <= now {
                        return Over::Silent(why);
                    }
                    if end <= now && deadline <= now {
                        return Over::NotInTime;
                    }
                    if end <= now { reported } else { end }
                }
            };
            clock.sleep_until(check_at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Tick {
        Tick::ZERO.after(Duration::from_secs(seconds))
    }

    fn end(deadline: Option<u64>, give_up: u32, silent_since: u64) -> Tick {
        // A reply takes a second.
        let timing = Timing::of_lease(SECOND * 30);
        let deadline = deadline.map_or(Tick::NEVER, at);
        let bound = Bound::new(at(100), deadline, Some(SECOND * give_up), &timing);
        bound.end(at(silent_since))
    }

    #[test]
    fn a_call_ends_when_there_was_no_answer_for_long() {
        assert_eq!(end(None, 10, 100), at(110));
        assert_eq!(end(None, 10, 150), at(160));
        // A silence before the call began does not count.
        assert_eq!(end(None, 10, 50), at(110));
    }

    #[test]
    fn a_deadline_ends_it_and_leaves_time_for_one_reply() {
        assert_eq!(end(Some(105), 10, 100), at(105));
        assert_eq!(end(Some(105), 10, 105), at(106));
        assert_eq!(end(Some(100), 10, 100), at(101));
        assert_eq!(end(Some(130), 10, 100), at(110));
    }

    #[test]
    fn nobody_gives_up_who_is_not_to() {
        let timing = Timing::of_lease(SECOND * 30);
        let bound = Bound::new(at(1), Tick::NEVER, Some(Duration::MAX), &timing);
        assert_eq!(bound.end(at(2)), Tick::NEVER);
    }
}
