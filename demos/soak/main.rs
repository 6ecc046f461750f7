//! Load with a fault every few seconds: checks that memory and connections do not grow.
//!
//! ```sh
//! make soak                     # every topology, 10 minutes each
//! make soak TOPOLOGY=sentinel SOAK=60
//! ```
//!
//! It starts private servers. `faults.rs` has the faults, `load.rs` the load, and `record.rs` the
//! measurements and their limits.

mod faults;
mod load;
mod plot;
mod record;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, interval};

use faults::Servers;
use load::Load;
use record::{Record, Sample};
use support::{Result, all_kept, say};

/// The time from the start of a fault to the start of the next, unless the fault itself takes
/// longer.
const FAULT_EVERY: Duration = Duration::from_secs(5);

/// A time without faults, so that the client reaches the size that its load requires.
const QUIET: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    let wanted = std::env::var("TOPOLOGY").unwrap_or_default();
    support::exit("soak", run(&wanted).await)
}

async fn run(wanted: &str) -> Result<()> {
    let seconds = std::env::var("SOAK").map_or(Ok(600), |seconds| seconds.parse())?;
    let mut rules = Vec::new();
    for topology in ["server", "sentinel", "cluster", "redlock"] {
        if wanted.is_empty() || wanted == topology {
            let record = soak(topology, Duration::from_secs(seconds)).await?;
            rules.extend(record.rules());
        }
    }
    if rules.is_empty() {
        return Err("TOPOLOGY is server, sentinel, cluster or redlock, or nothing for all".into());
    }
    all_kept(rules)
}

/// Runs one topology under load and faults for `time`.
async fn soak(topology: &'static str, time: Duration) -> Result<Record> {
    let servers = Servers::start(topology).await?;
    let load = Load::start(&servers.urls()).await?;
    let start = Instant::now();
    let until = start + time;
    let faults = async {
        tokio::time::sleep(QUIET).await;
        let mut turns = interval(FAULT_EVERY);
        let mut count = 0;
        while Instant::now() + FAULT_EVERY * 2 < until {
            turns.tick().await;
            servers.fault(count).await;
            count += 1;
        }
        count
    };
    let samples = async {
        let mut record = Record::new(topology, servers.count());
        let mut turns = interval(Duration::from_secs(1));
        while Instant::now() < until {
            turns.tick().await;
            record.add(Sample {
                second: start.elapsed().as_secs(),
                connections: servers.connections().await,
                memory: record::memory()?,
                done: load.done(),
            });
        }
        Ok::<_, support::Error>(record)
    };
    let (faults, record) = tokio::join!(faults, samples);
    let record = record?;
    load.end().await?;
    let file = record.write()?;
    say(&format!(
        "{topology:<10}{faults:>5} faults  {}\n{:10}{}\n",
        record.summary(),
        "",
        file.display(),
    ));
    Ok(record)
}
