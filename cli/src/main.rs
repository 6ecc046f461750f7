//! `lockset`, the command line: reads the arguments, runs one verb, and exits with its status.

mod blocker;
mod child;
mod connect;
mod facts;
mod failure;
mod found;
mod globals;
mod held;
mod login;
mod message;
mod outage;
mod output;
mod separator;
mod span;
mod status;
mod unread;
mod verb;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use connect::Context;
use globals::Globals;
use rustix::process::Signal;
use signal_hook::low_level::emulate_default_handler;
use status::Exit;
use verb::Verb;

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

fn main() -> ExitCode {
    let exit = child::part().unwrap_or_else(|| {
        let exit = run(std::env::args_os().collect());
        if exit == status::signalled(Signal::INT) {
            // A shell that has got Ctrl-C as well goes on with its script after any other end.
            let _ = emulate_default_handler(Signal::INT.as_raw());
        }
        exit
    });
    ExitCode::from(exit.status)
}

fn run(arguments: Vec<OsString>) -> Exit {
    if arguments.len() < 2 {
        return unread::no_arguments(Args::command());
    }
    let arguments = separator::inserted(arguments, &Args::command());
    let args = match Args::try_parse_from(&arguments) {
        Ok(args) => args,
        Err(error) => return unread::report(error, arguments, &Args::command()),
    };
    let context = match Context::new(args.globals) {
        Ok(context) => context,
        Err(failure) => return failure.report(),
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all();
    let ended = child::held_back(|| runtime.build())
        .map_err(failure::Failure::internal)
        .and_then(|runtime| runtime.block_on(args.verb.run(&context, Args::command)));
    ended.unwrap_or_else(failure::Failure::report)
}
