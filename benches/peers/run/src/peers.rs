//! The peers: a row and a folder each.
//!
//! The folder has a `harness` script with two verbs: `build OUT NAME` prepares the run, or fails and gives the reason
//! in its last line; `start OUT NAME HOST:PORT` becomes the process that speaks the protocol. A missing toolchain
//! leaves out only that peer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;

#[derive(Debug)]
pub(crate) struct Peer {
    /// Its name in table, plots and `--peers`.
    pub(crate) name: &'static str,
    folder: &'static str,
    /// How much longer than a round each job runs before it counts.
    pub(crate) warm_up: f64,
    /// Whether a process waits for a lock that another one has.
    pub(crate) waits_between: bool,
}

/// The first is what the others are measured against.
pub(crate) const PEERS: [Peer; 7] = [
    Peer {
        waits_between: false,
        ..Peer::new("floor", "rust")
    },
    Peer::new("lockset", "rust"),
    // The JVM, which compiles while it runs.
    Peer {
        warm_up: 4.0,
        ..Peer::new("redisson", "java")
    },
    Peer::new("rslock", "rust"),
    Peer::new("redsync", "go"),
    Peer::new("redis-py", "python"),
    // V8 does, too, but is sooner done.
    Peer {
        warm_up: 2.0,
        ..Peer::new("node-redlock", "node")
    },
];

impl Peer {
    const fn new(name: &'static str, folder: &'static str) -> Self {
        Self {
            name,
            folder,
            warm_up: 1.0,
            waits_between: true,
        }
    }

    fn script(&self) -> PathBuf {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(self.folder);
        peers.join("harness")
    }

    /// Where its harness is built; one folder for all of one language.
    fn out(&self, arguments: &Arguments) -> PathBuf {
        let out = std::path::absolute(arguments.out.join(self.folder)).expect("a folder here");
        std::fs::create_dir_all(&out).expect("the build folder can be written");
        out
    }

    /// Its standard error, for the case that it fails.
    pub(crate) fn log(&self, arguments: &Arguments) -> PathBuf {
        self.out(arguments).join(format!("{}.log", self.name))
    }

    pub(crate) fn start(&self, arguments: &Arguments, address: &str) -> Command {
        let mut command = Command::new(self.script());
        command.arg("start").arg(self.out(arguments));
        command.arg(self.name).arg(address);
        command
    }

    fn build(&self, arguments: &Arguments) -> Result<(), String> {
        let output = Command::new(self.script())
            .arg("build")
            .arg(self.out(arguments))
            .arg(self.name)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The log has all of it, the table the last line.
        let _ = std::fs::write(self.log(arguments), &said);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        Err(last
            .unwrap_or("its harness cannot be built")
            .trim()
            .to_owned())
    }
}

/// Each peer that is wanted, and why it cannot run, if it cannot.
pub(crate) fn build_all(arguments: &Arguments) -> Vec<(&'static Peer, Result<(), String>)> {
    let wanted = PEERS.iter().filter(|peer| arguments.wants(peer.name));
    wanted
        .map(|peer| {
            eprintln!("building {}", peer.name);
            let built = peer.build(arguments);
            if let Err(reason) = &built {
                eprintln!("  not run: {reason}");
            }
            (peer, built)
        })
        .collect()
}
