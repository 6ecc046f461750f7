//! `wait`: until a lock is free, without taking it.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connect::Context;
use crate::failure::Outcome;
use crate::found::find;
use crate::output::shown;
use crate::{span, status};

/// How soon to look again: at first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(25);
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Wait until a lock is free, without taking it.
///
/// It may be taken again before the next command begins: to do something while it is free, use `run`.
#[derive(Args)]
#[command(after_help = "Example:\n  lockset wait deploy --timeout 10m && echo free")]
pub(crate) struct Wait {
    /// The name of the lock, of any kind.
    name: String,
    /// Give up after this long, with status 75. Default: wait as long as it takes.
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
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = context.client().await?;
        let began = Instant::now();
        let free = async {
            let mut pause = LOOK_FIRST;
            loop {
                let found = find(&client, &self.name).await?;
                if found.holders.is_empty() {
                    return Ok(());
                }
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_MAX);
            }
        };
        let ended = match self.timeout {
            Some(timeout) => timeout_at(began + timeout, free).await.ok(),
            None => Some(free.await),
        };
        if let Some(failed) = ended
            .as_ref()
            .and_then(|ended: &Result<(), _>| ended.clone().err())
        {
            return Err(lockset::Error::into(failed));
        }
        let (free, name) = (ended.is_some(), shown(&self.name));
        let waited = began.elapsed();
        let answer = Waited {
            name: &self.name,
            free,
            waited_ms: waited.as_millis(),
        };
        let state = if free { "free" } else { "held" };
        context.output.say(&answer, || {
            format!("{name} is {state} after {}", span::show(waited))
        })?;
        Ok(if free { status::OK } else { status::BUSY })
    }
}
