//! `free`: takes a lock away from whoever holds it.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use lockset::{Client, Holder, LockHolder};
use serde::Serialize;

use crate::connect::Context;
use crate::facts::who;
use crate::failure::{Failure, Outcome};
use crate::found::{Found, evict, find};
use crate::output::{Style, quoted, shown};
use crate::{span, status};

/// Free a lock, whoever holds it, and let those who wait go on.
///
/// Shows whom it takes the lock from, and asks. The holder's work goes on until its next renewal, when it
/// learns that the lock is lost: a third of its lease. Who came in between keeps the lock.
#[derive(Args)]
#[command(
    after_help = "Example:\n  lockset free deploy --reason 'the build host was replaced'\n\n\
                  To end the hold of one reader among several, use `release`."
)]
pub(crate) struct Free {
    /// The name of the lock, of any kind.
    name: String,
    /// Why. The program that held it is told (an observer, its log; `run` says it), and it is part of the answer.
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

fn held_by(name: &str, holder: &Holder, about: Option<&LockHolder>) -> String {
    let (name, id) = (quoted(name), shown(&holder.id));
    let mut text = format!("lock {name} is held by {id}");
    if let Some(client) = about.and_then(|about| about.client.as_deref()) {
        text = format!("{text} ({})", who(&holder.id, Some(client)));
    }
    if let Some(held) = about.and_then(|about| about.held_for) {
        text = format!("{text} for {}", span::show(held));
    }
    if holder.hold_count > 1 {
        text = format!("{text}, {} times", holder.hold_count);
    }
    format!(
        "{text}, {} left unless renewed",
        span::show(holder.remaining)
    )
}

impl Free {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = context.client().await?;
        let found = find(&client, &self.name).await?;
        let name = quoted(&self.name);
        if found.holders.is_empty() {
            let text = || format!("lock {name} is free; nothing to do");
            context.output.say(&self.answer(Vec::new()), text)?;
            return Ok(status::OK);
        }
        self.confirm(context, &client, &found).await?;
        let mut evicted = Vec::new();
        for holder in &found.holders {
            // Its hold and no other: whoever was granted the lock meanwhile keeps it.
            if evict(&client, &self.name, found.form, &holder.id, &self.reason).await? {
                evicted.push(holder.into());
            }
        }
        let freed = !evicted.is_empty();
        let answer = self.answer(evicted);
        context.output.say(&answer, || {
            if freed {
                let freed = context.output.paint(Style::Green, "freed");
                format!("{freed} lock {name}: {}", shown(&self.reason))
            } else {
                format!("lock {name} changed hands in between: no holder was evicted; look again")
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

    /// Shows whom it concerns, and asks.
    async fn confirm(
        &self,
        context: &Context,
        client: &Client,
        found: &Found,
    ) -> Result<(), Failure> {
        // Only to be helpful: a user without that right sees the ids.
        let known = client.survey().inspect(&self.name).await.ok().flatten();
        let known = known.map(|detail| detail.lock.holders).unwrap_or_default();
        for holder in &found.holders {
            let about = known.iter().find(|known| known.id == holder.id);
            context.output.note(&held_by(&self.name, holder, about));
        }
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failure::usage("without a terminal to ask on, give --yes"));
        }
        // What cannot be shown is not answered with yes.
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
