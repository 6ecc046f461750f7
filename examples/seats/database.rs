//! The database with the seats: an SQLite file that all box offices write to.
//!
//! Every call is a transaction of its own. They block, and are called from async code all the same:
//! each takes well under a millisecond, and as none can be dropped halfway, work that `guard.run`
//! stops has not sold a seat.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use lockset_testkit::unique_name;

use crate::Result;

/// Longer than any queue in here, so that the rounds measure the lock and not "database is locked".
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

// Who looks shows a token just as who sells: from then on an older one is too late to sell, so
// what was seen stays true until the sale.
const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;

    CREATE TABLE sale (
        number  INTEGER PRIMARY KEY,  -- grows from sale to sale
        person  INTEGER NOT NULL,
        token   INTEGER               -- none in the round without a lock
    );

    CREATE TABLE fence (newest INTEGER NOT NULL);
    INSERT INTO fence VALUES (0);

    CREATE TRIGGER show_token BEFORE INSERT ON sale WHEN NEW.token IS NOT NULL
    BEGIN UPDATE fence SET newest = NEW.token; END;

    CREATE TRIGGER refuse_old_token BEFORE UPDATE ON fence WHEN NEW.newest < OLD.newest
    BEGIN SELECT RAISE(ABORT, 'a newer token was here'); END;
";

pub(crate) struct Database {
    pub(crate) path: PathBuf,
    // One connection for all participants of a process; it is never held across an await.
    connection: Mutex<Connection>,
}

pub(crate) struct Sale {
    pub(crate) person: usize,
    pub(crate) token: Option<u64>,
}

impl Database {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let database = Self::open(&path)?;
        database.connection().execute_batch(SCHEMA)?;
        Ok(database)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // Nothing here has to survive a power cut, so no commit waits for the disk.
        connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
        })
    }

    pub(crate) fn seats_sold(&self, token: Option<u64>) -> Result<usize> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        if let Some(token) = token {
            transaction.execute("UPDATE fence SET newest = ?1", [token])?;
        }
        let sold = transaction.query_row("SELECT count(*) FROM sale", [], |row| row.get(0))?;
        transaction.commit()?;
        Ok(sold)
    }

    /// Fails, and changes nothing, if a newer token was seen.
    pub(crate) fn sell(&self, person: usize, token: Option<u64>) -> Result<()> {
        // A single statement is a transaction.
        self.connection().execute(
            "INSERT INTO sale (person, token) VALUES (?1, ?2)",
            (person, token),
        )?;
        Ok(())
    }

    /// All sales, in the order in which they were made.
    pub(crate) fn sales(&self) -> Result<Vec<Sale>> {
        let connection = self.connection();
        let mut query = connection.prepare("SELECT person, token FROM sale ORDER BY number")?;
        let sales = query.query_map([], |row| {
            Ok(Sale {
                person: row.get(0)?,
                token: row.get(1)?,
            })
        })?;
        Ok(sales.collect::<rusqlite::Result<_>>()?)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A temporary folder that is removed with its content when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(unique_name("lockset-seats"));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing better can be done about it than to leave it to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
