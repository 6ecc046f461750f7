//! The database of the seats: an SQLite file that all box offices write to.
//!
//! Every call is a separate transaction. The calls block, but are short enough for async code, well
//! under a millisecond. They cannot be dropped halfway, so work that `guard.run` stops has not sold
//! a seat.

use std::path::{Path, PathBuf};

use crate::support::database::SharedFile;
use crate::support::{Error, Result};

// Reads present a token like sales. After a read, older tokens can no longer sell, so the number
// that was read stays current until the reader's sale.
const SCHEMA: &str = "
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

/// Whether this is the database's error for an old token.
pub(crate) fn is_too_late(error: &Error) -> bool {
    error.to_string().contains("a newer token was here")
}

pub(crate) struct Database(SharedFile);

pub(crate) struct Sale {
    pub(crate) person: usize,
    pub(crate) token: Option<u64>,
}

impl Database {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        SharedFile::create(path, SCHEMA).map(Self)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        SharedFile::open(path).map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn seats_sold(&self, token: Option<u64>) -> Result<usize> {
        let mut connection = self.0.connection();
        let transaction = connection.transaction()?;
        if let Some(token) = token {
            transaction.execute("UPDATE fence SET newest = ?1", [token])?;
        }
        let sold = transaction.query_row("SELECT count(*) FROM sale", [], |row| row.get(0))?;
        transaction.commit()?;
        Ok(sold)
    }

    /// Fails without a change if a newer token was seen.
    pub(crate) fn sell(&self, person: usize, token: Option<u64>) -> Result<()> {
        // A single statement is a transaction.
        self.0.connection().execute(
            "INSERT INTO sale (person, token) VALUES (?1, ?2)",
            (person, token),
        )?;
        Ok(())
    }

    /// All sales in order.
    pub(crate) fn sales(&self) -> Result<Vec<Sale>> {
        let connection = self.0.connection();
        let mut query = connection.prepare("SELECT person, token FROM sale ORDER BY number")?;
        let sales = query.query_map([], |row| {
            Ok(Sale {
                person: row.get(0)?,
                token: row.get(1)?,
            })
        })?;
        Ok(sales.collect::<rusqlite::Result<_>>()?)
    }
}
