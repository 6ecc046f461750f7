//! The plots: SVG that is read on light and on dark pages, with every label in place.

mod commands;
mod panel;
mod scale;
mod speed;
mod svg;
mod waits;

use crate::facts::Facts;
use crate::results::{PeerResults, Results};

/// Name of the file and what is in it.
pub(crate) fn all(results: &Results) -> [(&'static str, String); 3] {
    [
        ("speed.svg", speed::draw(results)),
        ("waits.svg", waits::draw(results)),
        ("commands.svg", commands::draw(results)),
    ]
}

/// How a peer's marks look: ours stand out, the floor stands back.
fn class(peer: &PeerResults) -> &'static str {
    match &*peer.name {
        "lockset" => "ours",
        "floor" => "floor",
        _ => "peer",
    }
}

/// The line under a drawing's title.
fn subtitle(results: &Results, what: &str) -> String {
    let facts = &results.facts;
    let day = facts.date.split(' ').next().unwrap_or_default();
    let of = match results.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds"),
    };
    let Facts {
        cpu, cores, server, ..
    } = facts;
    format!("{what} {cpu}, {cores} cores, {server}; {of}, {day}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Figures, Turn};
    use crate::jobs::JOBS;
    use crate::results::Outcome;
    use crate::server::Cost;
    use crate::table;

    fn peer(name: &str) -> PeerResults {
        let turn = |start: u64| Turn {
            asked: start,
            granted: start + 100,
            worked: start + 150,
            released: start + 200,
        };
        let mut peer = PeerResults::new(name);
        for job in &JOBS {
            let figures = Figures::of(&[vec![turn(0), turn(200)]], 1, 1.0, (0, 0), Cost::default());
            let outcome = Outcome::Rounds(vec![figures, None]);
            peer.jobs.insert(job.name.to_owned(), outcome);
        }
        peer
    }

    fn results() -> Results {
        let mut lacking = peer("redsync");
        let lack = Outcome::Lacks("no fair lock".to_owned());
        lacking.jobs.insert("fair".to_owned(), lack);
        let mut absent = PeerResults::new("node-redlock");
        absent.not_run = Some("no node here".to_owned());
        Results {
            facts: serde_json::from_str(
                r#"{"date":"2026-01-02 03:04 UTC","commit":"c","cpu":"a & b","cores":2,
                    "kernel":"k","server":"Redis","placement":"p"}"#,
            )
            .unwrap(),
            rounds: 2,
            seconds: 1.0,
            peers: vec![peer("floor"), peer("lockset"), lacking, absent],
        }
    }

    #[test]
    fn who_lacks_a_lock_or_did_not_run_is_shown_as_such() {
        let results = results();
        let table = table::of(&results);
        for said in [
            "no fair lock",
            "**node-redlock**: not run: no node here",
            "1.00x",
        ] {
            assert!(table.contains(said), "{said:?} in {table}");
        }
        for (name, drawing) in all(&results) {
            assert!(
                !drawing.contains("NaN") && !drawing.contains("inf"),
                "{name}"
            );
            assert!(drawing.contains("not run"), "{name}");
            assert!(drawing.contains("a &amp; b"), "{name}");
        }
        let [(_, speed), ..] = all(&results);
        assert!(speed.contains("redsync: no fair lock"));
    }
}
