//! Loads the scripts on a new connection. Separate from the catalog, which the benches share.

use super::catalog;
use crate::conn::Preload;

/// Loads the scripts that a server lacks on each new connection. A call then needs no second round trip for its text,
/// and no other command can come in between.
pub(crate) fn all() -> Preload {
    let mut check = redis::cmd("SCRIPT");
    check.arg("EXISTS");
    let mut load = Vec::with_capacity(catalog::ALL.len());
    for (_, script) in catalog::ALL {
        check.arg(script.sha());
        let mut text = redis::cmd("SCRIPT");
        text.arg("LOAD").arg(script.text());
        load.push(text);
    }
    Preload {
        check: Some(check),
        load,
    }
}
