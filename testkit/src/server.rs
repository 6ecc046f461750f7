//! A private server process for one test.
//!
//! Invariant: a [`Server`] is its own process, identified by process id and not only by port. The
//! process outlives neither the value nor the test process, however they end.

mod builder;
mod inspect;
mod launch;
mod process;
mod readiness;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rights;
use crate::tls::Certificates;
use launch::{Launch, LaunchError, READY_BOUND, Running, Tls};

pub use builder::ServerBuilder;
pub use inspect::{ClientKind, ClientLine};

/// A private Redis or Valkey server on 127.0.0.1 with its own temporary folder.
///
/// The server keeps nothing on disk, and accepts `DEBUG` commands where it can be configured to.
/// Dropping the value kills the process and removes the folder. If the test process dies without
/// dropping it, a watchdog does both.
#[derive(Debug)]
pub struct Server {
    // Declared before `launch`: fields are dropped in order, and the process writes to the launch's
    // folder.
    running: Mutex<Running>,
    launch: Launch,
}

impl Server {
    /// Starts a server with the default options and waits until it answers.
    ///
    /// # Panics
    ///
    /// Like [`ServerBuilder::start`].
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Sets options before [`ServerBuilder::start`].
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }

    /// `redis://127.0.0.1:PORT/`, without a password; under `LOCKSET_TEST_RIGHTS` with the login of a
    /// user who has those rights.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}/", self.login(), self.addr())
    }

    /// `redis://127.0.0.1:PORT/` of the default user, for clients that are not under test.
    #[must_use]
    pub fn admin_url(&self) -> String {
        format!("redis://{}/", self.addr())
    }

    /// Whether the binary that [`builder`](Self::builder) starts can speak TLS: see
    /// [`ServerBuilder::supports_tls`].
    ///
    /// # Panics
    ///
    /// If no server can be found.
    #[must_use]
    #[track_caller]
    pub fn supports_tls() -> bool {
        Self::builder().supports_tls()
    }

    /// `rediss://127.0.0.1:PORT/` of the port where the server speaks TLS; otherwise as
    /// [`url`](Self::url).
    ///
    /// # Panics
    ///
    /// If the server was not started with [`ServerBuilder::tls`].
    #[must_use]
    #[track_caller]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}{}/", self.login(), self.tls_addr())
    }

    /// The address of the TLS port.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`ServerBuilder::tls`].
    #[must_use]
    #[track_caller]
    pub fn tls_addr(&self) -> SocketAddr {
        SocketAddr::new(self.addr().ip(), self.demand_tls().port)
    }

    /// The certificates of the server and its clients.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`ServerBuilder::tls`].
    #[must_use]
    #[track_caller]
    pub fn tls(&self) -> &Certificates {
        &self.demand_tls().certificates
    }

    #[track_caller]
    fn demand_tls(&self) -> &Tls {
        match &self.launch.tls {
            Some(tls) => tls,
            None => panic!("the server was started without `.tls()`"),
        }
    }

    /// The address for other servers and sentinels: the TLS port, if there is one.
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match &self.launch.tls {
            Some(_) => self.tls_addr(),
            None => self.addr(),
        }
    }

    /// A sentinel has no restricted user.
    fn login(&self) -> String {
        if self.launch.sentinel {
            String::new()
        } else {
            rights::login()
        }
    }

    /// The URL scheme for [`peer_addr`](Self::peer_addr).
    pub(crate) fn scheme(&self) -> &'static str {
        match &self.launch.tls {
            Some(_) => "rediss",
            None => "redis",
        }
    }

    /// `redis+unix:///PATH` of the server's socket.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`ServerBuilder::unix`].
    #[must_use]
    #[track_caller]
    pub fn unix_url(&self) -> String {
        assert!(self.launch.unix, "the server was started without `.unix()`");
        format!("redis+unix://{}", self.launch.socket().display())
    }

    /// The server's address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.launch.addr()
    }

    /// The port of [`addr`](Self::addr).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.launch.port
    }

    /// The password that clients need.
    pub(crate) fn password(&self) -> Option<&str> {
        self.launch.password.as_deref()
    }

    /// The process id of the server, or of its last process while it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().process.pid()
    }

    /// The server's own version, such as `7.0.15`.
    ///
    /// For Valkey, this is the Valkey version, not the compatible Redis version.
    #[must_use]
    pub fn version(&self) -> String {
        self.running().identity.version.clone()
    }

    /// Whether the server is Valkey.
    #[must_use]
    pub fn is_valkey(&self) -> bool {
        self.running().identity.valkey
    }

    /// The log of the current or last process.
    #[must_use]
    pub fn log(&self) -> String {
        self.launch.log()
    }

    /// Freezes the process (SIGSTOP), and returns once it has stopped. Connections stay open.
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

    /// Continues a frozen process (SIGCONT).
    ///
    /// # Panics
    ///
    /// If the process is dead.
    #[track_caller]
    pub fn cont(&self) {
        if let Err(reason) = self.running().process.thaw() {
            panic!("cannot continue the server: {reason}");
        }
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing if it is dead.
    pub fn kill(&self) {
        self.running().process.end();
    }

    /// Starts the server again on the same port with the same arguments, and waits until it
    /// answers. A running process is killed first. All data is lost, unless the arguments enable
    /// persistence.
    ///
    /// # Panics
    ///
    /// With the reason and the end of the server's log if it does not answer within 10 s.
    #[track_caller]
    pub fn restart(&self) {
        let mut running = self.running();
        running.process.end();
        let deadline = Instant::now() + READY_BOUND;
        loop {
            match self.launch.run() {
                Ok(again) => {
                    *running = again;
                    return;
                }
                // Clients know this port, so it cannot be replaced. Wait until it is free again.
                Err(LaunchError::PortTaken(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(LaunchError::PortTaken(reason) | LaunchError::Other(reason)) => {
                    // Release the lock first: a panic must not poison the mutex.
                    drop(running);
                    panic!("the server did not restart: {reason}");
                }
            }
        }
    }

    // A test that panicked while holding the lock must still be able to drop its server.
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
