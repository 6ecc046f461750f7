//! Explains why there is no primary, or why it does not reply, for the person who has to fix that.

use super::reply::SentinelAnswer;
use super::sentinels::Round;
use crate::api::error::Kind;
use crate::conn::address::Address;
use crate::conn::error_reply::{advice, describe, is_temporary, is_unknown_command};
use crate::conn::transport::Fault;

#[derive(Debug)]
pub(super) struct Diagnosis {
    pub(super) kind: Kind,
    pub(super) why: String,
    /// Whether the cause will not go away by itself soon.
    pub(super) is_final: bool,
}

impl Diagnosis {
    /// No sentinel names a primary.
    pub(super) fn no_primary(name: &str, round: &Round) -> Self {
        let outcomes = || {
            round
                .replies
                .iter()
                .map(|reply| (&reply.from, &reply.outcome))
        };
        let each = outcomes().map(|(from, outcome)| match outcome {
            SentinelAnswer::Names(view) => format!("{from} names {}", view.primary),
            SentinelAnswer::UnknownName => format!("{from} knows none"),
            SentinelAnswer::Refused(error) => format!("{from} says {error}"),
            SentinelAnswer::NoReply(why) => format!("{from}: {why}"),
        });
        let each = each.collect::<Vec<_>>().join(", ");
        let is_named = outcomes().any(|(_, outcome)| matches!(outcome, SentinelAnswer::Names(_)));
        let is_unknown =
            outcomes().any(|(_, outcome)| matches!(outcome, SentinelAnswer::UnknownName));
        let refusal = outcomes().find_map(|(_, outcome)| match outcome {
            SentinelAnswer::Refused(error) => Some(error),
            _ => None,
        });
        let (kind, hint) = match refusal {
            _ if round.is_of_several_deployments() => (
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
        Self {
            kind,
            why: format!("no sentinel names a primary called {name:?} ({each}); {hint}"),
            is_final: !is_named && !refusal.is_some_and(is_temporary),
        }
    }

    /// The named server reports that it is a replica.
    pub(super) fn demoted(name: &str, address: &Address) -> Self {
        Self {
            kind: Kind::Io,
            why: format!(
                "the sentinels name {address} as the primary of {name:?}, but it is a replica; a \
                 failover may be under way"
            ),
            is_final: false,
        }
    }

    /// The named server does not reply, or replies with an error.
    pub(super) fn unreachable(name: &str, address: &Address, fault: Fault) -> Self {
        match fault {
            Fault::Answered(error) | Fault::Declined(error) => {
                let (kind, advice) = advice(&error);
                Self {
                    kind,
                    why: format!(
                        "the primary of {name:?}: {}; {advice}",
                        describe(&error, &address.to_string())
                    ),
                    is_final: !is_temporary(&error),
                }
            }
            Fault::Unsent(why) | Fault::Unknown(why) => Self {
                kind: Kind::Io,
                why: format!(
                    "the primary of {name:?} that the sentinels name does not answer: {why}; \
                     check that it is up and reachable at this address"
                ),
                is_final: false,
            },
        }
    }
}
