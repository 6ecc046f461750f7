//! How this program becomes one of the other two processes; and the process that becomes the command: it dies with the
//! supervisor, waits until it may begin, and executes the command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use super::control::take_socket;
use crate::output::complain;

/// The argument for the supervisor; the command follows.
pub(super) const SUPERVISE: &str = "--supervise";
/// The argument for the process that becomes the command; the command follows.
pub(super) const BECOME: &str = "--become";

/// What the supervisor reads if the command could not be executed.
const NOT_BEGUN: &[u8] = b"n";

/// The statuses that `env` uses.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// This program, even if its file was replaced after the start.
pub(super) fn this_program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    match std::env::current_exe() {
        Ok(file) if !link.exists() => file,
        _ => link.to_owned(),
    }
}

/// Returns only if the command cannot be executed. The first argument is the supervisor's process id.
pub(super) fn run(arguments: Vec<OsString>) -> u8 {
    let [supervisor, program, rest @ ..] = &*arguments else {
        return CANNOT_RUN;
    };
    die_with_parent();
    // The supervisor may have ended before the death signal was set.
    let parent = getppid().map(Pid::as_raw_pid);
    if parent.map(|pid| pid.to_string()).as_deref() != supervisor.to_str() {
        return CANNOT_RUN;
    }
    // Closed when the command begins.
    let Ok(mut socket) = take_socket() else {
        return CANNOT_RUN;
    };
    // The supervisor sees the stop, gives the terminal to this group, and continues it.
    let _ = kill_process(getpid(), Signal::STOP);
    let error = Command::new(program).args(rest).exec();
    // If the supervisor is gone, so is this process.
    let _ = socket.write_all(NOT_BEGUN);
    complain(&format!("{}: {}", program.display(), reason(&error)));
    if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_RUN
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "command not found".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with_parent() {
    // Only an invalid signal is refused.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Elsewhere the runner alone kills the group of a supervisor that was killed.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with_parent() {}
