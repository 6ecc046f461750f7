//! A server process and the watchdog that ends it if we cannot.
//!
//! Invariant: from the moment the server binary runs there is a watchdog for it, and the watchdog acts
//! unless it is told not to. It learns of our end by its standard input, a pipe from us that the
//! system closes however we die, so a SIGKILL of the test process leaves no server behind.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Becomes the server once it is told to on standard input; ends if we die before.
const LAUNCHER: &str = r#"read -r word && [ "$word" = go ] && exec "$@" </dev/null"#;

/// Kills the server ($1) and removes its folder ($2) when standard input closes without a word.
const WATCHDOG: &str = r#"
read -r word
[ "$word" = done ] && exit 0
kill -CONT "$1"
kill -KILL "$1"
rm -rf -- "$2"
"#;

/// A server process that is a direct child of ours.
#[derive(Debug)]
pub(super) struct Process {
    server: Child,
    watchdog: Child,
    exit: Option<ExitStatus>,
    ended: bool,
}

impl Process {
    /// Runs `binary` in a process group of its own, with its output going to `log`.
    pub(super) fn spawn(
        binary: &Path,
        arguments: &[String],
        dir: &Path,
        log: File,
    ) -> io::Result<Self> {
        // Groups of their own: a terminal's Ctrl-C, or a runner's kill of the test's group, must
        // reach the test alone, and the watchdog must be there to see it.
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
            // A broken pipe means the launcher has died; its log and status will tell.
            Some(Ok(())) | Some(Err(_)) => Ok(process),
            None => {
                process.end();
                Err(io::Error::other("the launcher has no standard input"))
            }
        }
    }

    /// The process id of the server: the launcher became it.
    pub(super) fn pid(&self) -> u32 {
        self.server.id()
    }

    /// How the process ended, if it has.
    pub(super) fn exited(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.server.try_wait().ok().flatten();
        }
        self.exit
    }

    /// Stops the process and waits until it has stopped.
    pub(super) fn freeze(&mut self) -> Result<(), String> {
        let pid = self.signal(Signal::STOP)?;
        // The signal takes effect some time after the call; a test that goes on at once must not
        // see one more answer. Only stops are waited for here, so an end stays for `wait`.
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

    /// Lets a stopped process go on.
    pub(super) fn thaw(&mut self) -> Result<(), String> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Kills the process and waits for its end, then sends the watchdog home. Idempotent.
    pub(super) fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if self.exited().is_none() {
            // Not every system kills a stopped process for certain.
            let _ = self.signal(Signal::CONT);
            let _ = self.server.kill();
            self.exit = self.server.wait().ok();
        }
        // Only now: until the server is gone, the watchdog is what guarantees its end.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
    }

    // Never signals a process that was waited for: its id may belong to someone else by now.
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
