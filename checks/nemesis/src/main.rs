//! `make nemesis`: campaigns one after the other, and a table of what came of them.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lockset_nemesis::campaign::Campaign;
use lockset_nemesis::table::{HEAD, details, row};
use lockset_nemesis::topology::{TOPOLOGIES, Topology};
use lockset_nemesis::worker::{self, Job};
use lockset_nemesis::workers::VERB;

const USAGE: &str =
    "lockset-nemesis SECONDS [SEED] [server|sentinel|cluster|redlock]: each topology for so long";

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, job] = &*args
        && verb == VERB
    {
        let job: Job = serde_json::from_str(job)?;
        worker::run(job).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let seconds: u64 = args.first().ok_or(USAGE)?.parse()?;
    let seed = match args.get(1) {
        Some(seed) => seed.parse()?,
        None => fastrand::u64(..1_000_000),
    };
    let topologies = match args.get(2) {
        Some(name) => vec![name.parse::<Topology>()?],
        None => TOPOLOGIES.to_vec(),
    };
    println!("seed {seed}\n{HEAD}");
    let mut is_good = true;
    for topology in topologies {
        for loses_data in [false, true] {
            if loses_data && topology == Topology::Redlock {
                continue;
            }
            let campaign = Campaign {
                topology,
                time: Duration::from_secs(seconds),
                seed,
                loses_data,
                is_naive: false,
                is_quiet: false,
                program: std::env::current_exe()?,
            };
            let outcome = campaign.run().await?;
            println!("{}", row(&campaign, &outcome));
            eprint!("{}", details(&outcome));
            is_good &= outcome.report.violations.is_empty();
        }
    }
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
