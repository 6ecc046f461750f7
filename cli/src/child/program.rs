//! This program, and how it is asked to be one of the other two processes.

use std::path::{Path, PathBuf};

/// How this program is asked to be the supervisor of the command that follows.
pub(super) const SUPERVISE: &str = "--supervise";
/// How it is asked to become the command that follows.
pub(super) const BECOME: &str = "--become";

/// This program, even if its file was replaced after the start.
pub(super) fn this_program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    match std::env::current_exe() {
        Ok(file) if !link.exists() => file,
        _ => link.to_owned(),
    }
}
