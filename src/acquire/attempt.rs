//! One attempt to take a lock, and its undoing.
//!
//! What undoes an attempt exists before the attempt is sent. So a future that is dropped while the
//! answer is under way, or an attempt that never got one, is cancelled on the lane it took, behind
//! it; a grant nobody takes is released at once.

use std::sync::Arc;
use std::time::Duration;

use super::Ask;
use super::undo::Abandoned;
use crate::conn::Lane;
use crate::error::{Error, Result};
use crate::hold::local::LocalLock;
use crate::hold::protocol::{Claim, Fence};
use crate::hold::{Granted, Hold, Share};
use crate::keys::LockName;
use crate::owner::Owner;
use crate::script::Patience;
use crate::script::reply::Acquired;

/// A would-be hold: one holder id for all attempts of one wait.
pub(super) struct Candidate<'a> {
    ask: &'a Ask,
    local: &'a Arc<LocalLock>,
    number: u64,
    holder: Arc<str>,
    /// The lane of an attempt whose outcome is not known.
    unanswered: Option<Lane>,
}

pub(super) enum Outcome {
    /// Released again if nobody takes it.
    Granted(Share),
    Refused {
        remaining: Option<Duration>,
    },
}

impl<'a> Candidate<'a> {
    pub(super) fn new(ask: &'a Ask, local: &'a Arc<LocalLock>) -> Self {
        let (number, holder) = ask.core.new_holder();
        Self {
            ask,
            local,
            number,
            holder,
            unanswered: None,
        }
    }

    /// Where a release is told to this candidate.
    pub(super) fn channel(&self) -> String {
        self.ask.protocol.channel(&self.ask.name, &self.holder)
    }

    /// Asks the server; an attempt that gets no answer is repeated as it is.
    pub(super) async fn attempt(&mut self, lane: Lane, patience: Patience) -> Result<Outcome> {
        let Ask {
            core,
            protocol,
            name,
            options,
            term,
            operation,
        } = self.ask;
        let fence = match options.fenced {
            true => Fence::OnGrant,
            false => Fence::None,
        };
        loop {
            let claim = claim_of(name, &self.holder, 1);
            let call = protocol.acquire(&claim, term.lease(), fence);
            self.unanswered = Some(lane);
            let answer = match core.scripts.run(lane, &call, patience).await {
                Ok(answer) => answer,
                Err(failure) => {
                    if !failure.unknown {
                        self.unanswered = None;
                    }
                    return Err(failure.into_error(operation).of_lock(name.as_str()));
                }
            };
            if answer.repeated && !core.scripts.transport.past_is_settled(lane) {
                // An attempt that may still arrive must never meet its holder id in use: this one
                // is undone, and the next asks under another and behind that.
                *self = Self::new(self.ask, self.local);
                super::left(self.ask, self.local, None).await;
                continue;
            }
            let acquired = protocol
                .acquired(&answer.value)
                .map_err(|error| error.during(operation).of_lock(name.as_str()))?;
            let Acquired::Held { token } = acquired else {
                self.unanswered = None;
                return Ok(Outcome::Refused {
                    remaining: acquired.remaining(),
                });
            };
            if core.is_closed() {
                // Nothing is renewed any more.
                let release = protocol.release(
                    &claim_of(name, &self.holder, 0),
                    term.lease(),
                    core.scripts.transport.publish(),
                );
                if core.scripts.run(lane, &release, patience).await.is_ok() {
                    self.unanswered = None;
                }
                return Err(Error::closed(operation).of_lock(name.as_str()));
            }
            self.unanswered = None;
            let granted = Granted {
                owner: options.owner.clone().unwrap_or_else(Owner::new),
                number: self.number,
                holder: Arc::clone(&self.holder),
                sent: answer.sent,
                term: *term,
                token,
            };
            let share = Hold::granted(core, self.local, *protocol, name, granted);
            return Ok(Outcome::Granted(share));
        }
    }
}

fn claim_of<'a>(name: &'a LockName, holder: &'a str, hold_count: u32) -> Claim<'a> {
    Claim {
        name,
        holder,
        hold_count,
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.unanswered {
            Abandoned {
                core: Arc::clone(&self.ask.core),
                local: Arc::clone(self.local),
                protocol: self.ask.protocol,
                name: self.ask.name.clone(),
                holder: Arc::clone(&self.holder),
                lease: self.ask.term.lease(),
                lane,
            }
            .undo_later();
        }
    }
}
