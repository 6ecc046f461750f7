//! Measures the cost of a failover: how long no lock is granted, how many grants are lost, how soon
//! their holders are notified, and how long two clients hold one lock.
//!
//! ```sh
//! cargo run --release --example failover
//! ```
//!
//! It starts private servers, runs a few rounds of each kind of fault and prints the worst results.
//! `watch.rs` has the measurements and `scene.rs` the faults.

mod scene;
#[path = "../support/mod.rs"]
mod support;
mod watch;

use std::process::ExitCode;

use scene::Scene;
use support::{Result, millis, say};
use watch::{LEASE, Seen};

const ROUNDS: usize = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    support::exit("failover", run(&wanted).await)
}

async fn run(wanted: &[String]) -> Result<()> {
    say(&format!(
        "
What a failover costs, with leases of {} s. The worst of {ROUNDS} rounds.

{:<44}{:>14}{:>18}{:>14}{:>18}
",
        LEASE.as_secs(),
        "",
        "no grant for",
        "grants forgotten",
        "told after",
        " two at once for",
    ));
    for scene in Scene::ALL {
        let name = scene.name();
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(&**word)) {
            continue;
        }
        let mut worst = Seen::default();
        for _ in 0..ROUNDS {
            worst = worst.or_worse(watch::watch(scene).await?);
        }
        let forgotten = format!("{} of {}", worst.forgotten, worst.granted);
        say(&format!(
            "{name:<44}{:>14}{forgotten:>18}{:>14}{:>18}\n",
            millis(worst.outage),
            or_never(&worst, millis(worst.told_after)),
            or_never(&worst, millis(worst.two_at_once)),
        ));
    }
    say("\n");
    Ok(())
}

/// If no grant was lost, there is no time to show.
fn or_never(seen: &Seen, time: String) -> String {
    match seen.forgotten {
        0 => "-".to_owned(),
        _ => time,
    }
}
