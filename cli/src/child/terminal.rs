//! The terminal, if there is one: which group reads from it and gets its signals.

use std::fs::File;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp,
};

use super::group::Group;
use super::signals::is_ignored;

/// The terminal whose job the runner's group is.
pub(super) struct Terminal {
    file: File,
    own: Pid,
    /// The modes before the command, which may be killed before it restores them.
    modes: Option<Termios>,
    /// The command gets the terminal only when it asks for it.
    is_on_demand: bool,
}

impl Terminal {
    /// `None` without a terminal, in the background of a script, and where the output goes to another part of a
    /// pipeline, which may need the terminal itself, as a pager does. If the input is a pipe, the command gets it when
    /// it asks for it: the process that writes to the pipe may have to ask for a password.
    pub(super) fn of_this_process() -> Option<Self> {
        let is_pipe = |file| {
            fstat(file).is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Fifo)
        };
        if is_pipe(stdout()) || is_in_background() {
            return None;
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        let modes = tcgetattr(&file).ok();
        let own = getpgrp();
        Some(Self {
            file,
            own,
            modes,
            is_on_demand: is_pipe(stdin()),
        })
    }

    /// Whether this process's job has the terminal, and not the command.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(self.own)
    }

    /// Gives the terminal to a command that begins or goes on.
    pub(super) fn offer_to(&self, group: Group) {
        if !self.is_on_demand {
            self.give_to(group);
        }
    }

    /// Gives the terminal to the command, if this process's job has it.
    pub(super) fn give_to(&self, group: Group) {
        if self.is_ours() {
            self.set(group.0);
        }
    }

    /// Whether the command may have the terminal, or has it.
    pub(super) fn is_for(&self, group: Group) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|now| now == self.own || now == group.0)
    }

    /// Takes the terminal back from the command; returns whether the command had it.
    pub(super) fn take_from(&self, group: Group) -> bool {
        let had = tcgetpgrp(&self.file) == Ok(group.0);
        if had {
            self.set(self.own);
        }
        had
    }

    /// Restores the modes from before the command.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            // A terminal that is gone needs no modes.
            let _ =
                with_output_allowed(|| tcsetattr(self.file.as_fd(), OptionalActions::Now, modes));
        }
    }

    /// Whether other processes belong to this process's job, such as the shell that runs a script.
    pub(super) fn is_shared(&self) -> bool {
        self.own != getpid()
    }

    fn set(&self, group: Pid) {
        // The terminal or the group may be gone, and then there is nothing to do.
        let _ = with_output_allowed(|| tcsetpgrp(self.file.as_fd(), group));
    }
}

/// Whether a shell without job control has started this process in the background: in the group of the script, with
/// SIGINT ignored and nothing to read. A script that ignores SIGINT itself leaves its jobs their input.
fn is_in_background() -> bool {
    is_ignored(rustix::process::Signal::INT) && !isatty(stdin())
}

/// A process in the background that touches the terminal is stopped, unless it blocks that signal.
fn with_output_allowed<T>(touch: impl FnOnce() -> T) -> T {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    let blocked = stop.thread_block().is_ok();
    let touched = touch();
    if blocked {
        let _ = stop.thread_unblock();
    }
    touched
}
