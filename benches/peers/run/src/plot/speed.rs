//! How fast each is at each job, against the floor: bars that begin where the floor is.

use super::panel::{Panel, ROW};
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{class, subtitle};
use crate::figures::Figures;
use crate::jobs::{JOBS, Job};
use crate::ratios::{Cell, Spread};
use crate::results::{PeerResults, Results};
use crate::table::number;

pub(super) fn draw(results: &Results) -> String {
    let mut svg = Svg::new(
        "Speed, in multiples of the floor",
        &subtitle(
            results,
            "Right of the line is faster than SET NX + compare-and-delete.",
        ),
    );
    let spreads = JOBS.iter().flat_map(|job| {
        let peers = results.peers.iter();
        peers.filter_map(|peer| speed(results, peer, job).spread())
    });
    let ends: Vec<f64> = spreads
        .flat_map(|spread| [spread.least, spread.most])
        .collect();

    let mut top = Svg::TOP;
    for pair in JOBS.chunks(2) {
        let mut height: f64 = 0.0;
        for (column, job) in pair.iter().enumerate() {
            let (runners, others) = sort(results, job);
            let panel = Panel::half(column, top, runners.len());
            let scale = Scale::log(ends.iter().copied(), panel.span());
            draw_job(&mut svg, &panel, &scale, job, &runners);
            for (index, other) in others.iter().enumerate() {
                panel.footnote(&mut svg, index, other);
            }
            height = height.max(panel.height(others.len()));
        }
        top += height;
    }
    svg.finish(top)
}

/// Grants a second against the floor's; of one task alone, which is what it takes, the inverse.
fn speed<'a>(results: &'a Results, peer: &'a PeerResults, job: &Job) -> Cell<'a> {
    let of: fn(&Figures) -> f64 = match job.all_tasks() {
        1 => |figures| 1.0 / figures.cycle_p50,
        _ => |figures| figures.rate,
    };
    results.ratio(peer, job.name, of, of)
}

/// The peers that did the job, and for each reason against it, the peers that did not.
fn sort<'a>(results: &'a Results, job: &Job) -> (Vec<(&'a PeerResults, Spread)>, Vec<String>) {
    let mut runners = Vec::new();
    let mut others: Vec<(&str, Vec<&str>)> = Vec::new();
    for peer in results.peers.iter().filter(|peer| peer.name != "floor") {
        let why = match speed(results, peer, job) {
            Cell::Value(spread) => {
                runners.push((peer, spread));
                continue;
            }
            Cell::Lacks(what) => what,
            Cell::NotRun => "not run",
        };
        match others.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(&peer.name),
            None => others.push((why, vec![&peer.name])),
        }
    }
    let others = others.into_iter();
    let others = others.map(|(why, names)| format!("{}: {why}", names.join(", ")));
    (runners, others.collect())
}

fn draw_job(
    svg: &mut Svg,
    panel: &Panel,
    scale: &Scale,
    job: &Job,
    runners: &[(&PeerResults, Spread)],
) {
    panel.frame(svg, job.title, scale, "×");
    for (index, (peer, spread)) in runners.iter().enumerate() {
        panel.name(svg, index, &peer.name);
        let (top, floor) = (panel.row(index), scale.place(1.0));
        let [least, end, most] =
            [spread.least, spread.median, spread.most].map(|value| scale.place(value));
        let class = format!("{} solid", class(peer));
        svg.bar(floor, end, top + 4.0, ROW - 8.0, &class);
        let middle = top + ROW / 2.0;
        svg.line((least, middle), (most, middle), "range");
        // Place the label beyond the end that is furthest right.
        let right = most.max(floor);
        let label = format!("{}×", number(spread.median));
        svg.text((right + 6.0, top + 16.0), Anchor::Start, "small", &label);
    }
}
