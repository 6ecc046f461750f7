//! Why there is no primary, or none that answers, in words for whoever has to mend it.

use super::council::Round;
use super::view::Said;
use crate::conn::Fault;
use crate::conn::error_reply::{advice, describe, is_temporary, is_unknown_command};
use crate::conn::nodes::Address;
use crate::error::Kind;

#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    pub(super) why: String,
    /// Whether there is no hope that it passes by itself soon.
    pub(super) is_final: bool,
}

impl Trouble {
    /// No sentinel names one.
    pub(super) fn nobody(name: &str, round: &Round) -> Self {
        let answers = || {
            round
                .heard
                .iter()
                .map(|heard| (&heard.address, &heard.answer.said))
        };
        let each = answers().map(|(address, said)| match said {
            Said::Names(view) => format!("{address} names {}", view.primary),
            Said::Nobody => format!("{address} knows none"),
            Said::Refused(error) => format!("{address} says {error}"),
            Said::Silent(why) => format!("{address}: {why}"),
        });
        let each = each.collect::<Vec<_>>().join(", ");
        let is_named = answers().any(|(_, said)| matches!(said, Said::Names(_)));
        let is_unheard_of = answers().any(|(_, said)| matches!(said, Said::Nobody));
        let refusal = answers().find_map(|(_, said)| match said {
            Said::Refused(error) => Some(error),
            _ => None,
        });
        let (kind, hint) = match refusal {
            _ if round.is_of_several_deployments() => (
                Kind::Invalid,
                "they do not know each other: name the sentinels of one deployment in the URL",
            ),
            _ if is_named => (
                Kind::Io,
                "only an older one is named, by too few to believe it, or one of another deployment",
            ),
            _ if is_unheard_of => (Kind::Invalid, "check the name after the / in the URL"),
            Some(error) if is_unknown_command(error) => (
                Kind::Invalid,
                "that is no sentinel: the URL takes the addresses of sentinels, not of servers",
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

    /// The one that is named says that it is a replica.
    pub(super) fn demoted(name: &str, address: &Address) -> Self {
        Self {
            kind: Kind::Io,
            why: format!(
                "{address} is named as the primary of {name:?} and says that it is a replica; \
                 a failover may be under way"
            ),
            is_final: false,
        }
    }

    /// The one that is named cannot be spoken to.
    pub(super) fn of(name: &str, address: &Address, fault: Fault) -> Self {
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
                    "the one that is named as the primary of {name:?} does not answer: {why}; check \
                     that it is up and reachable under this address"
                ),
                is_final: false,
            },
        }
    }
}
