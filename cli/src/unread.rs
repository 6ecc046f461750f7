//! Arguments that clap did not accept, or that ask for help: what is printed, and the status.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::failure::Failure;
use crate::status::{self, Exit};

const SHELL_LINE: &str = "for a line of shell, write `-- sh -c 'first | second'`";

/// Help on standard error, for a call without arguments. Clap has an option for that, but a variable of the
/// environment such as `LOCKSET_URL` counts as an argument there.
pub(crate) fn no_arguments(mut program: Command) -> Exit {
    // As an error of clap it would begin with "error:". The reader of a closed stream misses nothing.
    let _ = write!(io::stderr(), "{}", program.render_help());
    status::USAGE
}

/// Prints the error of these arguments, or the help that was asked for.
pub(crate) fn report(mut error: Error, arguments: Vec<OsString>, program: &Command) -> Exit {
    if error.use_stderr() {
        error = without_environment(error, arguments, program.clone());
    }
    without_hidden(&mut error, program);
    let shell_option = Some(&ContextValue::String("-c".to_owned()));
    if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg) == shell_option
    {
        let tip = vec![StyledStr::from(SHELL_LINE)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
    }
    print(&error)
}

/// Takes the hidden verbs out of the lists and suggestions of an error.
fn without_hidden(error: &mut Error, program: &Command) {
    let is_hidden = |name: &String| {
        let verb = program.find_subcommand(OsStr::new(name));
        verb.is_some_and(Command::is_hide_set)
    };
    for kind in [
        ContextKind::SuggestedSubcommand,
        ContextKind::ValidSubcommand,
    ] {
        let mut names = match error.remove(kind) {
            Some(ContextValue::Strings(names)) => names,
            Some(ContextValue::String(name)) => vec![name],
            Some(other) => {
                error.insert(kind, other);
                continue;
            }
            None => continue,
        };
        names.retain(|name| !is_hidden(name));
        if !names.is_empty() {
            error.insert(kind, ContextValue::Strings(names));
        }
    }
}

fn print(error: &Error) -> Exit {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => status::USAGE,
        // The reader of a closed stream misses nothing.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Failure::internal(error).report()
        }
        _ => status::OK,
    }
}

/// The error without the options that stand in the environment: clap names those in the usage, as if they were missing.
fn without_environment(error: Error, arguments: Vec<OsString>, program: Command) -> Error {
    let program = program.mut_args(|option| option.env(Resettable::Reset));
    let again = program.try_get_matches_from(arguments);
    // An option in the environment itself may be wrong.
    again.err().unwrap_or(error)
}
