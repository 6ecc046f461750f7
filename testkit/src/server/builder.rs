//! The options of a server, and its first start on a port that is free.

use std::path::PathBuf;
use std::sync::Mutex;

use super::Server;
use super::launch::{Launch, LaunchError, conf_path};
use crate::find::{Flavour, server_binary};
use crate::ports;

/// How many ports are tried before the machine is taken to be the problem.
const PORT_ATTEMPTS: usize = 20;

/// Options for a [`Server`], from [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    flavour: Flavour,
    binary: Option<PathBuf>,
    args: Vec<String>,
    unix: bool,
    conf: Option<String>,
    sentinel: bool,
    bus: bool,
}

impl ServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            flavour: Flavour::Any,
            binary: None,
            args: Vec::new(),
            unix: false,
            conf: None,
            sentinel: false,
            bus: false,
        }
    }

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

    /// Gives the server a configuration file of its own that begins with this text. What the server
    /// writes there, such as a new role, stays for its next start.
    pub(crate) fn conf(mut self, text: impl Into<String>) -> Self {
        self.conf = Some(text.into());
        self
    }

    /// Runs a sentinel, which needs a [`conf`](Self::conf).
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Takes a port whose cluster bus port is free too.
    pub(crate) fn bus(mut self) -> Self {
        self.bus = true;
        self
    }

    /// The password that the arguments set.
    pub(crate) fn password(&self) -> Option<String> {
        let at = self.args.iter().position(|arg| arg == "--requirepass")?;
        self.args.get(at + 1).cloned()
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
        let password = self.password();
        let binary = match self.binary {
            Some(path) => path,
            None => server_binary(self.flavour)?.to_owned(),
        };
        let dir = tempfile::Builder::new()
            .prefix("lockset-server-")
            .tempdir()
            .map_err(|error| format!("no temporary folder: {error}"))?;
        let mut launch = Launch {
            binary,
            args: self.args,
            password,
            unix: self.unix,
            conf: self.conf.is_some(),
            sentinel: self.sentinel,
            port: 0,
            dir,
        };

        let mut last = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let port = if self.bus {
                ports::free_with_bus()
            } else {
                ports::free()
            };
            launch.port = port.map_err(|error| format!("no free port: {error}"))?;
            if let Some(text) = &self.conf {
                // An earlier attempt may have left its own port in there.
                std::fs::write(conf_path(launch.dir.path()), text)
                    .map_err(|error| format!("no configuration file: {error}"))?;
            }
            match launch.run() {
                Ok(running) => {
                    return Ok(Server {
                        running: Mutex::new(running),
                        launch,
                    });
                }
                // Someone was faster between our look at the port and the server's own bind.
                Err(LaunchError::PortTaken(reason)) => last = reason,
                Err(LaunchError::Other(reason)) => return Err(reason),
            }
        }
        Err(format!("{PORT_ATTEMPTS} ports in a row were taken; {last}"))
    }

    /// Starts several servers at once.
    pub(crate) fn start_all(builders: Vec<Self>) -> Result<Vec<Server>, String> {
        std::thread::scope(|scope| {
            let starting: Vec<_> = builders
                .into_iter()
                .map(|builder| scope.spawn(|| builder.try_start()))
                .collect();
            starting
                .into_iter()
                .map(|thread| thread.join().expect("a start does not panic"))
                .collect()
        })
    }
}
