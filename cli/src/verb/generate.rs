//! `completions`: the completions of a shell, for a package of this program.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::{Failure, Outcome};
use crate::status;

/// Print the completions of a shell.
#[derive(Args)]
#[command(after_help = "Example:\n  lockset completions bash > /etc/bash_completion.d/lockset")]
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, program: fn() -> Command) -> Outcome {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut shown(&program()), "lockset", &mut text);
        // Through a buffer: a closed standard output is no panic.
        let text = String::from_utf8(text).map_err(Failure::internal)?;
        crate::output::print(&with_names(self.shell, text))?;
        Ok(status::OK)
    }
}

/// The program without its hidden verbs, which the generators would offer.
fn shown(program: &Command) -> Command {
    let verbs = program.get_subcommands();
    Command::new("lockset")
        .version(env!("CARGO_PKG_VERSION"))
        .args(program.get_arguments().cloned())
        .subcommands(verbs.filter(|verb| !verb.is_hide_set()).cloned())
}

/// Adds the names of locks to the completions of a shell, if it is known how.
fn with_names(shell: Shell, text: String) -> String {
    match shell {
        Shell::Bash => text + BASH_NAMES,
        Shell::Fish => text + FISH_NAMES,
        Shell::Zsh => zsh(&text),
        _ => text,
    }
}

/// Offers the names of locks instead of files where a lock is named.
fn zsh(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let is_name = line.starts_with("':name -- ") || line.starts_with("'*--with");
        match line.strip_suffix(":_default' \\") {
            Some(begin) if begin.starts_with("'*::names -- ") => {
                lines.push(format!("{begin}:_lockset_names_or_files' \\"));
            }
            Some(begin) if is_name => lines.push(format!("{begin}:_lockset_names' \\")),
            _ => lines.push(line.to_owned()),
        }
        // Before the end of the file, which may run all of it.
        if line.starts_with("autoload ") {
            lines.push(ZSH_NAMES.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

const ZSH_NAMES: &str = r#"
_lockset_names() {
    local -a names
    names=(${(f)"$(lockset names -- "${(Q)PREFIX}" 2>/dev/null)"})
    compadd -a names
}
# Behind one name of `run` a command may stand.
_lockset_names_or_files() {
    _lockset_names || _default
}"#;

/// A colon ends a word for readline, so the text before the last colon is not replaced.
const BASH_NAMES: &str = r#"
_lockset_with_names() {
    _lockset "$@"
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]}
    case " ${line%"$word"}" in
        *" -- "*) return ;;
        *" show "* | *" wait "* | *" free "* | *" release "* | *" run "*) ;;
        *) return ;;
    esac
    case "$3" in --color | --tls-*) return ;; esac
    [[ $word == -* ]] && return
    COMPREPLY=()
    local name
    while IFS= read -r name; do
        COMPREPLY+=("${name#"${word%"${word##*:}"}"}")
    done < <("$1" names -- "$word" 2>/dev/null)
}
complete -F _lockset_with_names -o nosort -o bashdefault -o default lockset
"#;

const FISH_NAMES: &str = r#"
function __lockset_names
    command lockset names -- (commandline -ct) 2>/dev/null
end
# Behind `--` stands a command.
function __lockset_wants_name
    __fish_seen_subcommand_from show wait free release run
    and not contains -- -- (commandline -opc)
end
complete -c lockset -n __lockset_wants_name -f -a "(__lockset_names)"
for option in with with-fair with-read with-write
    complete -c lockset -n __lockset_wants_name -l $option -x -a "(__lockset_names)"
end
"#;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn zsh_offers_names_where_a_lock_is_named() {
        let mut text = Vec::new();
        let mut program = crate::Args::command();
        clap_complete::generate(Shell::Zsh, &mut program, "lockset", &mut text);
        let text = with_names(Shell::Zsh, String::from_utf8(text).unwrap());
        // show, wait, free, release, purge, and four options of run.
        assert_eq!(text.matches(":_lockset_names'").count(), 9, "{text}");
        // run.
        let commands = text.matches(":_lockset_names_or_files'").count();
        assert_eq!(commands, 1, "{text}");
        assert_eq!(text.matches("_lockset_names() {").count(), 1);
        // Neither for the key of `once` nor for a pattern.
        let others = text
            .lines()
            .filter(|line| line.starts_with("'::glob") || line.starts_with("':key"));
        let others: Vec<&str> = others.collect();
        assert!(others.len() >= 3, "{text}");
        assert!(
            others.iter().all(|line| line.contains(":_default'")),
            "{others:?}"
        );
    }
}
