//! What a participant does: look how many seats are sold, pay, take a seat.

use std::time::{Duration, Instant};

use lockset::{FencingToken, Guard as _};

use crate::SEATS;
use crate::database::{Database, is_too_late};
use crate::office::Turn;
use crate::support::lock::Locks;
use crate::support::{Result, paced};

/// Look, pay, take a seat; the same in both rounds. False if there was no seat left.
///
/// It relies on what it saw before it paid, so it is only right if nobody else sells in between.
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

/// Everybody at once: here too many seats are sold.
pub(crate) async fn without_lock(database: &Database, person: usize) -> Result<Turn> {
    let bought = buy(database, person, None).await?;
    Ok(Turn {
        bought,
        ..Turn::default()
    })
}

/// One after the other, whatever process they are in.
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

        // `run` drops the work the moment the lock is lost.
        match guard.run(buy(database, person, token)).await {
            // The sale is committed, so the lock can be given back.
            Ok(Ok(bought)) => match guard.release().await {
                Err(error) if !error.is_not_held() => return Err(error.into()),
                // Given back; or the lease ended after the sale, which the database took in time.
                _ => return Ok(Turn { bought, ..turn }),
            },
            // Nothing was sold, so queue again: either the database refused a token that was
            // no longer the newest, whatever this process still believed about its lock,
            Ok(Err(error)) if is_too_late(&error) => turn.too_late += 1,
            Ok(Err(error)) => return Err(error),
            // or `run` stopped the work.
            Err(_lost) => turn.lost += 1,
        }
    }
}
