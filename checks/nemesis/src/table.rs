//! The results, as rows of a table.

use std::collections::BTreeMap;

use crate::campaign::{Campaign, Outcome};

/// The heads of the columns.
pub const HEAD: &str = "\
| servers | data | calls | grants | faults (kinds) | lost | failed | longest call | two at once | violations |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|";

/// One row.
#[must_use]
pub fn row(campaign: &Campaign, outcome: &Outcome) -> String {
    let Outcome { report, faults, .. } = outcome;
    let doubles = match report.doubles.iter().max() {
        Some(longest) => format!(
            "{}, for {} ms at most",
            report.doubles.len(),
            longest / 1_000_000
        ),
        None => "0".to_owned(),
    };
    format!(
        "| {} | {} | {} | {} | {} ({}) | {} | {} | {:.1} s | {doubles} | {} |",
        campaign.topology,
        if campaign.loses_data {
            "lost too"
        } else {
            "kept"
        },
        report.calls,
        report.grants,
        faults.values().sum::<usize>(),
        faults.len(),
        report.losses,
        report.failures,
        report.longest_call as f64 / 1e9,
        report.violations.len(),
    )
}

/// The violations, at most ten of a kind, and how often each fault came.
#[must_use]
pub fn details(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (fault, count) in &outcome.faults {
        text += &format!("  {count} x {fault}\n");
    }
    if outcome.stalls > 0 {
        text += &format!(
            "  {} x the machine stood still for a moment\n",
            outcome.stalls
        );
    }
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in &outcome.report.violations {
        let count = shown.entry(violation.kind()).or_default();
        *count += 1;
        if *count <= 10 {
            text += &format!("  {violation}\n");
        }
    }
    text
}
