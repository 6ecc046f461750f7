//! A process group: signals to all of it, and whether anything of it is left.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, kill_process_group, test_kill_process_group};
use tokio::time::{Instant, sleep};

/// How often to look whether a group is empty.
const LOOK: Duration = Duration::from_millis(5);

/// The group that the command leads.
///
/// Invariant: it is signalled only while the command is not known to have been reaped, or while something of
/// it is left, so its number is not given to another group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(pub(super) Pid);

impl Group {
    /// Sends a signal to all of it. One that is gone, or belongs to another user, gets none.
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

    /// Waits until nothing is left of it, for at most `span`; says whether that came.
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
