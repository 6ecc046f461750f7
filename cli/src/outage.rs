//! Waits for servers that cannot be reached yet, until a deadline.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::output::Output;
use crate::span;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// How long a caller without a deadline waits for a server: a restart or a failover fits into it.
const DEFAULT: Duration = Duration::from_secs(10);

/// How long to wait for servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// The deadline of the whole call.
    Deadline(Instant),
    /// [`DEFAULT`] from the first failure on, for a call without a deadline.
    Default,
}

/// Retries an operation while the servers cannot be reached.
pub(crate) struct Outage<'a> {
    output: &'a Output,
    until: Until,
    is_said: bool,
}

/// The message of the first failure.
#[derive(Serialize)]
struct Unreachable<'a> {
    event: &'static str,
    error: &'a str,
    tries_for_ms: u128,
}

impl<'a> Outage<'a> {
    pub(crate) fn new(output: &'a Output, until: Until) -> Self {
        Self {
            output,
            until,
            is_said: false,
        }
    }

    /// Runs `attempt` until it returns anything but an unreachable server, or the time is over. The first
    /// failure that leads to another attempt is written to standard error, one line for the whole call.
    pub(crate) async fn retried<T>(
        &mut self,
        mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut deadline = None;
        loop {
            let failure = match attempt().await {
                Err(failure) if failure.is_unavailable() => failure,
                ended => return ended,
            };
            let deadline = *deadline.get_or_insert_with(|| match self.until {
                Until::Deadline(deadline) => deadline,
                Until::Default => Instant::now() + DEFAULT,
            });
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure);
            }
            self.say(&failure, left);
            sleep(PAUSE.min(left)).await;
        }
    }

    fn say(&mut self, failure: &Failure, left: Duration) {
        if std::mem::replace(&mut self.is_said, true) {
            return;
        }
        let error = failure.to_string();
        let said = Unreachable {
            event: "unreachable",
            error: &error,
            tries_for_ms: left.as_millis(),
        };
        let text = format!("{error}; trying again for up to {}", span::show(left));
        self.output.tell(&said, &text);
    }
}
