//! A holder that is killed: when does the waiter in another process have its lock?
//!
//! All peers at the same time, as all they do is wait. So nothing of the server's is counted here.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Harness;
use crate::measure::{Runner, Stage};
use crate::results::{Outcome, Takeover};

const LEASE: Duration = Duration::from_secs(3);

/// The time for a waiter to fall asleep before the holder is killed.
const SETTLE: Duration = Duration::from_millis(300);

/// A limit for the slowest: a lease, and a poller's sleep or time limit.
const BOUND: Duration = Duration::from_secs(30);

/// A holder and the waiter for its lock.
struct Pair<'a> {
    waiter: &'a mut Runner,
    holder: Harness,
    name: String,
    /// When the holder was killed, and what was left of its lease then.
    killed: Option<(Instant, Duration)>,
}

pub(crate) fn round(runners: &mut [Runner], stage: &mut Stage<'_>) {
    let mut pairs = Vec::new();
    for runner in runners {
        match pair(runner, stage) {
            Ok(Some(pair)) => pairs.push(pair),
            Ok(None) => {}
            Err((runner, reason)) => runner.stop(reason),
        }
    }
    for pair in &mut pairs {
        pair.begin();
    }
    thread::sleep(SETTLE);
    for pair in &mut pairs {
        let left = Duration::from_millis(stage.meter.time_to_live(&pair.name));
        pair.killed = Some((Instant::now(), left));
        pair.holder.kill();
    }
    for pair in pairs {
        pair.end();
    }
}

type Failed<'a> = (&'a mut Runner, String);

/// `None` if there is no waiter, or no way to wait.
fn pair<'a>(waiter: &'a mut Runner, stage: &Stage<'_>) -> Result<Option<Pair<'a>>, Failed<'a>> {
    let lacks = matches!(waiter.results.failover, Some(Outcome::Lacks(_)));
    if lacks || waiter.harness.is_none() {
        return Ok(None);
    }
    let address = stage.server.address();
    match Harness::start(waiter.peer, stage.arguments, &address) {
        Ok(holder) => Ok(Some(Pair {
            name: format!("failover:{}", waiter.peer.name),
            waiter,
            holder,
            killed: None,
        })),
        Err(reason) => Err((waiter, reason)),
    }
}

impl Pair<'_> {
    /// The holder holds, the waiter waits.
    fn begin(&mut self) {
        let lease = LEASE.as_millis();
        let (holds, waits) = (
            format!("hold {} {lease}", self.name),
            format!("wait {} {lease}", self.name),
        );
        let begun = begin(&mut self.holder, &holds, "held").and_then(|lack| match lack {
            None => begin(
                self.waiter.harness.as_mut().expect("it runs"),
                &waits,
                "waiting",
            ),
            lack => Ok(lack),
        });
        match begun {
            Ok(None) => {}
            Ok(Some(lack)) => self.waiter.results.failover = Some(Outcome::Lacks(lack)),
            Err(reason) => self.waiter.stop(reason),
        }
    }

    /// The waiter has it.
    fn end(self) {
        let lacks = matches!(self.waiter.results.failover, Some(Outcome::Lacks(_)));
        let (Some(harness), Some((killed, left)), false) =
            (&mut self.waiter.harness, self.killed, lacks)
        else {
            return;
        };
        match harness.answer(BOUND) {
            Ok((when, line)) if line == "held" => {
                let took = when.saturating_duration_since(killed).as_secs_f64();
                let lease = LEASE.as_secs_f64();
                let takeover = Takeover {
                    after_kill: took / lease,
                    after_end: (took - left.as_secs_f64()) / lease,
                };
                let outcome = self
                    .waiter
                    .results
                    .failover
                    .get_or_insert(Outcome::Rounds(vec![]));
                if let Outcome::Rounds(rounds) = outcome {
                    rounds.push(Some(takeover));
                }
            }
            Ok((_, line)) => self
                .waiter
                .stop(format!("it said {line:?} instead of `held`")),
            Err(reason) => self.waiter.stop(reason),
        }
    }
}

/// Returns a missing feature, if there is one.
fn begin(harness: &mut Harness, request: &str, expected: &str) -> Result<Option<String>, String> {
    harness.ask(request)?;
    let (_, line) = harness.answer(BOUND)?;
    match line.strip_prefix("lacks ") {
        Some(lack) => Ok(Some(lack.to_owned())),
        None if line == expected => Ok(None),
        None => Err(format!("it said {line:?} instead of `{expected}`")),
    }
}
