//! Every script, one row each.
//!
//! The text is put together when the crate is compiled: the shared pieces a script names, then the
//! file itself.

use super::Script;

macro_rules! script {
    ($name:literal $(, $include:literal)*) => {
        Script::new(concat!(
            $(include_str!(concat!("../../lua/includes/", $include, ".lua")), "\n",)*
            include_str!(concat!("../../lua/", $name, ".lua")),
        ))
    };
}

pub(crate) static REENTRANT_ACQUIRE: Script =
    script!("reentrant_acquire", "raise_lease", "next_token");
pub(crate) static REENTRANT_RELEASE: Script = script!("reentrant_release", "raise_lease");
pub(crate) static REENTRANT_INSPECT: Script = script!("reentrant_inspect");
pub(crate) static REENTRANT_FORCE_UNLOCK: Script = script!("reentrant_force_unlock");
pub(crate) static RENEW: Script = script!("renew", "raise_lease");

/// All of them by file name, for the tests that hold for every script.
#[cfg(test)]
pub(crate) static ALL: [(&str, &Script); 5] = [
    ("reentrant_acquire", &REENTRANT_ACQUIRE),
    ("reentrant_release", &REENTRANT_RELEASE),
    ("reentrant_inspect", &REENTRANT_INSPECT),
    ("reentrant_force_unlock", &REENTRANT_FORCE_UNLOCK),
    ("renew", &RENEW),
];
