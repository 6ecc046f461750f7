//! The jobs: an SQLite file in which each job counts the running jobs.

use std::path::{Path, PathBuf};

use rusqlite::TransactionBehavior;

use crate::support::Result;
use crate::support::database::SharedFile;

const SCHEMA: &str = "
    CREATE TABLE job (
        number   INTEGER PRIMARY KEY,  -- grows from job to job
        process  INTEGER NOT NULL,
        at_once  INTEGER NOT NULL,     -- the running jobs at its beginning, with itself
        runs     INTEGER NOT NULL
    );
";

pub(crate) struct Jobs(SharedFile);

/// A running job. Dropping it ends the job.
pub(crate) struct Running<'a> {
    jobs: &'a Jobs,
    number: i64,
}

impl Jobs {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        SharedFile::create(path, SCHEMA).map(Self)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        SharedFile::open(path).map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Begins a job. Counting and beginning are one transaction, so the counts are exact.
    pub(crate) fn begin(&self, process: usize) -> Result<Running<'_>> {
        let mut connection = self.0.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute(
            "INSERT INTO job (process, at_once, runs)
             SELECT ?1, 1 + count(*), 1 FROM job WHERE runs",
            [process],
        )?;
        let number = transaction.last_insert_rowid();
        transaction.commit()?;
        Ok(Running { jobs: self, number })
    }

    fn end(&self, number: i64) -> Result<()> {
        let end = "UPDATE job SET runs = 0 WHERE number = ?1";
        self.0.connection().execute(end, [number])?;
        Ok(())
    }

    /// Ends the jobs of a dead process. Returns how many were running.
    pub(crate) fn end_all_of(&self, process: usize) -> Result<usize> {
        let end = "UPDATE job SET runs = 0 WHERE process = ?1 AND runs";
        Ok(self.0.connection().execute(end, [process])?)
    }

    pub(crate) fn running_in(&self, process: usize) -> Result<usize> {
        self.number(
            "SELECT count(*) FROM job WHERE process = ?1 AND runs",
            process,
        )
    }

    pub(crate) fn count(&self) -> Result<usize> {
        self.number("SELECT count(*) FROM job WHERE number > ?1", 0)
    }

    /// The largest number of jobs at once, among jobs after the first `jobs`.
    pub(crate) fn most_at_once_since(&self, jobs: usize) -> Result<usize> {
        self.number(
            "SELECT ifnull(max(at_once), 0) FROM job WHERE number > ?1",
            jobs,
        )
    }

    fn number(&self, query: &str, parameter: usize) -> Result<usize> {
        let connection = self.0.connection();
        Ok(connection.query_row(query, [parameter], |row| row.get(0))?)
    }
}

impl Running<'_> {
    pub(crate) fn end(self) -> Result<()> {
        // A second end on drop changes nothing.
        self.jobs.end(self.number)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // `run` has dropped the job, so there is no caller for an error.
        let _ = self.jobs.end(self.number);
    }
}
