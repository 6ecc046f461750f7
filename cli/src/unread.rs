//! Arguments that clap did not accept, or that ask for help: what is printed, and the status.

use std::ffi::OsStr;
use std::io::{self, Write};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::status::{self, Exit};

const SHELL_LINE: &str = "for a line of shell, write `-- sh -c 'first | second'`";

/// Help on standard error, for a call without arguments. Clap has an option for that, but a variable of the
/// environment such as `LOCKSET_URL` counts as an argument there.
pub(crate) fn no_arguments(mut program: Command) -> Exit {
    // As an error of clap it would begin with "error:". The reader of a closed stream misses nothing.
    let _ = write!(io::stderr(), "{}", program.render_help());
    status::USAGE
}

/// Prints the error, or the help that was asked for.
pub(crate) fn report(mut error: Error, program: &Command) -> Exit {
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
    // The reader of a closed stream misses nothing.
    let _ = error.print();
    if error.use_stderr() {
        status::USAGE
    } else {
        status::OK
    }
}
