//! The exit statuses of `lockset` itself. The status of a command is passed on unchanged.
//!
//! Where `sysexits.h` has a status for the case, it is used.

use rustix::process::Signal;

/// The end of this program, or of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The status as a shell has it: 128 + n if signal n ended it.
    pub(crate) status: u8,
    /// A signal ended it.
    pub(crate) by_signal: bool,
}

impl Exit {
    pub(crate) const fn with(status: u8) -> Self {
        Self {
            status,
            by_signal: false,
        }
    }
}

/// Done.
pub(crate) const OK: Exit = Exit::with(0);
/// `doctor` found something wrong, or a question was answered with no.
pub(crate) const NO: Exit = Exit::with(1);
/// The arguments, a name, an option or the URL cannot work.
pub(crate) const USAGE: Exit = Exit::with(64);
/// The key holds something that is not a lock, or not a lock of this kind.
pub(crate) const NOT_A_LOCK: Exit = Exit::with(65);
/// The server cannot be reached, does not answer, or cannot do it now.
pub(crate) const UNAVAILABLE: Exit = Exit::with(69);
/// The program itself failed: no process, no thread, no terminal.
pub(crate) const INTERNAL: Exit = Exit::with(70);
/// Another client holds the lock.
pub(crate) const BUSY: Exit = Exit::with(75);
/// The lock was lost while the command ran; the command was ended.
pub(crate) const LOST: Exit = Exit::with(76);
/// The server refuses the user or the password, or the user lacks a right.
pub(crate) const DENIED: Exit = Exit::with(77);

/// The end of a wait that a signal ended.
pub(crate) const fn signalled(signal: Signal) -> Exit {
    Exit {
        // There are at most 64 signals.
        status: 128 + signal.as_raw() as u8,
        by_signal: true,
    }
}
