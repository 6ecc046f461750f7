//! `purge`: removes an unused semaphore.

use clap::Args;
use lockset::Client;
use lockset_operator::{SemaphorePurge, Survey, purge_semaphore};
use serde::Serialize;

use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::found::{named, permits};
use crate::output::quoted;
use crate::status;

/// Say whether a semaphore is unused; with --yes, remove it.
///
/// A semaphore has no lease, and stays at the server for ever. While all its permits are free it is a number like any
/// other: you say by its name and by the number of its permits that it is a semaphore. The server looks again at the
/// moment of removing it. It stays if it has another number of permits, or if one is taken or waited for.
#[derive(Args)]
#[command(after_help = SAFETY)]
pub(crate) struct Purge {
    /// The name of the semaphore, or its whole key with the prefix.
    name: String,
    /// How many permits it has in all.
    #[arg(long, value_name = "NUMBER")]
    permits: u32,
    /// Remove it. Without this nothing is changed.
    #[arg(long)]
    yes: bool,
}

const SAFETY: &str = "\
When a purge is safe:
  Programs whose handles say `permits(..)` make the semaphore again when they next acquire. Without it, calls of
  `client.semaphore` fail; those of `client.plain_semaphore`, and Redisson's, wait until a client declares the
  number again. It is NOT safe for a plain semaphore (Redisson's RSemaphore) of which --permits says less than
  there are: permits that Redisson has taken are seen by the number alone. So `--permits 0` removes one whose
  permits Redisson may have all: the server only knows that clients of lockset have none.

Examples:
  lockset purge licences:2025 --permits 3
  lockset purge licences:2025 --permits 3 --yes --json";

/// The answer.
#[derive(Serialize)]
struct Purged<'a> {
    name: &'a str,
    permits: u32,
    purged: bool,
    outcome: &'static str,
}

/// What a look finds where a purge would succeed.
const UNUSED: &str = "unused";

impl Purge {
    pub(crate) async fn run(mut self, context: &Context) -> Outcome {
        let client = context.client().await?;
        self.name = named(context, &client, &self.name).await;
        let outcome = if self.yes {
            let purge = purge_semaphore(&client, &self.name, self.permits);
            purge.await?.as_str()
        } else {
            self.look(&client).await?
        };
        let answer = Purged {
            name: &self.name,
            permits: self.permits,
            purged: outcome == SemaphorePurge::Purged.as_str(),
            outcome,
        };
        context.output.say(&answer, || self.sentence(outcome))?;
        client.shutdown().await?;
        Ok(match outcome {
            "in-use" => status::BUSY,
            "other-number" => status::NO,
            _ => status::OK,
        })
    }

    /// Looks without a change, with the rights of a user who may only read.
    async fn look(&self, client: &Client) -> Result<&'static str, Failure> {
        let survey = Survey::new(client);
        let found = survey.inspect(&self.name).await?.map(|found| found.lock);
        let counted = found.filter(|lock| lock.free_permits.or(lock.count).is_some());
        let free = match counted {
            Some(lock) if lock.waiters > 0 || !lock.holders.is_empty() => {
                return Ok(SemaphorePurge::InUse.as_str());
            }
            // Those whose leases have ended are free too.
            Some(lock) => lock.free_permits.and_then(|free| i64::try_from(free).ok()),
            None => survey.number(&self.name).await?,
        };
        match free {
            Some(free) if free == i64::from(self.permits) => Ok(UNUSED),
            Some(_) => Ok(SemaphorePurge::OtherNumber.as_str()),
            None if survey.has_key(&self.name).await? => {
                let name = quoted(&self.name);
                let message = format!("{name} is no semaphore: its key holds no number");
                Err(Failure::new(status::NOT_A_LOCK, message))
            }
            None => Ok(SemaphorePurge::Absent.as_str()),
        }
    }

    fn sentence(&self, outcome: &str) -> String {
        let (name, permits) = (quoted(&self.name), permits(self.permits.into()));
        match outcome {
            UNUSED => format!(
                "semaphore {name} has {permits}, all free; nothing was changed, --yes removes it"
            ),
            "purged" => format!("removed semaphore {name}"),
            "absent" => format!("there is no semaphore {name}; nothing to do"),
            "other-number" => {
                format!(
                    "{name} does not have {permits}, or some of them are taken; nothing was changed"
                )
            }
            _ => format!(
                "semaphore {name} is in use: a permit is taken or waited for; nothing was changed"
            ),
        }
    }
}
