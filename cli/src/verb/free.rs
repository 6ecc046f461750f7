//! `free`: takes a lock away from its holders.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use lockset::{Client, Holder};
use serde::Serialize;

use crate::blocker::{Blocker, known};
use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::found::{Found, evict, find, named};
use crate::output::{Style, quoted, shown};
use crate::status;

/// Free a lock that another process holds, and notify its waiters.
///
/// Shows the holders, and asks. A holder works on until its next renewal, up to a third of its lease, and then
/// learns that the lock is lost. A holder that acquires the lock in between keeps it.
#[derive(Args)]
#[command(
    after_help = "Example:\n  lockset free deploy --reason 'the build host was replaced'\n\n\
                  Of a semaphore it frees all permits. To end the hold of one reader, or one permit, use `release`."
)]
pub(crate) struct Free {
    /// The name of the lock, of any kind, or of a semaphore; or its whole key with the prefix.
    name: String,
    /// Why. The program that held the lock learns it (by an observer, its log, or the message of `run`), and it
    /// is part of the answer.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// The answer.
#[derive(Serialize)]
struct Freed<'a> {
    name: &'a str,
    freed: bool,
    reason: &'a str,
    evicted: Vec<Evicted>,
}

#[derive(Serialize)]
struct Evicted {
    holder: String,
    hold_count: u32,
    remaining_ms: u128,
}

impl From<&Holder> for Evicted {
    fn from(holder: &Holder) -> Self {
        Self {
            holder: holder.id.clone(),
            hold_count: holder.hold_count,
            remaining_ms: holder.remaining.as_millis(),
        }
    }
}

impl Free {
    pub(crate) async fn run(mut self, context: &Context) -> Outcome {
        let client = context.client().await?;
        self.name = named(context, &client, &self.name).await;
        let found = find(&client, &self.name).await?;
        let (what, name) = (found.form.what(), quoted(&self.name));
        if found.holders.is_empty() {
            let text = || format!("{what} {name} is free; nothing to do");
            context.output.say(&self.answer(Vec::new()), text)?;
            return Ok(status::OK);
        }
        self.confirm(context, &client, &found).await?;
        let mut evicted = Vec::new();
        for holder in &found.holders {
            // Only this hold ends: a later holder keeps the lock.
            if evict(&client, &self.name, found.form, &holder.id, &self.reason).await? {
                evicted.push(holder.into());
            }
        }
        let freed = !evicted.is_empty();
        let answer = self.answer(evicted);
        context.output.say(&answer, || {
            if freed {
                let freed = context.output.paint(Style::Green, "freed");
                format!("{freed} {what} {name}: {}", shown(&self.reason))
            } else {
                format!("{what} {name} changed hands in between: no holder was evicted; look again")
            }
        })?;
        Ok(if freed { status::OK } else { status::BUSY })
    }

    fn answer(&self, evicted: Vec<Evicted>) -> Freed<'_> {
        Freed {
            name: &self.name,
            freed: !evicted.is_empty(),
            reason: &self.reason,
            evicted,
        }
    }

    /// Shows the holders, and asks.
    async fn confirm(
        &self,
        context: &Context,
        client: &Client,
        found: &Found,
    ) -> Result<(), Failure> {
        let known = known(client, &self.name).await;
        for holder in &found.holders {
            let blocker = Blocker::new(&self.name, found.form, holder, &known);
            context.output.note(&blocker.sentence());
        }
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failure::usage("without a terminal to ask on, give --yes"));
        }
        // A question that cannot be shown gets no yes.
        let _ = write!(io::stderr().lock(), "Take it away? [y/N] ");
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .map_err(Failure::internal)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::new(status::NO, "nothing was changed")),
        }
    }
}
