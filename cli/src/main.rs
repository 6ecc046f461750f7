//! `lockset`, the command line: reads the arguments, runs one verb, and ends with its status.

mod args;
mod child;
mod connect;
mod facts;
mod failure;
mod found;
mod globals;
mod held;
mod login;
mod message;
mod output;
mod span;
mod status;
mod verb;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::Args;
use connect::Context;

fn main() -> ExitCode {
    if let Some(status) = child::part() {
        return ExitCode::from(status);
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return ExitCode::from(unread(&error)),
    };
    let context = match Context::new(args.globals) {
        Ok(context) => context,
        Err(failure) => return ExitCode::from(failure.report()),
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(failure::Failure::internal)
        .and_then(|runtime| runtime.block_on(args.verb.run(&context, Args::command)));
    ExitCode::from(ended.unwrap_or_else(|failure| failure.report()))
}

/// What clap could not read, or was asked to show.
fn unread(error: &clap::Error) -> u8 {
    let status = if error.use_stderr() {
        status::USAGE
    } else {
        status::OK
    };
    // A closed standard output: nobody reads it.
    let _ = error.print();
    status
}
