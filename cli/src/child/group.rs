//! A process group: signals to all its processes, and whether one of them is left.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, kill_process_group, test_kill_process_group};
use tokio::time::{Instant, sleep};

/// The time between two checks whether a group is empty.
const LOOK: Duration = Duration::from_millis(5);

/// The group that the command leads.
///
/// Invariant: the group is signalled only until the command has been reaped, or while a process of the group is
/// left, so that its number cannot belong to another group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(pub(super) Pid);

impl Group {
    /// Sends a signal to all processes of the group, except those of another user.
    pub(super) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    pub(super) fn kill(self) {
        self.signal(Signal::KILL);
    }

    pub(super) fn has(self, process: Pid) -> bool {
        getpgid(Some(process)) == Ok(self.0)
    }

    pub(super) fn is_empty(self) -> bool {
        test_kill_process_group(self.0) == Err(Errno::SRCH)
    }

    /// Waits for at most `span` until the group is empty; returns whether it is.
    pub(super) async fn wait_empty(self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        while !self.is_empty() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }
}
