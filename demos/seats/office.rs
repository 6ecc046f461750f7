//! A box office: a process that serves its share of the people concurrently.
//!
//! It reports to the demo in lines: `READY`, then one for each person served.

use std::fmt;
use std::io::{Write as _, stdout};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::database::Database;
use crate::participant::{with_lock, without_lock};
use crate::support::Result;
use crate::support::lock::Locks;
use crate::support::worker::{Orders, server_url};
use crate::{OFFICES, PEOPLE};

/// The result for one person.
pub(crate) struct Served {
    pub(crate) person: usize,
    pub(crate) turn: Turn,
}

/// What happened at the lock and at the desk.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turn {
    pub(crate) bought: bool,
    /// The wait for the lock, or zero without a lock.
    pub(crate) waited: Duration,
    /// How often the lock was lost while it was held.
    pub(crate) lost: u32,
    /// How often the database refused an old token.
    pub(crate) too_late: u32,
}

pub(crate) async fn open(number: &str, database: &str, lock: Option<&str>) -> Result<()> {
    let number: usize = number.parse()?;
    let database = Arc::new(Database::open(Path::new(database))?);
    let lock = match lock {
        Some(name) => Some((Locks::connect(&server_url()?).await?, name.to_owned())),
        None => None,
    };

    if Orders::take()?.next().await?.as_deref() != Some("go") {
        return Err("no start signal came".into());
    }

    let mut line = JoinSet::new();
    for person in (number..PEOPLE).step_by(OFFICES) {
        line.spawn(serve(person, Arc::clone(&database), lock.clone()));
    }
    while let Some(served) = line.join_next().await {
        writeln!(stdout(), "{}", served??)?;
    }
    Ok(())
}

async fn serve(
    person: usize,
    database: Arc<Database>,
    lock: Option<(Locks, String)>,
) -> Result<Served> {
    let turn = match lock {
        None => without_lock(&database, person).await?,
        Some(lock) => with_lock(&lock, &database, person).await?,
    };
    Ok(Served { person, turn })
}

/// Formats a line such as `17 bought 2034 0 0`. The wait is in microseconds.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turn = &self.turn;
        let outcome = if turn.bought { "bought" } else { "refused" };
        let waited = turn.waited.as_micros();
        let (lost, too_late) = (turn.lost, turn.too_late);
        write!(f, "{} {outcome} {waited} {lost} {too_late}", self.person)
    }
}

impl FromStr for Served {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [
            person,
            outcome @ ("bought" | "refused"),
            waited,
            lost,
            too_late,
        ] = words[..]
        else {
            return Err(format!("a box office said {line:?}").into());
        };
        Ok(Self {
            person: person.parse()?,
            turn: Turn {
                bought: outcome == "bought",
                waited: Duration::from_micros(waited.parse()?),
                lost: lost.parse()?,
                too_late: too_late.parse()?,
            },
        })
    }
}
