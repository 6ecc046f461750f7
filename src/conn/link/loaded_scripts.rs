//! The scripts that were loaded over one connection.
//!
//! The first call of a script on a connection is sent behind a command that loads the script, in the same write. A new
//! client therefore sends only the scripts that it uses, and needs no round trip for them. If the call alone were sent,
//! a server might answer `NOSCRIPT`, and another command could be executed before the second attempt with the text.
//!
//! Invariant: a script counts as loaded only when the command that loads it is ahead of all later ones.

use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Arg, Cmd};

use crate::conn::setup::FindScript;

#[derive(Debug)]
pub(super) struct LoadedScripts {
    find: FindScript,
    /// One bit for each script.
    loaded: AtomicU64,
}

/// The commands that load the scripts of one request.
pub(super) struct Loads {
    pub(super) commands: Vec<Cmd>,
    scripts: u64,
}

impl LoadedScripts {
    pub(super) fn new(find: FindScript) -> Self {
        Self {
            find,
            loaded: AtomicU64::new(0),
        }
    }

    /// What has to be sent before `commands`; `None` if they run only loaded scripts, or none.
    pub(super) fn missing(&self, commands: &[&Cmd]) -> Option<Loads> {
        let loaded = self.loaded.load(Ordering::Acquire);
        let mut loads = None;
        for (script, text) in commands.iter().filter_map(|command| self.script(command)) {
            let script = 1 << script;
            let loads = loads.get_or_insert_with(|| Loads {
                commands: Vec::new(),
                scripts: 0,
            });
            if (loaded | loads.scripts) & script == 0 {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(text);
                loads.commands.push(load);
                loads.scripts |= script;
            }
        }
        loads.filter(|loads| loads.scripts != 0)
    }

    /// These have been handed over to the connection.
    pub(super) fn are_sent(&self, loads: &Loads) {
        self.loaded.fetch_or(loads.scripts, Ordering::AcqRel);
    }

    fn script(&self, command: &Cmd) -> Option<(u8, &'static str)> {
        let mut args = command.args_iter();
        match (args.next()?, args.next()?) {
            (Arg::Simple(b"EVALSHA"), Arg::Simple(sha)) => (self.find)(sha),
            _ => None,
        }
    }
}
