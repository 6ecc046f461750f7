//! The signals that the runner receives: the ones that end a wait, and all that are passed on to the command.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// These signals end a wait for the lock. SIGINT comes first: a terminal sends it.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Whether the signal asks a program to end.
pub(super) fn is_ending(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

pub(super) fn is_ending_number(number: i32) -> bool {
    ENDING.iter().any(|signal| signal.as_raw() == number)
}

/// The command gets these too. Left out: signals that cannot be caught, signals of a fault of the runner
/// itself, SIGPIPE and SIGCHLD, which are about the runner's own pipes and processes, and the real-time
/// signals.
const PASSED_ON: &[Signal] = &[
    Signal::TRAP,
    Signal::ABORT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Signal::STKFLT,
    Signal::CONT,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::URG,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::WINCH,
    Signal::IO,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Signal::POWER,
    Signal::SYS,
];

/// Runs it with these signals held back: from this thread, and for good from the threads that start meanwhile. What
/// comes in that time comes to this thread afterwards. A stream that starts loses a signal that comes behind the start
/// of its handler, unless the signal is held back from all threads.
pub(crate) fn held_back<T>(run: impl FnOnce() -> T) -> T {
    let signals = ENDING.iter().chain(PASSED_ON);
    let signals = signals.filter_map(|signal| signal.as_raw().try_into().ok());
    let before = signals
        .collect::<SigSet>()
        .thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let ran = run();
    if let Ok(before) = before {
        // Only an invalid set is refused.
        let _ = before.thread_set_mask();
    }
    ran
}

/// The signals of this process, in their order of arrival. They come to the thread that listens for them, the only one
/// from which they are not [`held_back`].
pub(crate) struct Signals {
    sender: mpsc::UnboundedSender<Signal>,
    received: mpsc::UnboundedReceiver<Signal>,
    ignored: u64,
}

impl Signals {
    /// Listens for the signals that end a wait.
    pub(crate) fn ending() -> io::Result<Self> {
        let (sender, received) = mpsc::unbounded_channel();
        let ignored = ignored();
        let signals = Self {
            sender,
            received,
            ignored,
        };
        signals.listen(&ENDING)?;
        Ok(signals)
    }

    /// Listens for all signals that the command gets.
    pub(super) fn all(&self) -> io::Result<()> {
        self.listen(PASSED_ON)
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            // The channel stays open while `sender` exists.
            None => std::future::pending().await,
        }
    }

    /// The next signal that ends a wait. Cancel safe.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_ending(signal) {
                return signal;
            }
        }
    }

    fn listen(&self, kinds: &[Signal]) -> io::Result<()> {
        held_back(|| self.begin(kinds))
    }

    fn begin(&self, kinds: &[Signal]) -> io::Result<()> {
        for kind in kinds {
            // A start with `nohup`, or in the background of a script, asks that the signal stays ignored.
            if has(self.ignored, *kind) {
                continue;
            }
            let (kind, sender) = (*kind, self.sender.clone());
            let mut stream = signal(SignalKind::from_raw(kind.as_raw()))?;
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(kind).is_ok() {}
            });
        }
        Ok(())
    }
}

/// Whether the signal was ignored when this process began: such a one gets no handler.
pub(super) fn is_ignored(signal: Signal) -> bool {
    has(ignored(), signal)
}

fn has(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// One bit for each signal that was ignored when this process began; none where the system does not show them.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::raise;

    use super::*;

    #[tokio::test]
    async fn a_signal_that_comes_before_its_stream_starts_is_received() {
        let mut stream = held_back(|| {
            raise(nix::sys::signal::Signal::SIGWINCH).unwrap();
            signal(SignalKind::window_change()).unwrap()
        });
        let received = lockset_testkit::within(Duration::from_secs(20), stream.recv());
        assert_eq!(received.await, Some(()));
    }
}
