//! `release`: ends the hold of one holder.

use clap::Args;
use serde::Serialize;

use crate::connect::Context;
use crate::failure::Outcome;
use crate::found::{evict, find, named};
use crate::output::{quoted, shown};
use crate::status;

/// End the hold of one holder, or one permit of a semaphore, and no other.
///
/// A holder id of lockset is used for one hold only, so this never ends a later one. A thread of Redisson has one for all
/// its holds. The holder's work goes on until its next renewal, when it learns that the lock is lost.
#[derive(Args)]
#[command(
    after_help = "Example:\n  lockset release config --holder 8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:57"
)]
pub(crate) struct Release {
    /// The name of the lock, of any kind, or of a semaphore; or its whole key with the prefix.
    name: String,
    /// The holder id, from `show`, a busy `run` or LOCKSET_HOLDER.
    #[arg(long, value_name = "ID")]
    holder: String,
    /// Why. The program that held the lock learns it.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

/// The answer.
#[derive(Serialize)]
struct Released<'a> {
    name: &'a str,
    holder: &'a str,
    released: bool,
}

impl Release {
    pub(crate) async fn run(mut self, context: &Context) -> Outcome {
        let client = context.client().await?;
        self.name = named(context, &client, &self.name).await;
        let form = find(&client, &self.name).await?.form;
        let released = evict(&client, &self.name, form, &self.holder, &self.reason).await?;
        let answer = Released {
            name: &self.name,
            holder: &self.holder,
            released,
        };
        context.output.say(&answer, || {
            let (name, holder) = (quoted(&self.name), shown(&self.holder));
            if released {
                format!("{holder} holds lock {name} no longer")
            } else {
                format!("{holder} does not hold lock {name}")
            }
        })?;
        Ok(if released { status::OK } else { status::NO })
    }
}
