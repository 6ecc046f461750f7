//! SQL statements that admit writes by their fencing tokens.
//!
//! The table `fence` has one row for each lock, with the largest token that was admitted. A holder admits its token
//! first, in the transaction of its writes. If the statement changes no row, a later holder was here: roll back.
//!
//! ```no_run
//! # mod sqlx {
//! #     pub use lockset::Error;
//! #     pub struct Postgres;
//! #     pub type Transaction<'a, D> = Box<&'a mut D>;
//! #     pub struct Query;
//! #     pub struct Done;
//! #     pub fn query(_: &str) -> Query { Query }
//! #     impl Query {
//! #         pub fn bind<T>(self, _: T) -> Self { self }
//! #         pub async fn execute<D>(self, _: &mut &mut D) -> Result<Done, Error> { Ok(Done) }
//! #     }
//! #     impl Done { pub fn rows_affected(&self) -> u64 { 1 } }
//! # }
//! use std::time::Duration;
//! use lockset::{FencingToken, fence};
//! use sqlx::{Postgres, Transaction};
//!
//! const LEASE: Duration = Duration::from_secs(30); // of the lock
//!
//! async fn admit(
//!     tx: &mut Transaction<'_, Postgres>,
//!     name: &str,
//!     token: FencingToken,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let admit = sqlx::query(fence::postgres::ADMIT).bind(name).bind(token.as_i64());
//!     let done = admit.bind(fence::millis(LEASE)).execute(&mut **tx).await?;
//!     Ok(fence::admitted(done.rows_affected())?)
//! }
//! ```
//!
//! With tokio-postgres it is `tx.execute(ADMIT, &[&name, &token.as_i64(), &millis(LEASE)])`, with diesel
//! `sql_query(ADMIT).bind::<Text, _>(name).bind::<BigInt, _>(token.as_i64()).bind::<BigInt, _>(millis(LEASE))`.
//!
//! **A transaction that has admitted a token locks its row.** If its process is then frozen, the next holder of the
//! lock waits at the database although its own lock is valid. Limits at the database end that wait:
//! [`postgres::ADMIT`] sets them, [`mysql`] has a statement for each connection, and [`sqlite`] has none.
//!
//! No driver is a dependency: a driver's next major version would be a breaking change here. A token is a `bigint` for
//! each of them by [`FencingToken::as_i64`](crate::FencingToken::as_i64), and a statement is a `&'static str`.

use std::fmt;
use std::time::Duration;

/// For PostgreSQL 9.6 and later.
pub mod postgres {
    /// Creates the table, unless it exists.
    pub const TABLE: &str =
        "CREATE TABLE IF NOT EXISTS fence (name text PRIMARY KEY, token bigint NOT NULL)";

    /// Admits a token as the first statement of a transaction: one row is changed, or none if a later token was admitted.
    ///
    /// Parameters: `$1` the name of the lock, `$2` the token, `$3` the lease in [milliseconds](super::millis). The
    /// latter two are `bigint`.
    ///
    /// The statement also sets two limits, which end with the transaction:
    ///
    /// - `idle_in_transaction_session_timeout` is the lease. A holder that is frozen before its commit loses its
    ///   session, and the row lock, no later than its lease.
    /// - `lock_timeout` is half of the lease. The next holder waits for a frozen one for at most a third of the lease,
    ///   which is the time between two renewals. If the wait takes longer, a statement of an earlier holder still runs:
    ///   the error has the code `55P03`. Roll back, release the lock and try again later.
    pub const ADMIT: &str = "\
        WITH limits AS (SELECT \
        set_config('idle_in_transaction_session_timeout', $3::bigint || 'ms', true), \
        set_config('lock_timeout', $3::bigint / 2 || 'ms', true)) \
        INSERT INTO fence (name, token) SELECT $1::text, $2::bigint FROM limits \
        ON CONFLICT (name) DO UPDATE SET token = excluded.token \
        WHERE fence.token <= excluded.token";
}

/// For MySQL and MariaDB, with InnoDB.
///
/// An `INSERT .. ON DUPLICATE KEY UPDATE` has no condition, and the number of changed rows depends on the settings of
/// the connection. So a holder runs two statements: [`ADMIT`](mysql::ADMIT), then [`COUNT`](mysql::COUNT) with the same
/// parameters. The count goes to [`admitted`].
pub mod mysql {
    /// Creates the table, unless it exists. Names are bytes: a text column would compare them without case.
    pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS fence \
        (name VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL) ENGINE = InnoDB";

    /// Sets the limits of a connection, once after it was made.
    ///
    /// Parameters, in whole seconds: the lease, and half of it. `wait_timeout` ends a connection that is idle for
    /// longer than the lease, in a transaction or not, so a pool has to test a connection before it hands it out.
    /// `innodb_lock_wait_timeout` ends a statement that waits for a row with the error 1205. Roll back then.
    pub const LIMITS: &str = "SET SESSION wait_timeout = ?, innodb_lock_wait_timeout = ?";

    /// Writes a token as the first statement of a transaction, unless a later one is there.
    ///
    /// Parameters: the name of the lock, the token.
    pub const ADMIT: &str = "INSERT INTO fence (name, token) VALUES (?, ?) \
        ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))";

    /// Returns 1 if [`ADMIT`] wrote the token, 0 if a later one was there.
    pub const COUNT: &str = "SELECT COUNT(*) FROM fence WHERE name = ? AND token = ? FOR UPDATE";
}

/// For SQLite 3.24 and later.
///
/// No limit ends the transaction of a frozen process: the database is a file, and that process has its lock. Other
/// writers get `SQLITE_BUSY` after their `busy_timeout`, until the process goes on or is killed.
pub mod sqlite {
    /// Creates the table, unless it exists.
    pub const TABLE: &str =
        "CREATE TABLE IF NOT EXISTS fence (name TEXT PRIMARY KEY, token INTEGER NOT NULL)";

    /// Admits a token as the first statement of a transaction: one row is changed, or none if a later token was admitted.
    ///
    /// Parameters: `?1` the name of the lock, `?2` the token.
    pub const ADMIT: &str = "INSERT INTO fence (name, token) VALUES (?1, ?2) \
        ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token";
}

/// A later holder of the lock has written: the token was not admitted.
///
/// Roll the transaction back, and write nothing more under this lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fencing token was not admitted: a later holder of the lock has written")
    }
}

impl std::error::Error for Superseded {}

/// Checks the number of rows that the statement changed, or for MySQL what [`mysql::COUNT`] returned.
///
/// # Errors
/// [`Superseded`] if there were none.
///
/// ```
/// use lockset::fence;
///
/// assert_eq!(fence::admitted(1), Ok(()));
/// assert!(fence::admitted(0).is_err());
/// ```
pub fn admitted(rows: u64) -> Result<(), Superseded> {
    if rows == 0 { Err(Superseded) } else { Ok(()) }
}

/// Converts a lease to milliseconds for [`postgres::ADMIT`], rounded down, at least 2.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(lockset::fence::millis(Duration::from_secs(30)), 30_000);
/// ```
#[must_use]
pub fn millis(lease: Duration) -> i64 {
    // PostgreSQL's limits are 32 bits wide, and 0 ms switches a limit off.
    let millis = lease.as_millis().clamp(2, i32::MAX as u128);
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, params};

    use super::*;
    use crate::FencingToken;
    use crate::engine::keys::NAME_BYTES_MAX;

    fn rows(db: &Connection, name: &str, token: u64) -> u64 {
        let token = FencingToken::from(token).as_i64();
        db.execute(sqlite::ADMIT, params![name, token]).unwrap() as u64
    }

    #[test]
    fn the_first_holder_and_later_ones_are_admitted_and_earlier_ones_are_not() {
        let db = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            db.execute(sqlite::TABLE, []).unwrap();
        }
        let asked = [("a", 5), ("a", 5), ("a", 4), ("a", 6), ("a", 5), ("b", 1)];
        let answers = asked.map(|(name, token)| admitted(rows(&db, name, token)).is_ok());
        assert_eq!(answers, [true, true, false, true, false, true]);
        let largest = "SELECT token FROM fence WHERE name = 'a'";
        let largest: i64 = db.query_row(largest, [], |row| row.get(0)).unwrap();
        assert_eq!(largest, 6);
    }

    /// The statements for MySQL, translated for SQLite.
    #[test]
    fn what_mysql_is_asked_admits_the_same() {
        let said = |text: &str, theirs: &str, ours: &str| {
            assert_eq!(text.matches(theirs).count(), 1, "{text}");
            text.replace(theirs, ours)
        };
        let update = "ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))";
        let conflict = "ON CONFLICT (name) DO UPDATE SET token = MAX(token, excluded.token)";
        let table = said(mysql::TABLE, " ENGINE = InnoDB", "");
        let admit = said(mysql::ADMIT, update, conflict);
        let count = said(mysql::COUNT, " FOR UPDATE", "");
        let db = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            db.execute(&table, []).unwrap();
        }
        let admits = |(name, token): (&str, u64)| {
            let asked = params![name.as_bytes(), FencingToken::from(token).as_i64()];
            db.execute(&admit, asked).unwrap();
            let counted = db.query_row(&count, asked, |row| row.get(0));
            admitted(counted.unwrap()).is_ok()
        };
        let asked = [
            ("a", 5),
            ("a", 5),
            ("a", 4),
            ("a", 6),
            ("a", 5),
            ("A", 1),
            ("b", 1),
        ];
        let answers = asked.map(admits);
        assert_eq!(answers, [true, true, false, true, false, true, true]);
        let largest = "SELECT MAX(token) FROM fence";
        let largest: i64 = db.query_row(largest, [], |row| row.get(0)).unwrap();
        assert_eq!(largest, 6);
        // A name of a lock fits, and the limits are two.
        assert!(mysql::TABLE.contains(&format!("VARBINARY({NAME_BYTES_MAX})")));
        assert_eq!(mysql::LIMITS.matches("= ?").count(), 2);
    }

    /// PostgreSQL reads 0 as no limit.
    #[test]
    fn half_of_a_lease_is_a_limit_that_postgresql_accepts() {
        let spans = [Duration::ZERO, Duration::from_millis(50), Duration::MAX];
        let given = spans.map(|lease| (millis(lease), millis(lease) / 2 > 0));
        assert_eq!(given, [(2, true), (50, true), (i64::from(i32::MAX), true)]);
    }
}
