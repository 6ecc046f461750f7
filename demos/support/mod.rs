//! Shared by the examples: lock servers, worker processes, and a database to protect.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod database;
pub(crate) mod lock;
pub(crate) mod server;
pub(crate) mod topology;
pub(crate) mod worker;

use std::io::{Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Ignores a closed output, because the example still has to clean up its server.
pub(crate) fn say(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// The duration of some work, multiplied by `PACE` for people who watch.
pub(crate) fn paced(span: Duration) -> Duration {
    let pace = std::env::var("PACE")
        .ok()
        .and_then(|pace| pace.parse().ok());
    span * pace.unwrap_or(1)
}

/// Whether a condition holds, and the fault if it does not.
pub(crate) type Rule = (bool, &'static str);

/// An error that names every violated condition.
pub(crate) fn all_kept(rules: impl IntoIterator<Item = Rule>) -> Result<()> {
    let broken = rules.into_iter().filter(|(kept, _)| !kept);
    let broken: Vec<&str> = broken.map(|(_, fault)| fault).collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("; ").into())
    }
}

/// The end of `main`.
pub(crate) fn exit(example: &str, outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{example}: {error}");
            ExitCode::FAILURE
        }
    }
}
