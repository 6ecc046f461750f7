//! The first statement of a transaction under a fenced lock, in PostgreSQL and SQLite.

use std::time::Duration;

use lockset::FencingToken;
use lockset::fence::{admitted, millis, postgres, sqlite};
use sqlx::AnyConnection;

use crate::Refusal;

/// Admits this holder's token, or refuses it because a later holder of the lock has written.
///
/// From here to the commit, the transaction locks the row of `name`. If this process is frozen in
/// between, PostgreSQL ends its session when the lease is over, so that the next holder does not
/// wait for it.
pub(crate) async fn admit(
    tx: &mut AnyConnection,
    name: &str,
    token: FencingToken,
    lease: Duration,
) -> Result<(), Refusal> {
    let admit = if tx.backend_name() == "PostgreSQL" {
        let admit = sqlx::query(postgres::ADMIT);
        admit.bind(name).bind(token.as_i64()).bind(millis(lease))
    } else {
        sqlx::query(sqlite::ADMIT).bind(name).bind(token.as_i64())
    };
    let rows = admit.execute(tx).await?.rows_affected();
    admitted(rows).map_err(|_| Refusal::TooLate)
}
