//! Starts the process of a server, in the same way at every restart.
//!
//! Invariant: the process counts as ours only if the server that answers on the port reports its
//! id. Another test's server may have the port by now.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::Process;
use super::readiness::{self, Identity};
use crate::rights;
use crate::tls::Certificates;

/// How long a server may take from its start to its first answer.
pub(super) const READY_BOUND: Duration = Duration::from_secs(10);

/// How many lines of a server's log an error shows.
const LOG_TAIL_LINES: usize = 30;

/// Everything needed to run a server on its port.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) binary: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) unix: bool,
    /// Whether there is a configuration file, which the server may rewrite.
    pub(super) conf: bool,
    pub(super) sentinel: bool,
    pub(super) port: u16,
    pub(super) tls: Option<Tls>,
    pub(super) dir: TempDir,
}

/// The TLS port of a server.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) port: u16,
    pub(super) certificates: Arc<Certificates>,
    /// Whether clients must present a certificate.
    pub(super) demanding: bool,
}

/// The current or last process of a server.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: Process,
    pub(super) identity: Identity,
}

#[derive(Debug)]
pub(super) enum LaunchError {
    PortTaken(String),
    Other(String),
}

impl Launch {
    /// Starts the process and waits until it answers.
    pub(super) fn run(&self) -> Result<Running, LaunchError> {
        match self.run_with(&["--enable-debug-command", "yes"]) {
            // Servers before Redis 7 always allow DEBUG and do not know the option.
            Err(LaunchError::Other(reason)) if reason.contains("enable-debug-command") => {
                self.run_with(&[])
            }
            outcome => outcome,
        }
    }

    fn run_with(&self, extra: &[&str]) -> Result<Running, LaunchError> {
        let other = |reason: String| LaunchError::Other(reason);
        let dir = self.dir.path();
        let log =
            File::create(log_path(dir)).map_err(|error| other(format!("no log file: {error}")))?;
        let mut process = Process::spawn(&self.binary, &self.command_line(extra), dir, log)
            .map_err(|error| other(format!("cannot run {}: {error}", self.binary.display())))?;

        let address = self.addr();
        let deadline = Instant::now() + READY_BOUND;
        loop {
            let outcome = match process.exited() {
                Some(status) => format!("it ended with {status}"),
                None => match readiness::identify(address, self.password.as_deref()) {
                    Ok(identity) if identity.pid == process.pid() => {
                        return Ok(Running { process, identity });
                    }
                    Ok(identity) => format!("process {} answers on its port", identity.pid),
                    Err(error) => error.to_string(),
                },
            };
            let ended = process.exited().is_some();
            if ended || Instant::now() >= deadline {
                let log = self.log();
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
        let dir = self.dir.path().to_string_lossy();
        let conf = conf_path(self.dir.path());
        let conf = conf.to_string_lossy();
        let socket = self.socket();
        let socket = socket.to_string_lossy();

        let mut line = Vec::new();
        if self.conf {
            line.push(&*conf);
        }
        if self.sentinel {
            line.push("--sentinel");
        }
        line.extend(["--bind", "127.0.0.1", "--port", &port, "--dir", &dir]);
        line.extend(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        line.extend(extra);
        if self.unix {
            line.extend(["--unixsocket", &socket, "--unixsocketperm", "700"]);
        }
        let mut line: Vec<String> = line.into_iter().map(str::to_owned).collect();
        if let Some(tls) = &self.tls {
            line.extend(tls.arguments(self.dir.path()));
        }
        if !self.sentinel {
            line.extend(rights::args());
        }
        line.extend(self.args.iter().cloned());
        line
    }

    pub(super) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("server.sock")
    }

    pub(super) fn log(&self) -> String {
        let mut bytes = Vec::new();
        // An unreadable log counts as empty, because it only explains another failure.
        let _ =
            File::open(log_path(self.dir.path())).and_then(|mut file| file.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Tls {
    fn files(&self, dir: &Path) -> [(&'static str, PathBuf, &str); 3] {
        [
            (
                "--tls-ca-cert-file",
                dir.join("ca.crt"),
                self.certificates.ca_pem(),
            ),
            (
                "--tls-cert-file",
                dir.join("server.crt"),
                self.certificates.server_cert_pem(),
            ),
            (
                "--tls-key-file",
                dir.join("server.key"),
                self.certificates.server_key_pem(),
            ),
        ]
    }

    /// Writes the certificates to the files that the server reads.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        self.files(dir)
            .iter()
            .try_for_each(|(_, path, text)| std::fs::write(path, text))
    }

    fn arguments(&self, dir: &Path) -> Vec<String> {
        let demand = if self.demanding { "yes" } else { "optional" };
        let port = self.port.to_string();
        let mut line = ["--tls-port", &port, "--tls-auth-clients", demand]
            .map(str::to_owned)
            .to_vec();
        for (option, path, _) in self.files(dir) {
            line.extend([option.to_owned(), path.to_string_lossy().into_owned()]);
        }
        line
    }
}

pub(super) fn conf_path(dir: &Path) -> PathBuf {
    dir.join("server.conf")
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
