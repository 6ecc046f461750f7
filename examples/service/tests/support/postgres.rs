//! A private PostgreSQL server for one test, on a Unix socket.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockset_testkit::unique_name;

/// Runs the server until standard input closes, which happens however the test process ends.
const RUN: &str = r#"
"$1/initdb" -D "$0/data" -U lockset -A trust -E UTF8 --locale=C --no-sync >"$0/log" 2>&1 || exit
"$1/postgres" -D "$0/data" -k "$0" -c listen_addresses= -c fsync=off >>"$0/log" 2>&1 &
read -r _
kill -INT $!
wait $!
rm -rf "$0"
"#;

/// The user `nobody` on Debian and similar systems. PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

pub(crate) struct Postgres {
    /// The shell that waits for the end.
    shell: Child,
    folder: PathBuf,
}

impl Postgres {
    /// Starts a server from the folder of programs in `LOCKSET_POSTGRES_BIN`.
    pub(crate) fn start() -> Self {
        let programs = std::env::var("LOCKSET_POSTGRES_BIN");
        let programs = programs.expect("LOCKSET_POSTGRES_BIN=$(scripts/find-postgres)");
        let folder = std::env::temp_dir().join(unique_name("lockset-postgres"));
        std::fs::create_dir(&folder).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", RUN]).arg(&folder).arg(programs);
        if is_root(&folder) {
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
            shell.uid(NOBODY).gid(NOBODY);
        }
        let shell = shell.current_dir(&folder).stdin(Stdio::piped()).spawn();
        Self {
            shell: shell.unwrap(),
            folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        let folder = self.folder.display();
        format!("postgres://lockset@localhost/postgres?host={folder}")
    }

    /// The server's log, for failing tests.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

fn is_root(ours: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(ours).unwrap().uid() == 0
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        _ = self.shell.wait();
    }
}
