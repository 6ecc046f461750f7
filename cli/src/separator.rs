//! Pure: inserts the `--` before a command where the caller left it out.
//!
//! `lockset run deploy ./deploy.sh --force` means `lockset run deploy -- ./deploy.sh --force`. Clap cannot read
//! the first form: it would take `--force` for an option of `run`, and `./deploy.sh` for a second lock.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

const SEPARATOR: &str = "--";

/// The arguments, with a separator behind the first name. Arguments that already have a separator, and
/// arguments of verbs that run no command, are returned unchanged.
pub(crate) fn inserted(mut arguments: Vec<OsString>, program: &Command) -> Vec<OsString> {
    if let Some(at) = command_at(&arguments, program) {
        arguments.insert(at, SEPARATOR.into());
    }
    arguments
}

/// Where the command begins, if a separator is missing there.
fn command_at(arguments: &[OsString], program: &Command) -> Option<usize> {
    if arguments.iter().any(|argument| argument == SEPARATOR) {
        return None;
    }
    let (mut verb, mut has_name): (Option<&Command>, bool) = (None, false);
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.to_str().unwrap_or_default();
        if let Some(option) = text.strip_prefix("--") {
            at += 1 + usize::from(takes_next(option, program, verb)?);
            continue;
        }
        if text.len() > 1 && text.starts_with('-') {
            // No verb that runs a command has a short option with a value.
            return None;
        }
        match verb {
            None => verb = Some(program.find_subcommand(argument).filter(runs_command)?),
            Some(_) if has_name => return Some(at),
            Some(_) => has_name = true,
        }
        at += 1;
    }
    None
}

fn runs_command(verb: &&Command) -> bool {
    verb.get_positionals().any(Arg::is_last_set)
}

/// Whether the value of a long option is the next argument. `None` for an unknown option.
fn takes_next(option: &str, program: &Command, verb: Option<&Command>) -> Option<bool> {
    let (name, has_value) = match option.split_once('=') {
        Some((name, _)) => (name, true),
        None => (option, false),
    };
    let of_verb = verb.into_iter().flat_map(Command::get_arguments);
    let mut known = program.get_arguments().chain(of_verb);
    let found = known.find(|known| known.get_long().map(OsStr::new) == Some(OsStr::new(name)))?;
    Some(found.get_action().takes_values() && !has_value)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn read(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let arguments = inserted(arguments, &crate::Args::command());
        let words: Vec<_> = arguments
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn the_separator_is_inserted_behind_the_first_name() {
        for (line, expected) in [
            ("lockset run a ./x", "lockset run a -- ./x"),
            (
                "lockset run a ./x --try -c",
                "lockset run a -- ./x --try -c",
            ),
            (
                "lockset --url u run --wait 1s a --fair --lease=9s ./x",
                "lockset --url u run --wait 1s a --fair --lease=9s -- ./x",
            ),
            (
                "lockset once k --for 1m ./x",
                "lockset once k --for 1m -- ./x",
            ),
        ] {
            assert_eq!(read(line), expected);
        }
    }

    #[test]
    fn other_arguments_are_left_alone() {
        for line in [
            "lockset",
            "lockset run",
            "lockset run a",
            "lockset run a b -- ./x",
            "lockset run a ./x -- y",
            "lockset run a --nonsense ./x",
            "lockset run a -c x",
            "lockset run --with a ./x",
            "lockset show a b",
            "lockset nonsense a b",
        ] {
            assert_eq!(read(line), line);
        }
    }
}
