//! How long tasks wait for a hot lock: from the median to the longest, on a logarithmic axis.

use super::panel::{Panel, ROW};
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{class, subtitle};
use crate::figures::Figures;
use crate::jobs::{JOBS, Job};
use crate::ratios::{Cell, Spread};
use crate::results::{PeerResults, Results};
use crate::table::number;

/// The jobs whose tasks wait for one lock.
const SHOWN: [&str; 4] = ["hot0", "hot1", "crowd4", "crowd8"];

type Figure = fn(&Figures) -> f64;

const MARKS: [Figure; 3] = [
    |figures| figures.wait_p50,
    |figures| figures.wait_p99,
    |figures| figures.wait_max,
];

pub(super) fn draw(results: &Results) -> String {
    let mut svg = Svg::new(
        "Waiting for one hot lock, in multiples of the floor's median wait",
        &subtitle(
            results,
            "The floor queues in its process: first come, first served.",
        ),
    );
    let mut top = Svg::TOP;
    legend(&mut svg, top);
    top += 34.0;
    for job in JOBS.iter().filter(|job| SHOWN.contains(&job.name)) {
        let panel = Panel::whole(top, results.peers.len());
        draw_job(&mut svg, results, &panel, job);
        top += panel.height(0);
    }
    svg.finish(top)
}

fn legend(svg: &mut Svg, top: f64) {
    let middle = top - 4.0;
    svg.line((124.0, middle), (224.0, middle), "peer span");
    svg.dot((124.0, middle), 5.0, "peer");
    svg.dot((184.0, middle), 4.5, "peer ring");
    svg.line((224.0, middle - 8.0), (224.0, middle + 8.0), "peer mark");
    let text = "dot: median; ring: 99 of 100 wait less; bar: the longest. \
                Evenness: 1 if all tasks got the same, 1/64 if one got all.";
    svg.text((240.0, top), Anchor::Start, "small", text);
}

fn draw_job(svg: &mut Svg, results: &Results, panel: &Panel, job: &Job) {
    let cells: Vec<_> = results
        .peers
        .iter()
        .map(|peer| (peer, waits(results, peer, job)))
        .collect();
    let values = cells.iter().filter_map(|(_, cell)| cell.as_ref().ok());
    let values = values.flat_map(|marks| marks.map(|mark| mark.median));
    let scale = Scale::log(values, panel.span());
    panel.frame(svg, job.title, &scale, "×");
    panel.value_head(svg, "evenness");
    for (index, (peer, cell)) in cells.iter().enumerate() {
        panel.name(svg, index, &peer.name);
        match cell {
            Ok(marks) => {
                draw_marks(svg, panel, &scale, index, peer, marks);
                let jain = results.plain(peer, job.name, |figures| figures.jain);
                let jain = jain
                    .spread()
                    .map_or(String::new(), |jain| number(jain.median));
                panel.value(svg, index, &jain);
            }
            Err(remark) => panel.remark(svg, index, remark),
        }
    }
}

/// Median, 99th percentile and longest; or why there are none.
fn waits<'a>(
    results: &'a Results,
    peer: &'a PeerResults,
    job: &Job,
) -> Result<[Spread; 3], &'a str> {
    let mut marks = Vec::new();
    for mark in MARKS {
        match results.ratio(peer, job.name, mark, |figures| figures.wait_p50) {
            Cell::Value(spread) => marks.push(spread),
            Cell::Lacks(what) => return Err(what),
            Cell::NotRun => return Err("not run"),
        }
    }
    Ok(marks.try_into().expect("as many as there are marks"))
}

fn draw_marks(
    svg: &mut Svg,
    panel: &Panel,
    scale: &Scale,
    index: usize,
    peer: &PeerResults,
    marks: &[Spread; 3],
) {
    let middle = panel.row(index) + ROW / 2.0;
    let class = class(peer);
    let [median, most, longest] = marks.map(|mark| scale.place(mark.median));
    svg.line(
        (median, middle),
        (longest, middle),
        &format!("{class} span"),
    );
    svg.line(
        (longest, middle - 8.0),
        (longest, middle + 8.0),
        &format!("{class} mark"),
    );
    svg.dot((most, middle), 4.5, &format!("{class} ring"));
    svg.dot((median, middle), 5.0, class);
}
