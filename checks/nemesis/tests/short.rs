//! Short campaigns: the engine passes, and a lock that is none is caught.

use std::path::PathBuf;
use std::time::Duration;

use lockset_nemesis::campaign::{Campaign, Outcome};
use lockset_nemesis::checker::Violation;
use lockset_nemesis::table::{details, row};
use lockset_nemesis::topology::Topology;

fn campaign(topology: Topology, seconds: u64) -> Campaign {
    Campaign {
        topology,
        time: Duration::from_secs(seconds),
        seed: 7,
        loses_data: false,
        is_naive: false,
        is_quiet: false,
        program: PathBuf::from(env!("CARGO_BIN_EXE_lockset-nemesis")),
    }
}

async fn run(campaign: &Campaign) -> Outcome {
    let outcome = campaign.run().await.unwrap();
    println!("{}\n{}", row(campaign, &outcome), details(&outcome));
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_under_faults() {
    let outcome = run(&campaign(Topology::Server, 20)).await;
    assert_eq!(outcome.report.violations, []);
    assert!(outcome.report.grants > 100, "{:?}", outcome.report);
    assert!(outcome.faults.len() > 3, "{:?}", outcome.faults);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_under_faults() {
    let outcome = run(&campaign(Topology::Sentinel, 15)).await;
    assert_eq!(outcome.report.violations, []);
    assert!(outcome.report.grants > 100, "{:?}", outcome.report);
}

/// Nothing is lost, nothing fails, no waiter is passed over.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_happens_without_faults() {
    let quiet = Campaign {
        is_quiet: true,
        ..campaign(Topology::Server, 6)
    };
    let outcome = run(&quiet).await;
    assert_eq!(outcome.report.violations, []);
    assert_eq!((outcome.report.losses, outcome.report.failures), (0, 0));
}

/// `SET NX PX`, work that takes longer than the lease, `DEL`.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_none_is_caught() {
    let naive = Campaign {
        is_naive: true,
        ..campaign(Topology::Server, 5)
    };
    let outcome = run(&naive).await;
    let two = |violation: &&Violation| matches!(violation, Violation::TwoAtOnce { .. });
    let count = outcome.report.violations.iter().filter(two).count();
    assert!(count > 3, "{:?}", outcome.report);
}
