//! A command under a lock, as a tree of three processes.
//!
//! The *runner* holds the lock. It starts a *supervisor*, this program again, which starts the *command* in a
//! process group of its own. Runner and supervisor talk over a socket that no other process has, so each of
//! them sees the end of the other.
//!
//! Invariant: no process of the command's group runs after the *end of the lock*, the moment at which the
//! runner can no longer be sure to hold it. The lock is released earlier only when nothing is left of the
//! group, or when the command ended by itself. The supervisor knows this moment and needs neither the runner
//! nor the server to keep it. If the runner ends, or the moment passes, the supervisor kills the group. If the
//! supervisor ends, the kernel kills the command, and the runner the rest of the group.

mod clock;
mod command;
mod control;
mod group;
mod runner;
mod sender;
mod signals;
mod supervisor;
mod terminal;
mod watch;

use std::ffi::OsString;

use self::command::{BECOME, SUPERVISE};
pub(crate) use runner::{Child, Ended, Limits};
pub(crate) use signals::{Signals, held_back};

use crate::status::Exit;

/// The end of this process if it was started as one of the other two.
pub(crate) fn part() -> Option<Exit> {
    let mut arguments = std::env::args_os().skip(1);
    let part = arguments.next()?;
    let rest: Vec<OsString> = arguments.collect();
    match part.to_str()? {
        SUPERVISE => Some(supervisor::run(rest)),
        BECOME => Some(Exit::with(command::run(rest))),
        _ => None,
    }
}
