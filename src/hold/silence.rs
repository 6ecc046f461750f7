//! Since when those of this client who ask for one lock have had no answer.
//!
//! Only the head of a local queue asks; those behind it count its silence as their own, each from its own
//! start and for as long as its own call may go on. So when one has been told, all are who have waited as
//! long, and not one after the other. Invariants: an answer to any of them ends it; who is not polled any
//! more has heard nothing, and its silence says nothing.

use parking_lot::Mutex;

use super::bound::Bound;
use crate::clock::{Clock, Tick};
use crate::error::Error;

/// Its beginning, and what the last one was told who gave up.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<State>>);

type State = (Tick, Option<Error>);

/// Why a wait behind others is over.
pub(crate) enum Over {
    NotInTime,
    /// Those who ask get no answer, and were told this.
    Silent(Option<Error>),
}

impl Silence {
    /// Somebody asks now: since when that is in vain. If it has waited for as long as its call may go on,
    /// also what others were told, and it need not ask.
    pub(crate) fn asks(&self, now: Tick, bound: &Bound) -> State {
        let mut state = self.0.lock();
        let (since, why) = state.get_or_insert((now, None));
        let why = why.as_ref().filter(|_| bound.end(*since) <= now);
        (*since, why.cloned())
    }

    /// Somebody was answered, or need not ask.
    pub(crate) fn ends(&self) {
        let ended = self.0.lock().take();
        drop(ended);
    }

    /// Somebody ends with this error. If that is no answer, those behind it are told the same when they
    /// have waited as long.
    pub(crate) fn failed(&self, error: &Error) {
        let is_answer = !error.is_transient() || error.is_not_replicated();
        if is_answer {
            self.ends();
        } else if let Some((_, why)) = &mut *self.0.lock() {
            *why = Some(error.clone());
        }
    }

    /// Resolves when a call that waits behind others is over: by its deadline, or by their silence. It
    /// looks for itself whenever that might have lasted for long enough. Cancel safe.
    pub(crate) async fn over(&self, clock: Clock, bound: &Bound) -> Over {
        loop {
            let now = clock.now();
            let deadline = bound.deadline().unwrap_or(Tick::NEVER);
            let state = self.0.lock().clone();
            let look = match state {
                None if deadline <= now => return Over::NotInTime,
                // One that begins right now.
                None => bound.end(now).min(deadline),
                Some((since, why)) => {
                    let end = bound.end(since);
                    let told = match why {
                        Some(_) => end,
                        None => end.after(bound.grace()),
                    };
                    if told <= now {
                        return Over::Silent(why);
                    }
                    if end <= now && deadline <= now {
                        return Over::NotInTime;
                    }
                    if end <= now { told } else { end }
                }
            };
            clock.sleep_until(look).await;
        }
    }
}
