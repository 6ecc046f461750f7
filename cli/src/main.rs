//! `lockset`, the command line: reads the arguments, runs one verb, and exits with its status.

mod args;
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

use args::Args;
use connect::Context;

fn main() -> ExitCode {
    if let Some(status) = child::part() {
        return ExitCode::from(status);
    }
    ExitCode::from(run(std::env::args_os().collect()))
}

fn run(arguments: Vec<OsString>) -> u8 {
    if arguments.len() < 2 {
        return unread::no_arguments(Args::command());
    }
    let arguments = separator::inserted(arguments, &Args::command());
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return unread::report(error, &Args::command()),
    };
    let context = match Context::new(args.globals) {
        Ok(context) => context,
        Err(failure) => return failure.report(),
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(failure::Failure::internal)
        .and_then(|runtime| runtime.block_on(args.verb.run(&context, Args::command)));
    ended.unwrap_or_else(failure::Failure::report)
}
