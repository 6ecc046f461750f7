//! A candidate: a process that campaigns, and writes to the journal while it leads.
//!
//! It ends when it has resigned, or with its input.

use std::fmt;
use std::io::{Write as _, stdout};
use std::path::Path;
use std::time::Duration;

use lockset::{Client, Leadership};
use tokio::time::sleep;

use crate::LEASE;
use crate::journal::{Journal, is_too_late};
use crate::support::worker::{Orders, Worker, server_url};
use crate::support::{Result, paced};

/// The pause between two writes.
const PAUSE: Duration = Duration::from_millis(20);

/// A report of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It has checked that it leads, and writes next.
    Checked,
    Written,
    Refused,
    /// It has noticed that it leads no longer.
    Lost,
}

const WORDS: [Word; 4] = [Word::Checked, Word::Written, Word::Refused, Word::Lost];

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The next report of a candidate.
pub(crate) async fn next_word(candidate: &mut Worker) -> Result<Word> {
    let line = candidate.line().await?.ok_or("a candidate ended")?;
    let word = WORDS.into_iter().find(|word| word.to_string() == line);
    word.ok_or_else(|| format!("a candidate said {line:?}").into())
}

/// Reads the reports of a candidate up to this one.
pub(crate) async fn hear(candidate: &mut Worker, awaited: Word) -> Result<()> {
    while next_word(candidate).await? != awaited {}
    Ok(())
}

fn tell(word: Word) -> Result<()> {
    Ok(writeln!(stdout(), "{word}")?)
}

pub(crate) async fn run(name: &str, journal: &str, election: &str) -> Result<()> {
    let journal = Journal::open(Path::new(journal))?;
    let client = Client::builder(&server_url()?).lease(LEASE).build().await?;
    let election = client.election(election).value(name);
    let mut orders = Orders::take()?;
    loop {
        let leadership = tokio::select! {
            elected = election.campaign() => elected?,
            _ = orders.next() => break,
        };
        if !lead(leadership, name, &journal, &mut orders).await? {
            break;
        }
    }
    client.shutdown().await?;
    Ok(())
}

/// Leads until the leadership is lost, or returns `false` after a resignation.
async fn lead(
    leadership: Leadership,
    name: &str,
    journal: &Journal,
    orders: &mut Orders,
) -> Result<bool> {
    let token = leadership.token().get();
    loop {
        tokio::select! {
            // Before each write, the loss is looked at first.
            biased;
            _ = leadership.lost() => {
                tell(Word::Lost)?;
                return Ok(true);
            }
            order = orders.next() => match order?.as_deref() {
                Some("check") => {
                    check_and_write(&leadership, name, journal, orders).await?;
                }
                _ => {
                    leadership.resign().await?;
                    return Ok(false);
                }
            },
            () = sleep(paced(PAUSE)) => journal.write(name, token)?,
        }
    }
}

/// Checks that it leads, and writes on command. In between, another leader may write.
async fn check_and_write(
    leadership: &Leadership,
    name: &str,
    journal: &Journal,
    orders: &mut Orders,
) -> Result<()> {
    if leadership.is_lost() {
        return Ok(());
    }
    tell(Word::Checked)?;
    orders.next().await?;
    let token = leadership.token().get();
    journal.write_unchecked(token)?;
    match journal.write(name, token) {
        Ok(()) => tell(Word::Written),
        Err(error) if is_too_late(&error) => tell(Word::Refused),
        Err(error) => Err(error),
    }
}
