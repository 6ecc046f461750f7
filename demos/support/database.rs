//! An SQLite file that several processes write to.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use lockset_testkit::unique_name;

use super::Result;

/// Longer than any queue here, so that the examples show the effect of the lock and not "database
/// is locked".
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct SharedFile {
    pub(crate) path: PathBuf,
    // One connection for all tasks of a process. It is never held across an await.
    connection: Mutex<Connection>,
}

impl SharedFile {
    pub(crate) fn create(path: PathBuf, schema: &str) -> Result<Self> {
        let file = Self::open(&path)?;
        // Readers run beside the writer.
        let wal = "PRAGMA journal_mode = WAL;";
        file.connection()
            .execute_batch(&format!("{wal} {schema}"))?;
        Ok(file)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // Nothing here must survive a power cut, so commits do not wait for the disk.
        connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
        })
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A temporary folder, removed with its contents on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(unique_name("lockset-example"));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // On failure, the folder is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
