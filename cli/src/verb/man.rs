//! `man`: the manual pages, for a package of this program.

use std::io;
use std::path::PathBuf;

use clap::{Arg, Args, Command};

use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::status;

/// Write the manual pages into a folder.
#[derive(Args)]
pub(crate) struct Man {
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(&self, context: &Context, program: fn() -> Command) -> Outcome {
        let mut program = program();
        program.build();
        // `help` has no page: the page of the program says as much.
        let has_page = |verb: &&Command| !verb.is_hide_set() && verb.get_name() != "help";
        let verbs = program.get_subcommands().filter(has_page);
        let of_verbs = verbs.map(|verb| (format!("lockset-{}", verb.get_name()), verb.clone()));
        let pages: Vec<_> = of_verbs
            .chain([("lockset".to_owned(), program.clone())])
            .collect();
        for (name, command) in pages {
            let file = self.folder.join(format!("{name}.1"));
            let written = page(&name, command).and_then(|page| std::fs::write(&file, page));
            written.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            context.output.line(&file.display().to_string())?;
        }
        Ok(status::OK)
    }
}

const SYNOPSIS: &str = ".SH SYNOPSIS\n";

/// A page as `clap_mangen` writes it, with our synopsis: its own has neither values nor the `--`.
fn page(name: &str, mut command: Command) -> io::Result<String> {
    let synopsis = synopsis(&mut command);
    let command = command.display_name(name.to_owned());
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .title(name)
        .render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    let (before, rest) = page.split_once(SYNOPSIS).unwrap_or((&page, ""));
    let after = rest.find("\n.SH ").map_or("", |end| &rest[end..]);
    Ok(format!("{before}{SYNOPSIS}{synopsis}{after}"))
}

/// Each option of the command with its value, then the arguments as the usage has them.
fn synopsis(command: &mut Command) -> String {
    let usage = command.render_usage().to_string();
    let (program, arguments) = usage.split_once(" [OPTIONS]").unwrap_or((&usage, ""));
    let program = program.trim_start_matches("Usage: ");
    let own = command.get_arguments();
    let own = own.filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    let options: Vec<String> = own.filter_map(option).collect();
    let arguments = arguments.replace(['<', '>'], "");
    let text = format!(
        "\\fB{program}\\fR {} [OPTIONS]{arguments}",
        options.join(" ")
    );
    text.replace('-', "\\-")
}

fn option(arg: &Arg) -> Option<String> {
    let long = arg.get_long()?;
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().filter(|_| arg.get_action().takes_values());
    Some(match value {
        Some(value) => format!("[\\fB--{long}\\fR \\fI{value}\\fR]"),
        None => format!("[\\fB--{long}\\fR]"),
    })
}
