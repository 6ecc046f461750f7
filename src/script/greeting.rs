//! What a new connection tells its server of the scripts. Apart from their list, which the benches share.

use super::catalog;
use crate::conn::Greeting;

/// What makes a server know every script, to be told on each new connection to who does not: then a call
/// needs no second round trip for its text, which others could get in between of.
pub(crate) fn of_all() -> Greeting {
    let mut ask = redis::cmd("SCRIPT");
    ask.arg("EXISTS");
    let mut tell = Vec::with_capacity(catalog::ALL.len());
    for (_, script) in &catalog::ALL {
        ask.arg(script.sha());
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text);
        tell.push(load);
    }
    Greeting {
        ask: Some(ask),
        tell,
    }
}
