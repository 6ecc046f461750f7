//! Every script, one row each.
//!
//! The text is put together when the crate is compiled: the shared pieces a script names, then the
//! file itself.

use std::sync::Arc;

use redis::Cmd;

use super::Script;

macro_rules! script {
    ($name:literal $(, $include:literal)*) => {
        Script::new(concat!(
            $(include_str!(concat!("../../lua/includes/", $include, ".lua")), "\n",)*
            include_str!(concat!("../../lua/", $name, ".lua")),
        ))
    };
}

pub(crate) static REENTRANT_ACQUIRE: Script = script!("reentrant_acquire", "next_token");
pub(crate) static REENTRANT_RELEASE: Script = script!("reentrant_release");
pub(crate) static REENTRANT_INSPECT: Script = script!("reentrant_inspect");
pub(crate) static REENTRANT_FORCE_UNLOCK: Script = script!("reentrant_force_unlock");
pub(crate) static RENEW: Script = script!("renew");

/// All of them by file name.
pub(crate) static ALL: [(&str, &Script); 5] = [
    ("reentrant_acquire", &REENTRANT_ACQUIRE),
    ("reentrant_release", &REENTRANT_RELEASE),
    ("reentrant_inspect", &REENTRANT_INSPECT),
    ("reentrant_force_unlock", &REENTRANT_FORCE_UNLOCK),
    ("renew", &RENEW),
];

/// What makes a server know every script, to be sent on each new connection: then a call needs no
/// second round trip for its text, which others could get in between of.
pub(crate) fn loading() -> Arc<[Cmd]> {
    let load = |(_, script): &(&str, &Script)| {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(script.text);
        command
    };
    ALL.iter().map(load).collect()
}
