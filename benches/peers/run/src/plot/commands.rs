//! Commands of the server for each grant: sent by clients, and called by their scripts.

use super::panel::{Panel, ROW};
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{class, subtitle};
use crate::jobs::{JOBS, Job};
use crate::ratios::Cell;
use crate::results::{PeerResults, Results};
use crate::table::number;

/// The jobs shown, two in a line.
const SHOWN: [&str; 4] = ["uncontended", "hot0", "hot1", "fair"];

pub(super) fn draw(results: &Results) -> String {
    let mut svg = Svg::new(
        "Server commands for each grant",
        &subtitle(
            results,
            "Full colour: sent by clients; light: called by their scripts.",
        ),
    );
    let jobs: Vec<&Job> = JOBS
        .iter()
        .filter(|job| SHOWN.contains(&job.name))
        .collect();
    let mut top = Svg::TOP;
    for pair in jobs.chunks(2) {
        let panels = [0, 1].map(|column| Panel::half(column, top, results.peers.len()));
        for (job, panel) in pair.iter().zip(&panels) {
            draw_job(&mut svg, results, panel, job);
        }
        top += panels[0].height(0);
    }
    svg.finish(top)
}

fn draw_job(svg: &mut Svg, results: &Results, panel: &Panel, job: &Job) {
    let rows: Vec<_> = results
        .peers
        .iter()
        .map(|peer| (peer, cost(results, peer, job)))
        .collect();
    let sums = rows.iter().filter_map(|(_, cost)| cost.as_ref().ok());
    let scale = Scale::linear(sums.map(|(sent, scripted)| sent + scripted), panel.span());
    panel.frame(svg, job.title, &scale, "");
    for (index, (peer, cost)) in rows.iter().enumerate() {
        panel.name(svg, index, &peer.name);
        let (sent, scripted) = match cost {
            Ok(cost) => *cost,
            Err(remark) => {
                panel.remark(svg, index, remark);
                continue;
            }
        };
        let (top, height) = (panel.row(index) + 4.0, ROW - 8.0);
        let [zero, middle, end] = [0.0, sent, sent + scripted].map(|value| scale.place(value));
        let class = class(peer);
        svg.bar(zero, middle, top, height, &format!("{class} solid"));
        svg.bar(middle, end, top, height, &format!("{class} light"));
        let label = format!("{} + {}", short(sent), short(scripted));
        svg.text((end + 6.0, top + 12.0), Anchor::Start, "small", &label);
    }
}

/// Sent and called by scripts; or why nothing is known.
fn cost<'a>(results: &'a Results, peer: &'a PeerResults, job: &Job) -> Result<(f64, f64), &'a str> {
    let sent = results.plain(peer, job.name, |figures| figures.cost.sent);
    let scripted = results.plain(peer, job.name, |figures| figures.cost.scripted);
    match (sent, scripted) {
        (Cell::Value(sent), Cell::Value(scripted)) => Ok((sent.median, scripted.median)),
        (Cell::Lacks(what), _) => Err(what),
        _ => Err("not run"),
    }
}

/// Of a count: a whole number as such.
fn short(value: f64) -> String {
    if (value - value.round()).abs() < 0.05 {
        format!("{value:.0}")
    } else {
        number((value * 10.0).round() / 10.0)
            .trim_end_matches('0')
            .to_owned()
    }
}
