//! `once`: a command that runs once per key and window, in the whole system.

use std::ffi::OsString;
use std::future::pending;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::child::{Child, Ended, Limits, Signals};
use crate::connect::{Context, Servers};
use crate::failure::{Failure, Outcome};
use crate::found::find;
use crate::outage::{Outage, Until};
use crate::output::{complain, quoted};
use crate::{span, status};

/// Run a command unless it was run for this key a short while ago, by any process.
///
/// The key stays claimed for the whole window, also when the command has ended. If the command fails, the key
/// is free again. It is no lock: a command that takes longer than the window may run beside the next one. Use
/// `run` to exclude that.
#[derive(Args)]
#[command(
    after_help = "Exit status: that of the command; 75 if the key is claimed, 69 if the server is away for 10s.\n\n\
                  Example:\n  \
                  lockset once mail:invoice:7 --for 15m -- ./send-invoice 7"
)]
pub(crate) struct Once {
    /// The key; not the name of a lock.
    key: String,
    /// The window: how long the key stays claimed.
    #[arg(long = "for", value_parser = span::read, value_name = "SPAN")]
    window: Duration,
    /// Keep the key claimed although the command failed: it must not be repeated once it has begun.
    #[arg(long)]
    keep: bool,
    /// The command and its arguments. The `--` may be left out, unless the command has one of its own.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The key is claimed by another process.
#[derive(Serialize)]
struct Duplicate<'a> {
    event: &'static str,
    key: &'a str,
    remaining_ms: Option<u128>,
}

/// A claim without an answer would otherwise stand for its window, though the command did not run.
const END_MAX: Duration = Duration::from_secs(10);

/// The command has no time limit, so none of these values is used.
const LIMITS: Limits = Limits {
    grace: Duration::ZERO,
    margin: Duration::ZERO,
    look: Duration::from_secs(1),
};

impl Once {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut signals = Signals::ending().map_err(Failure::internal)?;
        let mut outage = Outage::new(&context.output, Until::Default);
        let connected = outage.retried(Duration::MAX, async || context.client().await);
        let client = tokio::select! {
            client = connected => client?,
            signal = signals.next() => return Ok(status::signalled(signal)),
        };
        let ended = self.claimed(context, &client, &mut signals).await;
        tokio::select! {
            () = Servers::One(client).end(END_MAX) => {}
            _ = signals.next() => {}
        }
        ended
    }

    async fn claimed(
        &self,
        context: &Context,
        client: &lockset::Client,
        signals: &mut Signals,
    ) -> Outcome {
        let once = client.once(&self.key).per(self.window);
        let claim = tokio::select! {
            claim = once.claim() => claim?,
            signal = signals.next() => return Ok(status::signalled(signal)),
        };
        let Some(claim) = claim else {
            self.say_duplicate(context, client).await;
            return Ok(status::BUSY);
        };
        let environment = vec![("LOCKSET_NAME", self.key.clone())];
        let ended = match Child::start(&self.command, environment, LIMITS) {
            Ok(child) => child.run(signals, || Duration::MAX, pending()).await,
            Err(error) => Err(error),
        };
        let is_done = matches!(ended, Ok(Ended::Command(status::OK)));
        let has_begun = !matches!(ended, Ok(Ended::NotBegun(_)) | Err(_));
        let is_kept = is_done || (self.keep && has_begun);
        if !is_kept {
            // A claim that cannot be undone ends with its window.
            if let Err(error) = claim.undo().await {
                complain(&error.to_string());
            }
        }
        match ended.map_err(Failure::internal)? {
            Ended::Command(exit) | Ended::NotBegun(exit) => Ok(exit),
            Ended::Lost | Ended::Unsupervised => Err(Failure::internal(
                "the supervisor of the command was killed, so the command was killed too",
            )),
        }
    }

    async fn say_duplicate(&self, context: &Context, client: &lockset::Client) {
        // The remaining time is for the message only, so failures leave it out.
        let found = find(client, &self.key).await.ok();
        let holder = found.and_then(|found| found.holders.into_iter().next());
        let remaining = holder.map(|holder| holder.remaining);
        let key = quoted(&self.key);
        let text = match remaining {
            Some(remaining) => format!("busy: key {key} is claimed for {}", span::show(remaining)),
            None => format!("busy: key {key} is claimed"),
        };
        let duplicate = Duplicate {
            event: "duplicate",
            key: &self.key,
            remaining_ms: remaining.map(|remaining| remaining.as_millis()),
        };
        context.output.tell(&duplicate, &text);
    }
}
