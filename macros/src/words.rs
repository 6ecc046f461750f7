//! The options by their names, and what to write instead of what is none.

use std::fmt::Display;

use proc_macro2::{Ident, Span};

pub(crate) const ALL: &str = "`client`, `wait`, `try`, `busy`, `lease`, `fixed_lease`, `at_least`, `max_hold`, \
                   `sticky`, `give_up_after`, `replicated(..)`, `owner`, `fenced`, `guard`, `group`, `permits`, `redlock`, \
                   `fair`, `read`, `write`, `all(..)`, `each(..)` and `crate`";

pub(crate) fn example(option: &str) -> &'static str {
    match option {
        "client" => "self.locks",
        "busy" => "skip",
        "owner" => "&me",
        "fenced" => "token",
        "guard" => "g",
        "group" => "\"orders\"",
        "permits" => "3",
        "redlock" => "self.quorum",
        "sticky" => "\"20ms\"",
        "crate" => "path::to::lockset",
        "lease" | "fixed_lease" => "\"30s\"",
        "at_least" | "max_hold" => "\"14m\"",
        _ => "\"5s\"",
    }
}

/// Words of other libraries, and near misses.
pub(crate) fn instead_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "key" | "keys" | "name" | "lock" => {
            "the key comes without a name: `#[locked(\"order:{id}\")]`, several as `all(..)`"
        }
        "skip" => "write `busy = skip`",
        "timeout" | "wait_time" | "blocking" => "write `wait = \"5s\"`, or `try` to ask once",
        "ttl" | "expire" | "lease_time" => {
            "write `lease = \"30s\"`, which is renewed, or `fixed_lease = \"30s\"`"
        }
        "token" => "write `fenced = token`",
        "label" | "metrics" => "write `group = \"orders\"`",
        "semaphore" | "limit" => "write `permits = 3`",
        "at_most" => "write `max_hold = \"14m\"`",
        "locks" | "redis" | "connection" => "write `client = self.locks`",
        "kind" | "reentrant" => {
            "write `fair`, `read` or `write` before the key, or nothing for a reentrant lock"
        }
        _ => return None,
    })
}

pub(crate) fn fail(span: Span, message: impl Display) -> syn::Error {
    syn::Error::new(span, message)
}

pub(crate) fn beside_permits(name: &Ident, word: &str, why: &str) -> syn::Error {
    fail(
        name.span(),
        format!("`{word}` beside `permits`: {why}; leave one of them out"),
    )
}
