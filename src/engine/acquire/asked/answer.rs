//! The words of the command, and the meaning of its answer.
//!
//! Invariant: a command without a clear answer is undone before its caller learns of that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Asked, End, Terms};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::conn::{Fault, Lane, Replies, only};
use crate::engine::acquire::grant::{Grant, ServerPlace};
use crate::engine::acquire::request::{Attempted, LockRequest};
use crate::engine::clock::Tick;
use crate::engine::hold::handoff::GrantedCall;
use crate::engine::hold::protocol::AcquireTerms;
use crate::script::reply::{self, Acquired, Queued};
use crate::script::{Call, Earlier, Executed, Failure, catalog, millis};

impl End {
    pub(super) fn new(attempted: impl Into<Option<Result<Attempted>>>) -> Self {
        Self {
            attempted: attempted.into(),
            place: None,
            is_repeated: false,
            is_undone: false,
        }
    }
}

impl Asked {
    /// The end that this reply means, or the failure after which it has to be sent again.
    pub(super) fn read_first(
        self: &Arc<Self>,
        outcome: std::result::Result<Replies, Fault>,
    ) -> std::result::Result<End, Option<Earlier>> {
        let Terms { asked, budget, .. } = self.terms;
        let scripts = &self.requests().core().scripts;
        let reply = outcome.and_then(only);
        if !self.is_plain {
            let call = || self.call();
            return match scripts.submitted(call, Lane::Command, asked, reply, budget) {
                Ok(value) => Ok(self.read(asked, self.read_value(&value), false)),
                Err(Ok(earlier)) => Err(Some(earlier)),
                Err(Err(failure)) => Ok(self.failed(failure)),
            };
        }
        let read = Ok(scripts.restored(asked, reply)?);
        Ok(self.read(asked, read, false))
    }

    /// The end of a command with this answer.
    pub(super) fn read(
        self: &Arc<Self>,
        sent: Tick,
        read: Result<Acquired>,
        is_repeated: bool,
    ) -> End {
        let (member, remaining, place) = match read {
            Err(error) => return self.undone(Err(error)),
            Ok(Acquired::Held { tokens }) => return self.granted(self.grant(sent), &tokens),
            Ok(Acquired::Elsewhere {
                member,
                remaining,
                place,
            }) => (member, remaining, place),
        };
        let refused = Ok(Attempted::Refused {
            at: member,
            remaining,
        });
        if is_repeated && self.requests.len() > 1 {
            // The first command may have been granted and one of its locks lost since. Then the server still has the
            // others.
            return self.undone(refused);
        }
        let place = place.map(|Queued { until_ms, ahead }| ServerPlace {
            poll: self.grant(sent),
            until_ms,
            ahead,
        });
        End {
            place: place.map(Box::new),
            is_repeated,
            ..End::new(refused)
        }
    }

    /// Makes holds of a grant.
    pub(super) fn granted(self: &Arc<Self>, grant: Grant, tokens: &[Option<FencingToken>]) -> End {
        if self.requests().core().is_closed() {
            // A closed client would not renew it.
            return self.undone(Err(self.requests().closed()));
        }
        if self.terms.is_known {
            self.holders().remove_unguarded();
        }
        let call = Arc::downgrade(self) as Weak<dyn GrantedCall>;
        let shares = self.holders().make_holds(grant, tokens, Some(call));
        End::new(Ok(Attempted::Granted(shares)))
    }

    /// Undoes the command, and makes its end.
    pub(super) fn undone(&self, attempted: impl Into<Option<Result<Attempted>>>) -> End {
        self.holders().undo_later();
        End {
            is_undone: true,
            ..End::new(attempted)
        }
    }

    pub(super) fn failed(&self, failure: Failure) -> End {
        match failure.executed {
            Executed::Maybe => self.undone(Err(self.error(failure))),
            Executed::No => End::new(Err(self.error(failure))),
        }
    }

    /// The end for a caller that can wait no longer, and has undone it.
    pub(super) fn no_reply(&self, limit: Duration) -> End {
        let scripts = &self.requests().core().scripts;
        let error = self.error(scripts.no_reply(&self.call(), limit));
        End {
            is_undone: true,
            ..End::new(Err(error))
        }
    }
}

impl Asked {
    pub(super) fn call(&self) -> Call {
        let Terms {
            asked,
            queued_at,
            spare_tokens,
            ..
        } = self.terms;
        let terms = |member: usize, request: &LockRequest| AcquireTerms {
            mode: request.mode,
            lease: request.policy.lease(),
            tokens: u32::from(request.options.fenced) * (1 + spare_tokens),
            heartbeat: self.heartbeat(member),
            accepts_handover: self.requests().accept_handover(),
            waited: self.bound.start().until(asked),
        };
        let mut holders = self.holders().each_ref();
        if let [request] = &*self.requests
            && let Some((_, holder)) = holders.next()
        {
            return request.protocol.acquire(&holder, &terms(0, request));
        }
        let plain_lease = self.requests[0].policy.lease();
        let parts = holders.enumerate().map(|(member, (request, holder))| {
            let (terms, protocol) = (terms(member, request), request.protocol);
            protocol.acquire_as_member(&holder, &terms, plain_lease)
        });
        let core = self.requests().core();
        let queued = queued_at.map_or(0, |member| member + 1);
        let for_all = [
            core.channels().publish(),
            &queued.to_string(),
            &core.timing.token_retention.to_string(),
            &millis(plain_lease).to_string(),
        ];
        Call::of_parts(&catalog::MULTI_ACQUIRE, &for_all, parts)
    }

    pub(super) fn read_value(&self, value: &redis::Value) -> Result<Acquired> {
        let read = match &*self.requests {
            [_] => reply::acquired(value),
            many => reply::acquired_all(value, many.len()),
        };
        read.map_err(|error| {
            let error = error.during(self.requests().operation());
            self.requests().of_locks(error)
        })
    }

    pub(super) fn error(&self, failure: Failure) -> Error {
        let member = failure.member().filter(|_| self.requests.len() > 1);
        let error = failure.into_error(self.requests().operation());
        match member.and_then(|member| self.requests.get(member)) {
            Some(request) => error.of_lock(request.name.as_str()),
            None => self.requests().of_locks(error),
        }
    }
}
