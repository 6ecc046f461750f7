//! The path of this program, and the arguments that make it one of the other two processes.

use std::path::{Path, PathBuf};

/// The argument for the supervisor; the command follows.
pub(super) const SUPERVISE: &str = "--supervise";
/// The argument for the process that becomes the command; the command follows.
pub(super) const BECOME: &str = "--become";

/// This program, even if its file was replaced after the start.
pub(super) fn this_program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    match std::env::current_exe() {
        Ok(file) if !link.exists() => file,
        _ => link.to_owned(),
    }
}
