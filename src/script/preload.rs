//! The scripts as a new connection loads them. Apart from their catalogue, which the benches share.

use super::catalog;
use crate::conn::Preload;

/// Loads what a server lacks of the scripts on each new connection: then a call needs no second round
/// trip for its text, into which other commands could slip.
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
