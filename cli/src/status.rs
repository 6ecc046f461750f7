//! The exit statuses of `lockset` itself. The status of a command is passed on unchanged.
//!
//! Where `sysexits.h` has a status for the case, it is used.

/// Done.
pub(crate) const OK: u8 = 0;
/// `doctor` found something wrong, or a question was answered with no.
pub(crate) const NO: u8 = 1;
/// The arguments, a name, an option or the URL cannot work.
pub(crate) const USAGE: u8 = 64;
/// The key holds something that is not a lock, or not a lock of this kind.
pub(crate) const NOT_A_LOCK: u8 = 65;
/// The server cannot be reached, does not answer, or cannot do it now.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The program itself failed: no process, no thread, no terminal.
pub(crate) const INTERNAL: u8 = 70;
/// Another client holds the lock.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the command ran; the command was ended.
pub(crate) const LOST: u8 = 76;
/// The server refuses the user or the password, or the user lacks a right.
pub(crate) const DENIED: u8 = 77;

/// The status of a wait that a signal ended, as a shell has it.
pub(crate) const fn signalled(signal: i32) -> u8 {
    // There are at most 64 signals.
    128 + signal as u8
}
