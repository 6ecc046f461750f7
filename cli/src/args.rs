//! The arguments: the options of all verbs, and the verbs.

use clap::Parser;

use crate::globals::Globals;
use crate::verb::Verb;

/// Distributed locks on Redis and Valkey.
///
/// Runs commands under a lock, and shows the locks of a server and their holders.
#[derive(Parser)]
#[command(
    name = "lockset",
    version,
    subcommand_required = true,
    after_help = AFTER
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Exit status:
  that of the command, for verbs that run one
  0  done            64  wrong usage         75  busy: another client holds the lock
  1  the answer: no  65  not a lock          76  the lock was lost, the command was ended
                     69  server unreachable  77  no right, or a wrong password
                     70  internal error      126, 127  the command cannot be run, is not found
                                             130  Ctrl-C while waiting

Keep passwords off the command line, where `ps` shows them: put the URL into LOCKSET_URL.";
