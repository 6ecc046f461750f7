//! The options of a server, and its first start on a free port.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::Server;
use super::launch::{Launch, LaunchError, Tls, conf_path};
use crate::find::{Flavour, server_binary};
use crate::ports;
use crate::tls::Certificates;

/// How many ports are tried before the start fails.
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
    tls: Option<Arc<Certificates>>,
    demanding: bool,
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
            tls: None,
            demanding: false,
        }
    }

    /// Runs Valkey even if Redis is installed.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.flavour = Flavour::Valkey;
        self
    }

    /// Runs this binary instead of searching for one.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Adds command-line arguments, such as `["--maxmemory", "2mb"]`. They override the testkit's
    /// own. The testkit's connections use the password of a `--requirepass`.
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

    /// Also listens on a TLS port, with certificates made for the server: see [`Server::tls_url`]
    /// and [`Server::tls`]. Not every binary supports it: see [`supports_tls`](Self::supports_tls).
    #[must_use]
    pub fn tls(self) -> Self {
        self.tls_with(Certificates::new())
    }

    /// Like [`tls`](Self::tls), with these certificates.
    #[must_use]
    pub fn tls_with(mut self, certificates: Certificates) -> Self {
        self.tls = Some(Arc::new(certificates));
        self
    }

    /// Over TLS, accepts only clients with a certificate of the server's authority.
    #[must_use]
    pub fn demand_client_certificates(mut self) -> Self {
        self.demanding = true;
        self
    }

    /// Whether the binary supports TLS. Starts a server to find out, once per binary.
    ///
    /// # Panics
    ///
    /// If no server starts for another reason.
    #[must_use]
    #[track_caller]
    pub fn supports_tls(&self) -> bool {
        static KNOWN: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());
        let binary = self
            .find_binary()
            .unwrap_or_else(|reason| panic!("{reason}"));
        // Entries are always complete, so a poisoned lock does no harm.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&binary) {
            return *known;
        }
        let probe = Self::new().binary(&binary).tls().try_start();
        let supported = match probe {
            Ok(_) => true,
            // The messages of Redis and of Valkey.
            Err(reason)
                if reason.contains("Bad directive") && reason.contains("tls-")
                    || reason.contains("Failed finding TLS support") =>
            {
                false
            }
            Err(reason) => panic!("no server, with or without TLS: {reason}"),
        };
        known.insert(binary, supported);
        supported
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    fn find_binary(&self) -> Result<PathBuf, String> {
        match &self.binary {
            Some(path) => Ok(path.clone()),
            None => Ok(server_binary(self.flavour)?.to_owned()),
        }
    }

    /// Gives the server its own configuration file that begins with this text. Changes that the
    /// server writes to the file, such as a new role, are kept for its next start.
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
    /// With the reason and the end of the server's log if there is no server within 10 s.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(reason) => panic!("no test server: {reason}"),
        }
    }

    /// Like [`start`](Self::start), but returns the reason as an error.
    pub fn try_start(self) -> Result<Server, String> {
        let password = self.password();
        let binary = self.find_binary()?;
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
            tls: self.tls.map(|certificates| Tls {
                port: 0,
                certificates,
                demanding: self.demanding,
            }),
            dir,
        };
        if let Some(tls) = &launch.tls {
            tls.write(launch.dir.path())
                .map_err(|error| format!("no certificates: {error}"))?;
        }

        let mut last = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let no_port = |error| format!("no free port: {error}");
            // The bus port of a TLS node is derived from its TLS port.
            let plain_bus = self.bus && launch.tls.is_none();
            launch.port = port(plain_bus).map_err(no_port)?;
            if let Some(tls) = &mut launch.tls {
                tls.port = port(self.bus).map_err(no_port)?;
            }
            if let Some(text) = &self.conf {
                // An earlier attempt may have written its own port to the file.
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
                // Another process took the port between our check and the server's bind.
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

fn port(bus: bool) -> io::Result<u16> {
    if bus {
        ports::free_with_bus()
    } else {
        ports::free()
    }
}
