//! A box office: a process that serves its share of the people, all of them at once.
//!
//! It tells the demo about it in lines: `READY`, then one for each person served.

use std::fmt;
use std::io::{Write as _, stdout};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, ReentrantLock};
use tokio::task::JoinSet;

use crate::database::Database;
use crate::participant::{with_lock, without_lock};
use crate::support::Result;
use crate::support::worker::{Orders, server_url};
use crate::{OFFICES, PEOPLE};

/// What became of one person.
pub(crate) struct Served {
    pub(crate) person: usize,
    pub(crate) bought: bool,
    /// For the lock; zero where there is none.
    pub(crate) waited: Duration,
}

pub(crate) async fn open(number: &str, database: &str, lock: Option<&str>) -> Result<()> {
    let number: usize = number.parse()?;
    let database = Arc::new(Database::open(Path::new(database))?);
    let client = match lock {
        Some(_) => Some(Client::connect(&server_url()?).await?),
        None => None,
    };
    // Each grant of a fenced lock comes with a token for the database.
    let lock = client
        .as_ref()
        .zip(lock)
        .map(|(client, name)| client.lock(name).fenced());

    if Orders::take()?.next().await?.as_deref() != Some("go") {
        return Err("nobody said go".into());
    }

    let mut line = JoinSet::new();
    for person in (number..PEOPLE).step_by(OFFICES) {
        line.spawn(serve(person, Arc::clone(&database), lock.clone()));
    }
    while let Some(served) = line.join_next().await {
        writeln!(stdout(), "{}", served??)?;
    }
    if let Some(client) = client {
        client.shutdown().await?;
    }
    Ok(())
}

async fn serve(
    person: usize,
    database: Arc<Database>,
    lock: Option<ReentrantLock>,
) -> Result<Served> {
    let (bought, waited) = match lock {
        None => (without_lock(&database, person).await?, Duration::ZERO),
        Some(lock) => with_lock(&lock, &database, person).await?,
    };
    Ok(Served {
        person,
        bought,
        waited,
    })
}

/// As a line, such as `17 bought 2034`: the wait is in microseconds.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.bought { "bought" } else { "refused" };
        write!(f, "{} {outcome} {}", self.person, self.waited.as_micros())
    }
}

impl FromStr for Served {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [person, outcome @ ("bought" | "refused"), waited] = words[..] else {
            return Err(format!("a box office said {line:?}").into());
        };
        Ok(Self {
            person: person.parse()?,
            bought: outcome == "bought",
            waited: Duration::from_micros(waited.parse()?),
        })
    }
}
