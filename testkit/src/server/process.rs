//! A server process, and the watchdog that ends it if the test process cannot.
//!
//! Invariant: a watchdog exists as long as the server runs, and acts unless it is told not to. It
//! detects the end of the test process by its standard input, a pipe that the system closes however
//! the test process dies. So even a SIGKILL leaves no server behind.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Becomes the server on a command on standard input, or ends if the test process dies first.
const LAUNCHER: &str = r#"read -r word && [ "$word" = go ] && exec "$@" </dev/null"#;

/// Kills the server ($1) and removes its folder ($2) when standard input closes without a message.
const WATCHDOG: &str = r#"
read -r word
[ "$word" = done ] && exit 0
kill -CONT "$1"
kill -KILL "$1"
rm -rf -- "$2"
"#;

/// A server process, which is a direct child.
#[derive(Debug)]
pub(super) struct Process {
    server: Child,
    watchdog: Child,
    exit: Option<ExitStatus>,
    ended: bool,
}

impl Process {
    /// Runs `binary` in its own process group, with its output in `log`.
    pub(super) fn spawn(
        binary: &Path,
        arguments: &[String],
        dir: &Path,
        log: File,
    ) -> io::Result<Self> {
        // Separate process groups: a Ctrl-C, or a kill of the test's group, must reach only the
        // test, so that the watchdog survives and sees it.
        let mut server = Command::new("sh")
            .args(["-c", LAUNCHER, "launcher"])
            .arg(binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(log.try_clone()?)
            .stdout(log)
            .process_group(0)
            .spawn()?;
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(server.id().to_string())
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let watchdog = match watchdog {
            Ok(watchdog) => watchdog,
            Err(error) => {
                drop(server.stdin.take());
                server.wait()?;
                return Err(error);
            }
        };
        let go = server.stdin.take();
        let mut process = Self {
            server,
            watchdog,
            exit: None,
            ended: false,
        };
        match go.map(|mut pipe| pipe.write_all(b"go\n")) {
            // A broken pipe means that the launcher has died. Its log and exit status are reported
            // later.
            Some(Ok(())) | Some(Err(_)) => Ok(process),
            None => {
                process.end();
                Err(io::Error::other("the launcher has no standard input"))
            }
        }
    }

    /// The process id of the server, which is the launcher's.
    pub(super) fn pid(&self) -> u32 {
        self.server.id()
    }

    /// The exit status, if the process has ended.
    pub(super) fn exited(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.server.try_wait().ok().flatten();
        }
        self.exit
    }

    /// Stops the process and waits until it has stopped.
    pub(super) fn freeze(&mut self) -> Result<(), String> {
        let pid = self.signal(Signal::STOP)?;
        // The signal takes effect some time after the call, but a test must not see another answer.
        // This only waits for a stop, so the exit status stays available to `wait`.
        let deadline = Instant::now() + Duration::from_secs(5);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(pid), options) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            if Instant::now() >= deadline {
                return Err("it did not stop within 5 s".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Continues a stopped process.
    pub(super) fn thaw(&mut self) -> Result<(), String> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Kills the process and waits for its end, then dismisses the watchdog. Idempotent.
    pub(super) fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if self.exited().is_none() {
            // Not every system reliably kills a stopped process.
            let _ = self.signal(Signal::CONT);
            let _ = self.server.kill();
            self.exit = self.server.wait().ok();
        }
        // Only now, because the watchdog guarantees the server's end until the server is gone.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
    }

    // Never signals a process after `wait`, because its id may have been reused.
    fn signal(&mut self, signal: Signal) -> Result<Pid, String> {
        if let Some(status) = self.exited() {
            return Err(format!("it is not running ({status})"));
        }
        let pid = Pid::from_child(&self.server);
        kill_process(pid, signal).map_err(|error| error.to_string())?;
        Ok(pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
