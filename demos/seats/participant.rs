//! A participant: checks how many seats are sold, pays, and takes a seat.

use std::time::{Duration, Instant};

use lockset::{FencingToken, Guard as _};

use crate::SEATS;
use crate::database::{Database, is_too_late};
use crate::office::Turn;
use crate::support::lock::Locks;
use crate::support::{Result, paced};

/// Checks, pays and takes a seat, in both rounds. Returns `false` if no seat was left.
///
/// The sale relies on the number read before the payment, so it is only correct without other sales
/// in between.
async fn buy(database: &Database, person: usize, token: Option<FencingToken>) -> Result<bool> {
    let token = token.map(FencingToken::get);
    if database.seats_sold(token)? >= SEATS {
        return Ok(false);
    }
    pay().await;
    database.sell(person, token)?;
    Ok(true)
}

async fn pay() {
    let span = Duration::from_micros(fastrand::u64(1_000..5_000));
    tokio::time::sleep(paced(span)).await;
}

/// Everyone at once: too many seats are sold.
pub(crate) async fn without_lock(database: &Database, person: usize) -> Result<Turn> {
    let bought = buy(database, person, None).await?;
    Ok(Turn {
        bought,
        ..Turn::default()
    })
}

/// One after another, across all processes.
pub(crate) async fn with_lock(
    (locks, name): &(Locks, String),
    database: &Database,
    person: usize,
) -> Result<Turn> {
    let asked = Instant::now();
    let mut turn = Turn::default();
    loop {
        let guard = locks.lock(name).await?;
        turn.waited = asked.elapsed();
        let token = guard.fencing_token();

        // `run` drops the work as soon as the lock is lost.
        match guard.run(buy(database, person, token)).await {
            // The sale is committed, so the lock can be released.
            Ok(Ok(bought)) => match guard.release().await {
                Err(error) if !error.is_not_held() && !error.is_io() => return Err(error.into()),
                // Released, or the lease ended after the sale, or too few servers answered in time: then what they
                // still have ends with the lease.
                _ => return Ok(Turn { bought, ..turn }),
            },
            // Nothing was sold, so queue again: either the database refused an old token, whether
            // or not this process has noticed the loss,
            Ok(Err(error)) if is_too_late(&error) => turn.too_late += 1,
            Ok(Err(error)) => return Err(error),
            // or `run` stopped the work.
            Err(_lost) => turn.lost += 1,
        }
    }
}
