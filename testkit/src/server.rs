//! A private server process for one test.
//!
//! Invariant: what a [`Server`] value stands for is its own process, found by process id and not by
//! port alone, and that process does not outlive the value nor the test process, however either ends.

mod inspect;
mod process;
mod readiness;

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::find::{Flavour, server_binary};
use crate::ports;
use process::Process;
use readiness::Identity;

pub use inspect::{ClientKind, ClientLine};

/// How long a server may take from its start to its first answer.
const READY_BOUND: Duration = Duration::from_secs(10);

/// How many ports are tried before the machine is taken to be the problem.
const PORT_ATTEMPTS: usize = 20;

/// How much of a server's log an error shows.
const LOG_TAIL_LINES: usize = 30;

/// A private Redis or Valkey server on 127.0.0.1, with a temporary folder of its own.
///
/// It keeps nothing on disk, and accepts `DEBUG` commands where the server knows how to allow them.
/// Dropping the value kills the process and removes the folder; if the test process dies without
/// dropping it, a watchdog does both.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    args: Vec<String>,
    password: Option<String>,
    unix: bool,
    port: u16,
    // Before `dir`: fields are dropped in order, and the process writes to the folder.
    running: Mutex<Running>,
    dir: TempDir,
}

/// The current (or last) process behind a [`Server`].
#[derive(Debug)]
struct Running {
    process: Process,
    identity: Identity,
}

/// Options for a [`Server`], from [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    flavour: Flavour,
    binary: Option<PathBuf>,
    args: Vec<String>,
    unix: bool,
}

impl ServerBuilder {
    /// Runs Valkey even where Redis is installed.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.flavour = Flavour::Valkey;
        self
    }

    /// Runs this binary instead of looking for one.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Adds command-line arguments, such as `["--maxmemory", "2mb"]`. They come after the kit's own, so
    /// they win. A `--requirepass` is understood: the kit's own connections then use that password.
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Also listens on a Unix socket; see [`Server::unix_url`].
    #[must_use]
    pub fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// With what went wrong and the end of the server's log when there is no server within 10 s.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(reason) => panic!("no test server: {reason}"),
        }
    }

    /// As [`start`](Self::start), with the reason as an error instead of a panic.
    pub fn try_start(self) -> Result<Server, String> {
        let binary = match self.binary {
            Some(path) => path,
            None => server_binary(self.flavour)?.to_owned(),
        };
        let password = self
            .args
            .iter()
            .position(|arg| arg == "--requirepass")
            .and_then(|at| self.args.get(at + 1))
            .cloned();
        let dir = tempfile::Builder::new()
            .prefix("lockset-server-")
            .tempdir()
            .map_err(|error| format!("no temporary folder: {error}"))?;

        let mut last = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let port = ports::free().map_err(|error| format!("no free port: {error}"))?;
            let launch = Launch {
                binary: &binary,
                args: &self.args,
                password: password.as_deref(),
                unix: self.unix,
                port,
                dir: dir.path(),
            };
            match launch.run() {
                Ok(running) => {
                    return Ok(Server {
                        binary,
                        args: self.args,
                        password,
                        unix: self.unix,
                        port,
                        running: Mutex::new(running),
                        dir,
                    });
                }
                // Someone was faster between our look at the port and the server's own bind.
                Err(LaunchError::PortTaken(reason)) => last = reason,
                Err(LaunchError::Other(reason)) => return Err(reason),
            }
        }
        Err(format!("{PORT_ATTEMPTS} ports in a row were taken; {last}"))
    }
}

impl Server {
    /// Starts a server with the kit's defaults and waits until it answers.
    ///
    /// # Panics
    ///
    /// As [`ServerBuilder::start`].
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Options first, then [`ServerBuilder::start`].
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            flavour: Flavour::Any,
            binary: None,
            args: Vec::new(),
            unix: false,
        }
    }

    /// `redis://127.0.0.1:PORT/`, without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr())
    }

    /// `redis+unix:///PATH` of the server's socket.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`ServerBuilder::unix`].
    #[must_use]
    #[track_caller]
    pub fn unix_url(&self) -> String {
        assert!(self.unix, "the server was started without `.unix()`");
        format!("redis+unix://{}", socket_path(self.dir.path()).display())
    }

    /// Where the server listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The port of [`addr`](Self::addr).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server itself; that of the last process while it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().process.pid()
    }

    /// The server's own version, such as `7.0.15`.
    ///
    /// For Valkey this is the Valkey version, not the Redis version it says it is compatible with.
    #[must_use]
    pub fn version(&self) -> String {
        self.running().identity.version.clone()
    }

    /// Whether the server is Valkey.
    #[must_use]
    pub fn is_valkey(&self) -> bool {
        self.running().identity.valkey
    }

    /// What the current (or last) process has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        read_log(self.dir.path())
    }

    /// Freezes the process (SIGSTOP), and returns when it has stopped. Connections stay open.
    ///
    /// # Panics
    ///
    /// If the process is not running.
    #[track_caller]
    pub fn stop(&self) {
        if let Err(reason) = self.running().process.freeze() {
            panic!("cannot stop the server: {reason}");
        }
    }

    /// Lets a frozen process run again (SIGCONT).
    ///
    /// # Panics
    ///
    /// If the process has died.
    #[track_caller]
    pub fn cont(&self) {
        if let Err(reason) = self.running().process.thaw() {
            panic!("cannot continue the server: {reason}");
        }
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing when it is dead already.
    pub fn kill(&self) {
        self.running().process.end();
    }

    /// Starts the server again, on the same port and with the same arguments, and waits until it
    /// answers. A process that still runs is killed first. All data is gone, unless the arguments turn
    /// persistence on.
    ///
    /// # Panics
    ///
    /// With what went wrong and the end of the server's log when it does not answer within 10 s.
    #[track_caller]
    pub fn restart(&self) {
        let mut running = self.running();
        running.process.end();
        let launch = Launch {
            binary: &self.binary,
            args: &self.args,
            password: self.password.as_deref(),
            unix: self.unix,
            port: self.port,
            dir: self.dir.path(),
        };
        let deadline = Instant::now() + READY_BOUND;
        loop {
            match launch.run() {
                Ok(again) => {
                    *running = again;
                    return;
                }
                // Clients know this port, so the only way is to wait until it is free again.
                Err(LaunchError::PortTaken(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(LaunchError::PortTaken(reason) | LaunchError::Other(reason)) => {
                    // Not under the lock: a panic should not hide behind a poisoned mutex.
                    drop(running);
                    panic!("the server did not restart: {reason}");
                }
            }
        }
    }

    // A test that panicked in here still has to be able to drop its server.
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt to run a server on one port.
#[derive(Debug)]
struct Launch<'a> {
    binary: &'a Path,
    args: &'a [String],
    password: Option<&'a str>,
    unix: bool,
    port: u16,
    dir: &'a Path,
}

#[derive(Debug)]
enum LaunchError {
    PortTaken(String),
    Other(String),
}

impl Launch<'_> {
    fn run(&self) -> Result<Running, LaunchError> {
        match self.run_with(&["--enable-debug-command", "yes"]) {
            // Servers before Redis 7 always allow DEBUG, and do not know the option.
            Err(LaunchError::Other(reason)) if reason.contains("enable-debug-command") => {
                self.run_with(&[])
            }
            outcome => outcome,
        }
    }

    fn run_with(&self, extra: &[&str]) -> Result<Running, LaunchError> {
        let other = |reason: String| LaunchError::Other(reason);
        let log = File::create(log_path(self.dir))
            .map_err(|error| other(format!("no log file: {error}")))?;
        let mut process = Process::spawn(self.binary, &self.command_line(extra), self.dir, log)
            .map_err(|error| other(format!("cannot run {}: {error}", self.binary.display())))?;

        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let deadline = Instant::now() + READY_BOUND;
        loop {
            let outcome = match process.exited() {
                Some(status) => format!("it ended with {status}"),
                None => match readiness::identify(address, self.password) {
                    // Only our own process counts: the port may have gone to another test's server.
                    Ok(identity) if identity.pid == process.pid() => {
                        return Ok(Running { process, identity });
                    }
                    Ok(identity) => format!("process {} answers on its port", identity.pid),
                    Err(error) => error.to_string(),
                },
            };
            let ended = process.exited().is_some();
            if ended || Instant::now() >= deadline {
                let log = read_log(self.dir);
                let reason = format!(
                    "{} on {address}: {outcome}; its log ends:\n{}",
                    self.binary.display(),
                    tail(&log),
                );
                return Err(if ended && log.contains("Address already in use") {
                    LaunchError::PortTaken(reason)
                } else {
                    LaunchError::Other(reason)
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command_line(&self, extra: &[&str]) -> Vec<String> {
        let port = self.port.to_string();
        let dir = self.dir.to_string_lossy();
        let socket = socket_path(self.dir);
        let socket = socket.to_string_lossy();

        let mut line = vec!["--bind", "127.0.0.1", "--port", &port, "--dir", &dir];
        line.extend(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        line.extend(extra);
        if self.unix {
            line.extend(["--unixsocket", &socket, "--unixsocketperm", "700"]);
        }
        line.extend(self.args.iter().map(String::as_str));
        line.into_iter().map(str::to_owned).collect()
    }
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

fn socket_path(dir: &Path) -> PathBuf {
    dir.join("server.sock")
}

fn read_log(dir: &Path) -> String {
    let mut bytes = Vec::new();
    // A log that cannot be read is an empty one: this only ever explains another failure.
    let _ = File::open(log_path(dir)).and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
