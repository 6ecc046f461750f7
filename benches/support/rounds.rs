//! Rounds, medians, and the one line each comparison prints.

use std::io::Write as _;
use std::time::Duration;

use super::arguments::{Arguments, Effort};

/// The value in the middle; of an even number of values, the upper of the two.
pub(crate) fn median<T: PartialOrd + Copy>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("no measurement is NaN"));
    sorted[sorted.len() / 2]
}

pub(crate) fn median_micros(samples: &[Duration]) -> f64 {
    median(samples).as_secs_f64() * 1e6
}

/// How evenly a resource was shared: 1 if all got the same, 1/n if one got everything.
pub(crate) fn jain_index(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    if squares > 0.0 {
        sum * sum / (shares.len() as f64 * squares)
    } else {
        1.0
    }
}

/// Runs `round` as often as asked, showing that something happens.
pub(crate) fn rounds<T>(
    arguments: &Arguments,
    full: usize,
    what: &str,
    mut round: impl FnMut(usize) -> T,
) -> Vec<T> {
    let count = arguments.scaled(full);
    eprint!("{what}: {count} rounds ");
    let results = (0..count)
        .map(|index| {
            let result = round(index);
            eprint!(".");
            // Progress that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
            result
        })
        .collect();
    eprintln!();
    results
}

/// Prints one comparison: the median of the rounds' ratios and how far they spread.
pub(crate) fn report(arguments: &Arguments, subject: &str, what: &str, ratios: &[f64]) {
    line(arguments, subject, what, ratios, "x");
}

/// Like [`report`], for a cost to which other load on the machine can only add: the ratio of the least costs counts,
/// even if they come from different rounds.
pub(crate) fn report_least(
    arguments: &Arguments,
    subject: &str,
    what: &str,
    least: f64,
    ratios: &[f64],
) {
    let what = format!("{what}, least cost");
    print(arguments, subject, &what, least, ratios, "x");
}

/// Prints a figure that is no ratio of two subjects, and has no unit either.
pub(crate) fn note(arguments: &Arguments, subject: &str, what: &str, figures: &[f64]) {
    line(arguments, subject, what, figures, " ");
}

fn line(arguments: &Arguments, subject: &str, what: &str, values: &[f64], unit: &str) {
    print(arguments, subject, what, median(values), values, unit);
}

fn print(arguments: &Arguments, subject: &str, what: &str, value: f64, values: &[f64], unit: &str) {
    // A test run measures nothing.
    if arguments.effort == Effort::Test {
        println!("{subject}  {what}  ran");
        return;
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    println!(
        "{subject:<31}  {what:<46}  {:>6}{unit}  ({}-{} over {} rounds)",
        figure(value),
        figure(least),
        figure(most),
        values.len(),
    );
}

/// Two decimals where they say something.
pub(crate) fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
