//! The table, in Markdown: a row a figure, a column a peer.

use std::fmt::Write as _;

use crate::figures::Figures;
use crate::jobs::{JOBS, LATE};
use crate::ratios::{Cell, Spread};
use crate::results::{Outcome, PeerResults, Results};

type Figure = fn(&Figures) -> f64;

/// How a figure is shown, and against what.
enum Against {
    /// The floor's value of a figure.
    Floor(Figure),
    /// The floor's median wait.
    FloorsWait(Figure),
    /// Nothing: it is a ratio by itself.
    Nothing(Figure),
    Percent(Figure),
}

use Against::{Floor, FloorsWait, Nothing, Percent};

/// The jobs a figure is shown for.
type Jobs = &'static [&'static str];

const ALONE: Jobs = &["uncontended"];
const TOGETHER: Jobs = &[
    "spread",
    "hot0",
    "hot1",
    "crowd4",
    "crowd8",
    "fair",
    "crowdfair",
    "rw99",
    "rw90",
    "crowdread0",
    "crowdread1",
    "permits",
    "crowdpermits",
    "latch",
];
const HOT: Jobs = &["hot0", "hot1"];
const CROWDS: Jobs = &[
    "crowd4",
    "crowd8",
    "crowdfair",
    "crowdread0",
    "crowdread1",
    "crowdpermits",
];
const ALIKE: Jobs = &["crowd4", "crowd8"];
const LONGEST: Jobs = &["hot0", "hot1", "crowdread0", "crowdread1", "crowdpermits"];
const FAIR: Jobs = &["fair"];
const COUNTED: Jobs = &[
    "uncontended",
    "hot0",
    "hot1",
    "crowd4",
    "crowd8",
    "fair",
    "crowdfair",
    "rw99",
    "crowdread0",
    "permits",
    "crowdpermits",
    "latch",
];

#[rustfmt::skip]
const ROWS: [(&str, Jobs, Against); 12] = [
    ("lock + unlock, p50", ALONE, Floor(|of| of.cycle_p50)),
    ("grants/s", TOGETHER, Floor(|of| of.rate)),
    ("wait p50", HOT, Floor(wait_p50)),
    ("wait p99, in the floor's p50", LONGEST, FloorsWait(|of| of.wait_p99)),
    ("longest wait, in the floor's p50", LONGEST, FloorsWait(|of| of.wait_max)),
    ("least share of a process", CROWDS, Nothing(|of| of.least_share)),
    ("longest wait, in median waits", ALIKE, Nothing(Figures::longest_in_medians)),
    ("evenness", HOT, Nothing(|of| of.jain)),
    ("grants out of turn", FAIR, Percent(|of| of.overtook * 100.0)),
    ("commands sent, each grant", COUNTED, Nothing(|of| of.cost.sent)),
    ("commands in scripts, each grant", COUNTED, Nothing(|of| of.cost.scripted)),
    ("server CPU, each grant", COUNTED, Floor(|of| of.cost.cpu)),
];

fn wait_p50(figures: &Figures) -> f64 {
    figures.wait_p50
}

const NOTES: &str = "\
Each cell is the ratio to the floor in the same round (`x`), or a ratio by itself; medians, with the
range over the rounds in brackets. What the floor is, how each library is used, and what is counted how:
[README](../README.md).
";

pub(crate) fn of(results: &Results) -> String {
    let mut text = String::new();
    let facts = &results.facts;
    let _ = writeln!(
        text,
        "# Peers, measured {}\n\n`make bench-peers` at commit {}: rounds: {}, of {} s a job.\n\
         {}, {} cores, {}; {}; {}.\n",
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
    jobs(&mut text, results);
    takeovers(&mut text, results);
    let left_behind = (results.seconds + LATE.as_secs_f64()) * 1e6;
    let _ = write!(
        text,
        "\nTwo inside a lock at once: {}.\n\nCalls that gave up and were made again: {}.\n\n\
         Waiters left behind when the others were done: {}.\n\n{NOTES}",
        sums(results, |figures| figures.violations),
        sums(results, |figures| figures.failures),
        sums(results, |figures| u64::from(figures.wait_max > left_behind)),
    );
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

fn jobs(text: &mut String, results: &Results) {
    for job in &JOBS {
        let rows = ROWS.iter().filter(|(_, jobs, _)| jobs.contains(&job.name));
        for (index, (title, _, against)) in rows.enumerate() {
            let peers = results.peers.iter();
            let cells = peers.map(|peer| cell(results, peer, job.name, against));
            let job = if index == 0 { job.title } else { "" };
            row(text, job, title, cells);
        }
    }
}

fn takeovers(text: &mut String, results: &Results) {
    for (job, title, after_end) in [
        ("a killed holder", "until the next grant, in leases", false),
        ("", "of that after the lease's end", true),
    ] {
        let peers = results.peers.iter();
        let cells = peers.map(|peer| show(&results.takeover(peer, after_end), "x"));
        row(text, job, title, cells);
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
        FloorsWait(of) => show(&results.ratio(peer, job, of, wait_p50), "x"),
        Nothing(of) => show(&results.plain(peer, job, of), ""),
        Percent(of) => show(&results.plain(peer, job, of), " %"),
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
    if least == most {
        format!("{median}{unit}")
    } else {
        format!("{median}{unit} ({least}-{most})")
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

/// Unwanted events, by peer and job.
fn sums(results: &Results, of: impl Fn(&Figures) -> u64) -> String {
    let mut found = Vec::new();
    for peer in &results.peers {
        for job in &JOBS {
            let rounds = peer.jobs.get(job.name).map_or(&[][..], Outcome::rounds);
            let sum: u64 = rounds.iter().flatten().map(&of).sum();
            if sum > 0 {
                found.push(format!("{} {sum} times ({})", peer.name, job.title));
            }
        }
    }
    if found.is_empty() {
        "never".to_owned()
    } else {
        found.join(", ")
    }
}
