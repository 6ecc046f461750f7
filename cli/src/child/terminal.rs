//! The terminal, if there is one: which group reads from it and gets its signals.

use std::fs::File;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::stdout;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::group::Group;

/// The terminal whose job the runner's group is.
pub(super) struct Terminal {
    file: File,
    own: Pid,
    /// The modes before the command, which may be killed before it restores them.
    modes: Option<Termios>,
}

impl Terminal {
    /// `None` without a terminal, and where the output goes to another part of a pipeline, which may need
    /// the terminal itself, as a pager does.
    pub(super) fn of_this_process() -> Option<Self> {
        let writes_to_pipe = fstat(stdout())
            .is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Fifo);
        if writes_to_pipe {
            return None;
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        let modes = tcgetattr(&file).ok();
        let own = getpgrp();
        Some(Self { file, own, modes })
    }

    /// Whether this process's job has the terminal, and not the command.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(self.own)
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
