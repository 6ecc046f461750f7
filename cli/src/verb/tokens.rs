//! `tokens`: counters of fencing tokens that were not used for long, and their removal.

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use lockset::Client;
use lockset_operator::{Survey, TokenCounter, TokenPurge, purge_token};
use serde::Serialize;
use tokio::time::sleep;

use crate::connect::Context;
use crate::facts::table;
use crate::failure::{Failure, Outcome};
use crate::output::{Style, shown};
use crate::{span, status};

/// Counters that are removed at the same time.
const TOGETHER_MAX: usize = 64;

/// The server's time for one removal, estimated.
const PURGE_COST: Duration = Duration::from_micros(20);

/// List the counters of fencing tokens that were not used for long; with --purge, remove them.
///
/// The server drops a counter by itself some time after the last grant: 30 days, unless the programs set
/// another `token_retention`. This verb is for counters that are kept longer. A token is the time of its grant,
/// so the counter shows when it was last used. Without --purge nothing is changed.
#[derive(Args)]
#[command(after_help = SAFETY)]
pub(crate) struct Tokens {
    /// Only locks whose names match: `*` any letters, `?` one, `[ab]` one of these.
    #[arg(default_value = "*")]
    glob: String,
    /// Only counters whose last token is older than this; an hour at least.
    #[arg(long, value_parser = span::read, default_value = "90d", value_name = "SPAN")]
    older: Duration,
    /// Remove them. The server checks each counter again at that moment, and keeps it if it was used since, or
    /// if its lock is held or waited for.
    #[arg(long)]
    purge: bool,
    /// The part of the server's time that this may take, in percent.
    #[arg(long, default_value_t = 10.0, value_parser = span::percent, value_name = "PERCENT")]
    budget: f64,
}

const SAFETY: &str = "\
When a purge is safe:
  The next token of a lock is the time of its grant by the server's clock, so tokens grow without
  a counter too, as long as that clock goes on. It is NOT safe if the clock is set back later by
  more than --older, or a server takes over whose clock is that far behind: then a resource may
  refuse the new holder until the clock has caught up. It is NOT safe for locks that Redisson's
  RFencedLock uses as well: it begins with 1 where there is no counter. Counters that it was seen
  to raise are left alone, but not every raise can be seen.

Examples:
  lockset tokens --older 90d
  lockset tokens 'order:*' --older 1y --purge --json";

const WARNING: &str = "tokens keep growing without these counters only while the server's clock is not set back \
     by more than";

/// A counter. The names of its fields do not change.
#[derive(Serialize)]
struct Counter<'a> {
    name: &'a str,
    key: &'a str,
    token: u64,
    unused_ms: u128,
    kept_ms: Option<u128>,
    in_use: bool,
    purged: bool,
    /// The outcome of the removal; null without `--purge`.
    outcome: Option<&'static str>,
}

/// The counts of the pass.
#[derive(Default)]
struct Tally {
    rows: Vec<Vec<String>>,
    found: u64,
    purged: u64,
}

impl Tokens {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        if self.older < Duration::from_secs(60 * 60) {
            return Err(Failure::usage("--older: give an hour at least"));
        }
        let client = context.client().await?;
        let share = self.budget / 100.0;
        let survey = Survey::new(&client).matching(&self.glob).share(share);
        let mut scan = survey.tokens(self.older);
        let (mut tally, mut ended) = (Tally::default(), status::OK);
        'pass: loop {
            let counters = match scan.next().await {
                Ok(Some(counters)) => counters,
                Ok(None) => break,
                Err(error) => {
                    ended = Failure::of_one_server(error)?.report();
                    scan.leave_out();
                    continue;
                }
            };
            for some in counters.chunks(TOGETHER_MAX) {
                let became = self.became(&client, some, share).await;
                for (counter, became) in some.iter().zip(became) {
                    // A purge goes on unread.
                    if !tally.add(context, counter, became?)? && !self.purge {
                        break 'pass;
                    }
                }
            }
        }
        if tally.found == 0 && ended != status::OK {
            return Ok(ended);
        }
        if !context.output.json {
            self.print(context, &tally, scan.passed_over())?;
        }
        client.shutdown().await?;
        Ok(ended)
    }

    /// The outcome for each counter; none without `--purge`, and for counters in use.
    async fn became(
        &self,
        client: &Client,
        counters: &[TokenCounter],
        share: f64,
    ) -> Vec<Result<Option<TokenPurge>, lockset::Error>> {
        let purges = counters.iter().map(async |counter| match counter.in_use {
            _ if !self.purge => Ok(None),
            true => Ok(Some(TokenPurge::InUse)),
            false => {
                let purge = purge_token(client, &counter.name, self.older);
                purge.await.map(Some)
            }
        });
        let became = join_all(purges).await;
        if self.purge {
            let busy = PURGE_COST * u32::try_from(counters.len()).unwrap_or(u32::MAX);
            sleep(busy.mul_f64(1.0 / share - 1.0)).await;
        }
        became
    }

    fn print(&self, context: &Context, tally: &Tally, passed_over: u64) -> Result<(), Failure> {
        let output = &context.output;
        let headings = ["NAME", "TOKEN", "UNUSED", "KEPT", "STATE"];
        let mut lines = table(&headings, &tally.rows).into_iter();
        if let Some(headings) = lines.next().filter(|_| tally.found > 0) {
            output.line(&output.paint(Style::Bold, &headings))?;
        }
        lines.try_for_each(|line| output.line(&line))?;
        let older = span::show(self.older);
        if tally.found == 0 {
            output.note(&format!("no counter was unused for {older}"));
        }
        if passed_over > 0 {
            output.note(&format!(
                "{passed_over} counters say nothing of when they were used and stay: Redisson counts with \
                 them too, or they are ahead of the server's clock"
            ));
        }
        if tally.found > 0 {
            output.note(&format!("{WARNING} {older}; see --help"));
            let (found, purged) = (tally.found, tally.purged);
            output.note(&if self.purge {
                format!("{purged} of {found} counters removed")
            } else {
                format!("{found} counters, nothing was changed; --purge removes those that are not in use")
            });
        }
        Ok(())
    }
}

impl Tally {
    /// Returns whether the output is still read.
    fn add(
        &mut self,
        context: &Context,
        counter: &TokenCounter,
        became: Option<TokenPurge>,
    ) -> Result<bool, Failure> {
        let is_purged = became == Some(TokenPurge::Purged);
        self.found += 1;
        self.purged += u64::from(is_purged);
        let state = match became {
            Some(became) => became.as_str(),
            None if counter.in_use => TokenPurge::InUse.as_str(),
            None => "unused",
        };
        if context.output.json {
            // Printed as they are found, because there may be many.
            let fact = Counter {
                name: &counter.name,
                key: &counter.key,
                token: counter.token.get(),
                unused_ms: counter.unused_for.as_millis(),
                kept_ms: counter.kept_for.map(|kept| kept.as_millis()),
                in_use: counter.in_use,
                purged: is_purged,
                outcome: became.map(TokenPurge::as_str),
            };
            return context.output.say(&fact, String::new);
        }
        self.rows.push(vec![
            shown(&counter.name),
            counter.token.to_string(),
            span::show(counter.unused_for),
            counter.kept_for.map_or("for ever".to_owned(), span::show),
            state.to_owned(),
        ]);
        Ok(true)
    }
}
