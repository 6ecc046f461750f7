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
    /// [`DEFAULT`] from the first failure of an outage on, for a call without a deadline.
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
    /// failure that leads to another attempt is written to standard error, one line for an outage. An attempt that took
    /// longer than `silence_max` had answers in between, so its failure begins another outage.
    pub(crate) async fn retried<T>(
        &mut self,
        silence_max: Duration,
        mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut deadline = None;
        loop {
            let began = Instant::now();
            let failure = match attempt().await {
                Err(failure) if failure.is_unavailable() => failure,
                ended => return ended,
            };
            if began.elapsed() > silence_max {
                (deadline, self.is_said) = (None, false);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colour;
    use crate::status;

    const LEASE: Duration = Duration::from_secs(30);

    /// Whether a call is over before its last attempt, if its attempts take this long and all but the last fail.
    async fn is_over(seconds: &[u64], until: Until) -> bool {
        let output = Output::new(true, Colour::Never);
        let mut times = seconds.iter();
        let mut outage = Outage::new(&output, until);
        let attempt = async || {
            let took = times.next().expect("an attempt that fails or succeeds");
            sleep(Duration::from_secs(*took)).await;
            match times.len() {
                0 => Ok(()),
                _ => Err(Failure::new(status::UNAVAILABLE, "on purpose")),
            }
        };
        outage.retried(LEASE, attempt).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_outage_has_its_own_time() {
        for (seconds, expected) in [
            (&[0, 60, 0][..], false),
            (&[5, 60, 5, 500, 0, 5, 0], false),
            // No answer in between.
            (&[0, 11, 0], true),
            (&[0, 60, 11, 0], true),
        ] {
            let is_over = is_over(seconds, Until::Default).await;
            assert_eq!(is_over, expected, "{seconds:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_covers_all_outages() {
        let deadline = Instant::now() + LEASE * 10;
        assert!(is_over(&[0, 200, 200, 0], Until::Deadline(deadline)).await);
    }
}
