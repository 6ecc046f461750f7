//! Questions to the servers of a client that change nothing.
//!
//! Invariant: only commands that read are sent, on the lane of callers, and repeated until they are answered or the
//! client's limit is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::api::error::Result;
use crate::client::Client;
use crate::conn::{Fault, Lane};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::script::Failure;

pub(super) const OPERATION: &str = "survey";

/// The most commands under way at once: a slice of a scan must not hold up other commands.
const TOGETHER_MAX: usize = 256;

/// The pause between two attempts at a server that does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The least time for one reply, even if leases are short.
const REPLY_MIN: Duration = Duration::from_secs(1);

/// A command, and a key of the server that has to answer it.
pub(super) type Question = (Arc<str>, Cmd);

/// The servers of a client.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) core: Arc<Core>,
    sent: Arc<AtomicU64>,
}

impl Asking {
    pub(super) fn of(client: &Client) -> Self {
        Self {
            core: Arc::clone(client.core()),
            sent: Arc::default(),
        }
    }

    /// How many commands were sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns a key of each server that has locks.
    pub(super) fn servers(&self) -> Vec<Arc<str>> {
        let routes = self.core.scripts.transport.routes();
        routes.into_iter().map(Arc::from).collect()
    }

    pub(super) fn endpoint(&self, route: &str) -> String {
        self.core.scripts.transport.endpoint(route)
    }

    pub(super) async fn ask(&self, route: &str, command: &Cmd) -> Result<Value> {
        self.core.ensure_open(OPERATION)?;
        let (core, transport) = (&self.core, &self.core.scripts.transport);
        let limit = core.timing.reply.max(REPLY_MIN);
        let until = core.clock.now().after(core.timing.give_up);
        loop {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let fault = match transport.send(Lane::Command, route, command, limit).await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let is_silent = matches!(fault, Fault::Unsent(_) | Fault::Unknown(_));
            let again: Tick = core.clock.now().after(RETRY_PAUSE);
            if !is_silent || again >= until {
                let failure = Failure::from(fault).at_endpoint(transport.endpoint(route));
                return Err(failure.into_error(OPERATION));
            }
            core.clock.sleep_until(again).await;
        }
    }

    /// Asks all questions, right behind each other. The answers are in the order of the questions.
    pub(super) async fn ask_all(&self, questions: &[Question]) -> Vec<Result<Value>> {
        let mut answers = Vec::with_capacity(questions.len());
        for some in questions.chunks(TOGETHER_MAX) {
            let asked = some.iter().map(|(route, command)| self.ask(route, command));
            answers.extend(join_all(asked).await);
        }
        answers
    }
}

/// Makes a command from its words.
pub(super) fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}
