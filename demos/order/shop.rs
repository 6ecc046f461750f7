//! The database: a number per record, and the newest fencing token seen for it.
//!
//! Reads present a token like writes. After a read, older tokens can no longer write, so the value
//! that was read stays current until the reader's write.

use std::path::{Path, PathBuf};

use crate::purchase::{
    ACCOUNTS, ITEMS, MONEY, ORDERS, STOCK, account, item, old_price, order, price,
};
use crate::support::Result;
use crate::support::database::SharedFile;

const SCHEMA: &str = "
    CREATE TABLE record (
        name   TEXT PRIMARY KEY,
        value  INTEGER NOT NULL,
        fence  INTEGER NOT NULL DEFAULT 0
    );

    CREATE TRIGGER refuse_old_token BEFORE UPDATE ON record WHEN NEW.fence < OLD.fence
    BEGIN SELECT RAISE(ABORT, 'a newer token was here'); END;
";

/// The database's error for an old token.
pub(crate) const TOO_LATE: &str = "a newer token was here";

/// The record of an open order and of a refused one. Otherwise it is the price paid.
pub(crate) const OPEN: i64 = -1;
pub(crate) const REFUSED: i64 = -2;

/// A name, a new value, and the token of the lock with that name. `None` without locks.
pub(crate) type Change = (String, i64, Option<u64>);

pub(crate) struct Shop(SharedFile);

impl Shop {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let shop = Self(SharedFile::create(path, SCHEMA)?);
        let items = (0..ITEMS).map(|number| (item(number), STOCK));
        let prices = (0..ITEMS).map(|number| (price(number), old_price(number)));
        let accounts = (0..ACCOUNTS).map(|number| (account(number), MONEY));
        let orders = (0..ORDERS).map(|number| (order(number), OPEN));
        let mut connection = shop.0.connection();
        let transaction = connection.transaction()?;
        for record in items.chain(prices).chain(accounts).chain(orders) {
            transaction.execute("INSERT INTO record (name, value) VALUES (?1, ?2)", record)?;
        }
        transaction.commit()?;
        drop(connection);
        Ok(shop)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        SharedFile::open(path).map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Fails if a newer token was seen for this record.
    pub(crate) fn look(&self, name: &str, token: Option<u64>) -> Result<i64> {
        let connection = self.0.connection();
        if let Some(token) = token {
            let show = "UPDATE record SET fence = ?2 WHERE name = ?1";
            connection.execute(show, (name, token))?;
        }
        let value = "SELECT value FROM record WHERE name = ?1";
        Ok(connection.query_row(value, [name], |row| row.get(0))?)
    }

    /// Writes all changes or none. Fails if a newer token was seen for any of them.
    pub(crate) fn write(&self, changes: &[Change]) -> Result<()> {
        let mut connection = self.0.connection();
        let transaction = connection.transaction()?;
        let write = "UPDATE record SET value = ?2, fence = coalesce(?3, fence) WHERE name = ?1";
        for change in changes {
            transaction.execute(write, (&change.0, change.1, change.2))?;
        }
        transaction.commit()?;
        Ok(())
    }
}
