//! The journal of the leaders: an SQLite file that checks fencing tokens, and a table that does not.

use std::path::{Path, PathBuf};

use crate::support::database::SharedFile;
use crate::support::{Error, Result};

const SCHEMA: &str = "
    CREATE TABLE entry (
        number  INTEGER PRIMARY KEY,  -- grows from write to write
        leader  TEXT NOT NULL,
        token   INTEGER NOT NULL
    );

    CREATE TRIGGER refuse_old_token BEFORE INSERT ON entry
    WHEN NEW.token < (SELECT max(token) FROM entry)
    BEGIN SELECT RAISE(ABORT, 'a newer token was here'); END;

    -- Writes without the check, each with the largest token that the journal had then.
    CREATE TABLE unchecked (token INTEGER NOT NULL, newest INTEGER NOT NULL);
";

/// Whether this is the journal's error for an old token.
pub(crate) fn is_too_late(error: &Error) -> bool {
    error.to_string().contains("a newer token was here")
}

pub(crate) struct Journal(SharedFile);

impl Journal {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        SharedFile::create(path, SCHEMA).map(Self)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        SharedFile::open(path).map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Fails without a change if a newer token was seen.
    pub(crate) fn write(&self, leader: &str, token: u64) -> Result<()> {
        // A single statement is a transaction.
        self.0.connection().execute(
            "INSERT INTO entry (leader, token) VALUES (?1, ?2)",
            (leader, token),
        )?;
        Ok(())
    }

    /// Writes without looking at the token.
    pub(crate) fn write_unchecked(&self, token: u64) -> Result<()> {
        self.0.connection().execute(
            "INSERT INTO unchecked SELECT ?1, max(token) FROM entry",
            [token],
        )?;
        Ok(())
    }

    /// Whether there is an entry with this token.
    pub(crate) fn has(&self, token: u64) -> Result<bool> {
        self.is_so("SELECT count(*) > 0 FROM entry WHERE token = ?1", token)
    }

    /// Whether a write without the check came after a larger token.
    pub(crate) fn has_late_write(&self, token: u64) -> Result<bool> {
        self.is_so(
            "SELECT count(*) > 0 FROM unchecked WHERE token = ?1 AND newest > token",
            token,
        )
    }

    fn is_so(&self, query: &str, token: u64) -> Result<bool> {
        let connection = self.0.connection();
        Ok(connection.query_row(query, [token], |row| row.get(0))?)
    }

    /// The pairs of leader and token in the journal, in the order of their first entries.
    pub(crate) fn reigns(&self) -> Result<Vec<(String, u64)>> {
        let connection = self.0.connection();
        let mut query = connection.prepare(
            "SELECT leader, token FROM entry GROUP BY leader, token ORDER BY min(number)",
        )?;
        let reigns = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(reigns.collect::<rusqlite::Result<_>>()?)
    }

    /// Whether no entry has a smaller token than an entry before it.
    pub(crate) fn is_in_order(&self) -> Result<bool> {
        let connection = self.0.connection();
        let mut query = connection.prepare("SELECT token FROM entry ORDER BY number")?;
        let tokens = query.query_map([], |row| row.get(0))?;
        let tokens = tokens.collect::<rusqlite::Result<Vec<u64>>>()?;
        Ok(tokens.is_sorted())
    }
}
