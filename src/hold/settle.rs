//! Making the server agree: re-entry and release.
//!
//! The count at the server follows the number of guards. An operation that is interrupted, by a
//! dropped future or by a server that does not answer, is handed to the watchdog task, which
//! repeats it until the server agrees or the lease is over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{Hold, Phase, Share, fence_for};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::{Error, Kind, Result};
use crate::lost::LostReason;
use crate::options::Term;
use crate::script::reply::{Acquired, Released};
use crate::script::{Patience, on_first_poll};

impl Hold {
    /// One more share. `None`: the hold is lost or gone, and the caller is a newcomer.
    pub(crate) async fn reenter(
        self: &Arc<Self>,
        term: Option<Term>,
        fenced: bool,
        operation: &'static str,
        deadline: Option<Tick>,
    ) -> Result<Option<Share>> {
        let patience = self.core.patience(deadline);
        let _one_at_a_time = self.one_at_a_time(patience, operation).await?;
        if self.loss().is_some() {
            return Ok(None);
        }
        let (target, lease, fence) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Ok(None);
            }
            let lease = match term {
                Some(term) => term.lease(),
                None if state.renewed => state.lease,
                // A fixed lease is not lengthened by entering again.
                None => Duration::from_millis(1),
            };
            state.will_ask(patience.until, lease);
            (state.wanted() + 1, lease, fence_for(fenced, state.token))
        };
        // If this is given up, the server may have counted one too many.
        let mut repair = Repair::armed(self);
        let call = self.protocol.acquire(&self.claim(target), lease, fence);
        let answer = self
            .core
            .scripts
            .run(Lane::Command, &call, patience)
            .await
            .map_err(|failure| failure.into_error(operation).of_lock(self.name()))?;
        let Acquired::Held { token } = self.protocol.acquired(&answer.value)? else {
            repair.disarm();
            self.lose(LostReason::Revoked);
            return Ok(None);
        };
        if !self.extend(answer.sent, lease) {
            return Ok(None);
        }
        let (share, look) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held {
                return Ok(None);
            }
            state.count += 1;
            state.confirmed = target;
            state.token = token.or(state.token);
            if let Some(Term::Renewed(lease)) = term {
                state.lease = if state.renewed {
                    state.lease.max(lease)
                } else {
                    lease
                };
                state.renewed = true;
            }
            if state.wanted() == state.confirmed {
                repair.disarm();
            }
            (Share::of(Arc::clone(self)), state.next_look())
        };
        self.core.watchdog.shift(self.number, look);
        Ok(Some(share))
    }

    /// Gives one guard's share back and waits for the server to agree. If this future is dropped,
    /// the watchdog task goes on with it.
    pub(crate) async fn release(self: Arc<Self>) -> Result<()> {
        const OPERATION: &str = "release";
        if let Some(reason) = self.leave() {
            let error = self.not_held(OPERATION, reason);
            self.clean_up(reason);
            return Err(error);
        }
        let mut repair = Repair::armed(&self);
        let mut patience = self.core.patience(None);
        patience.until = patience.until.min(self.state.lock().server_deadline);
        let settled = self.settle(patience).await;
        if settled.is_ok() {
            repair.disarm();
        }
        match settled {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.not_held(OPERATION, LostReason::Revoked)),
            Err(error) => Err(error.during(OPERATION)),
        }
    }

    /// Gives one guard's share back without waiting; what `Drop` does. Never blocks or panics.
    pub(crate) fn release_later(self: Arc<Self>) {
        match self.leave() {
            Some(reason) => self.clean_up(reason),
            None => self.settle_later(),
        }
    }

    pub(crate) fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message =
            format!("{reason}; what was done under this lock may have overlapped with others");
        Error::new(Kind::NotHeld, operation, message).of_lock(self.name())
    }

    /// Takes one guard's share out; says why if the hold was lost before.
    fn leave(&self) -> Option<LostReason> {
        // Lets the clock speak first.
        self.loss();
        let mut state = self.state.lock();
        state.count -= 1;
        if let Phase::Lost(reason) = state.phase {
            return Some(reason);
        }
        if state.count == 0 && state.forgotten > 0 {
            state.phase = Phase::Forgotten;
            drop(state);
            self.end();
        } else if state.count == 0 {
            state.phase = Phase::Left;
            state.unsent = true;
            drop(state);
            // From here on no renewal is made for it, and who asks in this client asks after it.
            self.local.begin_leaving();
            self.end();
        }
        None
    }

    /// The last guard of a lost hold is gone, so the work under it is over: frees what the server
    /// may have of it all the same, instead of letting others wait for that.
    fn clean_up(self: Arc<Self>, reason: LostReason) {
        if reason != LostReason::Closed && self.count() == 0 {
            self.settle_later();
        }
    }

    fn settle_later(self: Arc<Self>) {
        let core = Arc::clone(&self.core);
        let work = async move {
            let mut patience = self.core.patience(None).stubborn();
            patience.until = patience.until.max(self.state.lock().server_deadline);
            // There is nobody to tell; once the lease is over, nothing is left to settle.
            let _ = self.settle(patience).await;
            self.sent();
        };
        core.watchdog.later(work.boxed());
    }

    /// Sets the count at the server to the number of guards. False if the server had no such hold.
    async fn settle(&self, patience: Patience) -> Result<bool> {
        let _one_at_a_time = self.one_at_a_time(patience, "release").await?;
        let (count, confirmed) = {
            let state = self.state.lock();
            (state.wanted(), state.confirmed)
        };
        if count == confirmed {
            return Ok(true);
        }
        let lease = match count {
            0 => Duration::ZERO,
            _ => self.remaining().max(Duration::from_millis(1)),
        };
        let publish = self.core.scripts.transport.publish();
        let call = self.protocol.release(&self.claim(count), lease, publish);
        let run = self.core.scripts.run(Lane::Command, &call, patience);
        let on_its_way = || {
            if count == 0 {
                self.sent();
            }
        };
        let answer = on_first_poll(run, on_its_way)
            .await
            .map_err(|failure| failure.into_error("release").of_lock(self.name()))?;
        let held = match self.protocol.released(&answer.value)? {
            Released::Done { told } => {
                self.local.note_heard(told);
                true
            }
            // An earlier attempt got no reply: it was that one which released, in time.
            Released::NotHeld => answer.repeated && self.core.clock.now() < self.deadline(),
        };
        if held {
            self.state.lock().confirmed = count;
        } else if count > 0 {
            self.lose(LostReason::Revoked);
        }
        Ok(held)
    }

    async fn one_at_a_time(
        &self,
        patience: Patience,
        operation: &'static str,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            turn = self.operation.lock() => Ok(turn),
            () = self.core.clock.sleep_until(patience.until) => {
                let message = "an earlier operation on this hold is not answered yet; check that \
                               the server is up and reachable";
                Err(Error::new(Kind::Io, operation, message).of_lock(self.name()))
            }
        }
    }

    /// A release is on its way: waiters of this client that ask now ask behind it.
    fn sent(&self) {
        let unsent = std::mem::take(&mut self.state.lock().unsent);
        if unsent {
            self.local.end_leaving();
        }
    }
}

/// Hands a hold whose count at the server is in doubt to the watchdog task when dropped.
struct Repair<'a>(Option<&'a Arc<Hold>>);

impl<'a> Repair<'a> {
    fn armed(hold: &'a Arc<Hold>) -> Self {
        Self(Some(hold))
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.0 {
            // Never equal to the number of guards, so the server is asked in any case.
            hold.state.lock().confirmed = UNCONFIRMED;
            Arc::clone(hold).settle_later();
        }
    }
}

/// A count the server never has.
const UNCONFIRMED: u32 = u32::MAX;
