//! A door: a process whose customers come in on command and wait for the desk.
//!
//! It reports each event in a line, such as `came 3`.

use std::fmt;
use std::io::{Write as _, stdout};
use std::str::FromStr;
use std::time::Duration;

use lockset::{Client, FairLock, FencingToken, ReentrantLock};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::worker::{Orders, server_url};
use crate::support::{Result, paced};
use crate::{IMPATIENT, LEASE, PATIENCE};

const SERVICE: Duration = Duration::from_millis(2);

#[derive(Clone)]
enum Desk {
    Fair(FairLock),
    Reentrant(ReentrantLock),
}

pub(crate) async fn open(kind: &str, desk: &str) -> Result<()> {
    let client = Client::builder(&server_url()?).lease(LEASE).build().await?;
    // Each grant has a larger token than all grants before it.
    let desk = match kind {
        "fair" => Desk::Fair(client.fair_lock(desk).fenced()),
        _ => Desk::Reentrant(client.lock(desk).fenced()),
    };
    let mut orders = Orders::take()?;
    let mut customers = JoinSet::new();
    while let Some(number) = orders.next().await? {
        customers.spawn(customer(number.parse()?, desk.clone()));
    }
    while let Some(gone) = customers.join_next().await {
        gone??;
    }
    client.shutdown().await?;
    Ok(())
}

async fn customer(number: usize, desk: Desk) -> Result<()> {
    writeln!(stdout(), "{}", Event::Came(number))?;
    let served = match desk {
        Desk::Fair(desk) => at_fair_desk(number, &desk).await?,
        Desk::Reentrant(desk) => {
            let guard = desk.lock().await?;
            sleep(paced(SERVICE)).await;
            let token = guard.fencing_token();
            guard.release().await?;
            token
        }
    };
    let event = match served {
        Some(token) => Event::Served(number, token.get()),
        None => Event::Left(number),
    };
    writeln!(stdout(), "{event}")?;
    Ok(())
}

/// Returns `None` if the customer left without being served.
async fn at_fair_desk(number: usize, desk: &FairLock) -> Result<Option<FencingToken>> {
    let guard = if number == IMPATIENT {
        match desk.try_lock_for(PATIENCE).await? {
            Some(guard) => guard,
            None => return Ok(None),
        }
    } else {
        desk.lock().await?
    };
    sleep(paced(SERVICE)).await;
    let token = guard.fencing_token();
    guard.release().await?;
    Ok(token)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Came(usize),
    Left(usize),
    /// With the fencing token of the grant.
    Served(usize, u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Came(number) => write!(f, "came {number}"),
            Self::Left(number) => write!(f, "left {number}"),
            Self::Served(number, token) => write!(f, "served {number} {token}"),
        }
    }
}

impl FromStr for Event {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["came", number] => Self::Came(number.parse()?),
            ["left", number] => Self::Left(number.parse()?),
            ["served", number, token] => Self::Served(number.parse()?, token.parse()?),
            _ => return Err(format!("a door said {line:?}").into()),
        })
    }
}
