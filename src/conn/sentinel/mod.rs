//! A primary with replicas, followed through failovers by asking sentinels: which server is the primary now, or why
//! there is none.
//!
//! Invariant: a command goes to the server that is the primary at that time, and its reply counts only if that server
//! is still the primary. Late commands do no harm: docs/design/ordering.md has the argument. Grants of the old
//! primary after the promotion are lost, and every hold is checked at the switch. At a switch, every command in flight
//! to the old primary ends for its caller before any hold is checked, and nothing is sent to the old one afterwards.
//!
//! ```text
//! follow.rs       the transport, and the task that finds the primary and follows it
//! sentinels.rs    the sentinels: their connections, their announcements, one round of questions
//! reply.rs        pure: what they say, which replies count, and which primary to believe
//! ```

pub(super) mod follow;
mod reply;
mod sentinels;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, RedisError};

use self::reply::{Reply, SentinelAnswer};
use self::sentinels::Round;
use crate::api::error::Kind;
use crate::conn::address::Address;
use crate::conn::error_reply::{advice, code, explained, is_temporary, is_unknown_command};
use crate::conn::single::SingleServer;
use crate::conn::transport::{EventHandler, Fault, Lane, Reason, Replies, errors_in, sent};
use crate::engine::hint::{Hint, Mark};

/// The current primary, and the switch to another.
#[derive(Debug)]
pub(super) struct CurrentPrimary {
    events: Arc<dyn EventHandler>,
    /// The primary, or the reason why there is none.
    primary: Mutex<Result<Arc<SingleServer>, Reason>>,
    /// Signalled when the primary is replaced or dropped.
    switched: Hint,
    /// Signalled when the primary may be down, or may no longer be a primary.
    doubted: Hint,
}

impl CurrentPrimary {
    fn unknown(events: Arc<dyn EventHandler>) -> Self {
        Self {
            events,
            primary: Mutex::new(Err("no sentinel was asked yet".into())),
            switched: Hint::default(),
            doubted: Hint::default(),
        }
    }

    /// Returns the primary, with a mark that shows when it is replaced.
    pub(super) fn get(&self) -> Result<(Arc<SingleServer>, Mark), Fault> {
        let primary = self.primary.lock();
        match &*primary {
            Ok(server) => Ok((Arc::clone(server), self.switched.mark())),
            Err(why) => Err(Fault::Unsent(why.clone())),
        }
    }

    /// Whether there is a primary.
    fn is_known(&self) -> bool {
        self.primary.lock().is_ok()
    }

    /// Sends commands to the primary. Its replies count only while it is the primary.
    pub(super) async fn exchange(
        &self,
        lane: Lane,
        commands: &[&Cmd],
        limit: Duration,
    ) -> Result<Replies, Fault> {
        let (primary, mark) = self.get()?;
        let is_sent = AtomicBool::new(false);
        let exchange = pin!(primary.link(lane).exchange(commands, limit));
        let result = tokio::select! {
            biased;
            () = self.switched.changed_since(mark) => {
                let why = "another server became the primary meanwhile".into();
                let was_sent = is_sent.load(Ordering::Relaxed);
                return Err(if was_sent { Fault::Unknown(why) } else { Fault::Unsent(why) });
            }
            result = sent::track(&is_sent, exchange) => result,
        };
        let is_doubtful = match &result {
            Ok(replies) => errors_in(replies).any(|error| says_no_primary(&error)),
            Err(fault) => fault.answer().is_none_or(says_no_primary),
        };
        if is_doubtful {
            self.doubted.notify();
        }
        result
    }

    /// Makes this server the primary.
    fn switch_to(&self, next: &Arc<SingleServer>) {
        self.set(Ok(Arc::clone(next)));
        self.changed();
    }

    /// Reports that another server is or was the primary.
    fn changed(&self) {
        // Subscriptions ended with the old primary, and its grants may not have reached the next one.
        self.events.gap();
        self.events.moved();
    }

    /// Notes the primary, or the reason why there is none.
    fn set(&self, next: Result<Arc<SingleServer>, Reason>) {
        let last = {
            let mut primary = self.primary.lock();
            let last = std::mem::replace(&mut *primary, next);
            if last.is_ok() {
                self.switched.notify();
            }
            last
        };
        if let Ok(last) = last {
            last.retire();
        }
    }
}

fn says_no_primary(error: &RedisError) -> bool {
    matches!(code(error), Some("READONLY" | "MASTERDOWN" | "LOADING"))
}

/// The reason why there is no primary, or why it does not reply, for the person who has to fix that.
#[derive(Debug)]
struct Diagnosis {
    reason: Reason,
    /// Whether the cause will not go away by itself soon.
    is_final: bool,
}

impl Diagnosis {
    /// No sentinel names a primary.
    fn no_primary(name: &str, round: &Round) -> Self {
        let (mut is_named, mut is_unknown, mut refusal) = (false, false, None);
        let mut each = Vec::new();
        for Reply { from, outcome, .. } in &round.replies {
            each.push(match outcome {
                SentinelAnswer::Names(view) => {
                    is_named = true;
                    format!("{from} names {}", view.primary)
                }
                SentinelAnswer::UnknownName => {
                    is_unknown = true;
                    format!("{from} knows none")
                }
                SentinelAnswer::Refused(error) => {
                    refusal = refusal.or(Some(error));
                    format!("{from} says {error}")
                }
                SentinelAnswer::NoReply(why) => format!("{from}: {why}"),
            });
        }
        let each = each.join(", ");
        let (kind, hint) = match refusal {
            _ if round.views.is_none() => (
                Kind::Invalid,
                "they do not know each other; name the sentinels of one deployment in the URL",
            ),
            _ if is_named => (
                Kind::Io,
                "the primary that some name is an older one, or one of another deployment, and \
                 too few name it to be believed",
            ),
            _ if is_unknown => (Kind::Invalid, "check the name after the / in the URL"),
            Some(error) if is_unknown_command(error) => (
                Kind::Invalid,
                "this is not a sentinel; the URL takes the addresses of sentinels, not of servers",
            ),
            Some(error) => match advice(error) {
                (Kind::Denied, _) => (
                    Kind::Denied,
                    "check sentinel_user and sentinel_password in the URL, and their rights",
                ),
                other => other,
            },
            None => (Kind::Io, "check host, port and that the sentinels are up"),
        };
        let why = format!("no sentinel names a primary called {name:?} ({each}); {hint}");
        Self {
            reason: Reason::of(kind, why),
            is_final: !is_named && !refusal.is_some_and(is_temporary),
        }
    }

    /// The named server reports that it is a replica.
    fn demoted(name: &str, address: &Address) -> Self {
        let why = format!(
            "the sentinels name {address} as the primary of {name:?}, but it is a replica; a \
             failover may be under way"
        );
        Self {
            reason: why.into(),
            is_final: false,
        }
    }

    /// The named server does not reply, or replies with an error.
    fn unreachable(name: &str, address: &Address, fault: Fault) -> Self {
        match fault {
            Fault::Answered(error) | Fault::Declined(error) => {
                let (kind, said) = explained(&error, &address.to_string());
                Self {
                    reason: Reason::of(kind, format!("the primary of {name:?}: {said}")),
                    is_final: !is_temporary(&error),
                }
            }
            Fault::Unsent(why) | Fault::Unknown(why) => {
                let why = format!(
                    "the primary of {name:?} that the sentinels name does not answer: {why}; \
                     check that it is up and reachable at this address"
                );
                Self {
                    reason: why.into(),
                    is_final: false,
                }
            }
        }
    }
}
