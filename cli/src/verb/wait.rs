//! `wait`: until a lock is free, without taking it.

use std::time::Duration;

use clap::Args;
use lockset::Client;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::found::{Form, find, is_free_to_readers, named};
use crate::outage::{Outage, Until};
use crate::output::quoted;
use crate::{span, status};

/// How soon to look again: at first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(25);
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Wait until a lock is free, without taking it.
///
/// It may be taken again before the next command begins: to do something while it is free, use `run`. A semaphore is
/// free when no permit is taken.
#[derive(Args)]
#[command(after_help = "Example:\n  lockset wait deploy --timeout 10m && echo free")]
pub(crate) struct Wait {
    /// The name of the lock, of any kind, or its whole key with the prefix.
    name: String,
    /// Give up after this long, with status 75, or 69 if the server cannot be reached then. Default: no limit
    /// for the lock, and 10s for a server.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    timeout: Option<Duration>,
}

/// The answer.
#[derive(Serialize)]
struct Waited<'a> {
    name: &'a str,
    free: bool,
    waited_ms: u128,
}

impl Wait {
    pub(crate) async fn run(mut self, context: &Context) -> Outcome {
        let began = Instant::now();
        // A timeout without an end that the clock can show is none.
        let deadline = self.timeout.and_then(|timeout| began.checked_add(timeout));
        let until = deadline.map_or(Until::Default, Until::Deadline);
        let outage = || Outage::new(&context.output, until);
        let connect = async || context.client().await;
        let client = outage().retried(Duration::MAX, connect).await?;
        self.name = named(context, &client, &self.name).await;
        let mut pause = LOOK_FIRST;
        // The first look and the one at the end are answered, however little time there is.
        let (mut may_run_scripts, mut had_permits) = (true, false);
        let free = loop {
            let look = async || {
                self.is_free(&client, &mut may_run_scripts, &mut had_permits)
                    .await
            };
            if outage().retried(Duration::MAX, look).await? {
                break true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            sleep(left.unwrap_or(LOOK_MAX).min(pause)).await;
            pause = (pause * 2).min(LOOK_MAX);
        };
        let name = quoted(&self.name);
        let waited = began.elapsed();
        let answer = Waited {
            name: &self.name,
            free,
            waited_ms: waited.as_millis(),
        };
        let state = if free { "free" } else { "held" };
        context.output.say(&answer, || {
            format!("lock {name} is {state} after {}", span::show(waited))
        })?;
        Ok(if free { status::OK } else { status::BUSY })
    }

    /// Asks as a survey does once it is known that the user may only read.
    async fn is_free(
        &self,
        client: &Client,
        may_run_scripts: &mut bool,
        had_permits: &mut bool,
    ) -> Result<bool, Failure> {
        if *may_run_scripts {
            match find(client, &self.name).await {
                Err(failure) if failure.is_without_rights() => *may_run_scripts = false,
                // A semaphore with all its permits is a plain number.
                Err(failure) if failure.is_not_a_lock() && *had_permits => return Ok(true),
                found => {
                    let found = found?;
                    *had_permits = found.form == Form::Permits;
                    return Ok(found.holders.is_empty());
                }
            }
        }
        is_free_to_readers(client, &self.name, had_permits).await
    }
}
