//! How long the waiters of this client that ask for one lock have had no answer.
//!
//! Only the head of a local queue asks. The waiters behind it count its silence as their own, each from its own start
//! and up to its own limit. So waiters that have waited equally long end together, and not one after another.
//! Invariants: an answer to any of them ends the silence. A waiter that is not polled cannot receive an answer, so
//! its silence proves nothing.

use parking_lot::Mutex;

use super::bound::Bound;
use crate::api::error::Error;
use crate::engine::clock::{Clock, Tick};

/// When the silence began, and the error of the last waiter that ended because of it.
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
    /// Notes that a waiter asks now. Returns since when there has been no answer. If that has reached the limit of
    /// its call, also returns the error of an earlier waiter, and the call need not ask.
    pub(crate) fn begin_asking(&self, now: Tick, bound: &Bound) -> Asking {
        let mut state = self.0.lock();
        let (since, why) = state.get_or_insert((now, None));
        let why = why.as_ref().filter(|_| bound.end(*since) <= now);
        (*since, why.cloned())
    }

    /// A waiter was answered, or need not ask.
    pub(crate) fn end(&self) {
        let ended = self.0.lock().take();
        drop(ended);
    }

    /// Notes that a waiter ends with this error. If the error is not an answer, the waiters behind it end with it
    /// too, once they have waited as long.
    pub(crate) fn note_error(&self, error: &Error) {
        let is_answer = !error.is_transient() || error.is_not_replicated();
        if is_answer {
            self.end();
        } else if let Some((_, why)) = &mut *self.0.lock() {
            *why = Some(error.clone());
        }
    }

    /// Resolves when a call that waits behind others is over, by its deadline or by their silence. It needs no
    /// wake-up for that. Cancel safe.
    pub(crate) async fn until_over(&self, clock: Clock, bound: &Bound) -> Over {
        loop {
            let now = clock.now();
            let deadline = bound.deadline().unwrap_or(Tick::NEVER);
            let state = self.0.lock().clone();
            let check_at = match state {
                None if deadline <= now => return Over::NotInTime,
                // A silence that begins now.
                None => bound.end(now).min(deadline),
                Some((since, why)) => {
                    let end = bound.end(since);
                    let reported = match why {
                        Some(_) => end,
                        None => end.after(bound.grace()),
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
