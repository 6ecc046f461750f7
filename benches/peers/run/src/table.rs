//! The table, in Markdown: a row a figure, a column a peer.

use std::fmt::Write as _;

use crate::figures::Figures;
use crate::jobs::JOBS;
use crate::ratios::{Cell, Spread};
use crate::results::{PeerResults, Results};

/// How a figure is shown, and against what.
enum Against {
    /// The same figure of the floor.
    Floor(fn(&Figures) -> f64),
    /// Another figure of the floor.
    FloorsOther(fn(&Figures) -> f64, fn(&Figures) -> f64),
    /// A ratio by itself.
    Nothing(fn(&Figures) -> f64),
    Percent(fn(&Figures) -> f64),
}

use Against::{Floor, FloorsOther, Nothing, Percent};

/// Title, jobs it is shown for, and what it is.
const ROWS: [(&str, &[&str], Against); 12] = [
    (
        "lock + unlock, p50",
        &["uncontended"],
        Floor(|figures| figures.cycle_p50),
    ),
    (
        "grants/s",
        &["spread", "hot0", "hot1", "fair", "rw99", "rw90"],
        Floor(|figures| figures.rate),
    ),
    ("wait p50", &["hot0", "hot1"], Floor(wait_p50)),
    (
        "wait p99, in p50 of the floor",
        &["hot0", "hot1"],
        FloorsOther(|figures| figures.wait_p99, wait_p50),
    ),
    (
        "longest wait, in p50 of the floor",
        &["hot0", "hot1"],
        FloorsOther(|figures| figures.wait_max, wait_p50),
    ),
    (
        "evenness (Jain; 1 = all tasks got the same)",
        &["hot0", "hot1"],
        Nothing(|figures| figures.jain),
    ),
    (
        "grants that went past an earlier one",
        &["fair"],
        Percent(|figures| figures.overtook),
    ),
    (
        "commands sent, each grant",
        &["uncontended", "hot0", "hot1", "fair", "rw99"],
        Nothing(|figures| figures.cost.sent),
    ),
    (
        "commands in scripts, each grant",
        &["uncontended", "hot0", "hot1", "fair", "rw99"],
        Nothing(|figures| figures.cost.scripted),
    ),
    (
        "server CPU, each grant",
        &["uncontended", "spread", "hot0", "hot1", "fair", "rw99"],
        Floor(|figures| figures.cost.cpu),
    ),
    (
        "calls that gave up, each grant",
        &["hot0", "hot1"],
        Nothing(|figures| figures.failures as f64 / figures.grants as f64),
    ),
    (
        "two were inside",
        &["hot0", "hot1", "fair", "rw99", "rw90"],
        Nothing(|figures| figures.violations as f64),
    ),
];

fn wait_p50(figures: &Figures) -> f64 {
    figures.wait_p50
}

pub(crate) fn of(results: &Results) -> String {
    let mut text = String::new();
    let facts = &results.facts;
    let _ = writeln!(
        text,
        "# Peers, measured {}\n\n\
         `make bench-peers` at {}: {} rounds of {} s a job, medians with the range over the rounds. {}, {} cores, {}; \
         {}; {}.\n",
        facts.date,
        facts.commit,
        results.rounds,
        results.seconds,
        facts.cpu,
        facts.cores,
        facts.kernel,
        facts.server,
        facts.placement,
    );
    versions(&mut text, results);
    let _ = write!(text, "\n| job | figure |");
    for peer in &results.peers {
        let _ = write!(text, " {} |", peer.name);
    }
    let _ = write!(text, "\n|---|---|{}\n", "---:|".repeat(results.peers.len()));
    for job in &JOBS {
        let rows = ROWS.iter().filter(|(_, jobs, _)| jobs.contains(&job.name));
        for (index, (title, _, against)) in rows.enumerate() {
            let cells = results
                .peers
                .iter()
                .map(|peer| cell(results, peer, job.name, against));
            let job = if index == 0 { job.title } else { "" };
            row(&mut text, job, title, cells);
        }
    }
    for (title, after_end) in [
        ("killed holder to next grant, in leases", false),
        ("of it after the lease's end", true),
    ] {
        let cells = results
            .peers
            .iter()
            .map(|peer| show(&results.takeover(peer, after_end), "x"));
        let job = if after_end { "" } else { "a dead holder" };
        row(&mut text, job, title, cells);
    }
    text.push_str(NOTES);
    text
}

fn versions(text: &mut String, results: &Results) {
    for peer in &results.peers {
        let _ = match &peer.not_run {
            None => writeln!(text, "- **{}**: {}", peer.name, peer.versions),
            Some(reason) => writeln!(text, "- **{}**: not run: {reason}", peer.name),
        };
    }
}

fn row(text: &mut String, job: &str, title: &str, cells: impl Iterator<Item = String>) {
    let _ = write!(text, "| {job} | {title} |");
    for cell in cells {
        let _ = write!(text, " {cell} |");
    }
    text.push('\n');
}

fn cell(results: &Results, peer: &PeerResults, job: &str, against: &Against) -> String {
    match against {
        Floor(of) => show(&results.ratio(peer, job, of, of), "x"),
        FloorsOther(of, by) => show(&results.ratio(peer, job, of, by), "x"),
        Nothing(of) => show(&results.plain(peer, job, of), ""),
        Percent(of) => show(
            &results.plain(peer, job, |figures| of(figures) * 100.0),
            " %",
        ),
    }
}

fn show(cell: &Cell<'_>, unit: &str) -> String {
    match cell {
        Cell::Value(spread) => with_range(*spread, unit),
        Cell::Lacks(what) => (*what).to_owned(),
        Cell::NotRun => "not run".to_owned(),
    }
}

fn with_range(spread: Spread, unit: &str) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(number);
    match least == most {
        true => format!("{median}{unit}"),
        false => format!("{median}{unit} ({least}-{most})"),
    }
}

/// As many decimals as say something.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.001 => format!("{value:.3}"),
        _ => "<0.001".to_owned(),
    }
}

const NOTES: &str = "
";
