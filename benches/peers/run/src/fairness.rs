//! lockset's promise to clients that all want one lock: checked at the end of each measurement.

use crate::figures::Figures;
use crate::jobs::JOBS;
use crate::ratios::Cell;
use crate::results::Results;

/// Whose promise it is.
const OURS: &str = "lockset";

/// The least that any process must get, as a part of its share.
const LEAST_SHARE: f64 = 0.6;

/// The longest wait, in median waits.
const LONGEST_WAIT: f64 = 20.0;

/// The broken promises, by the medians of the rounds.
pub(crate) fn broken(results: &Results) -> Vec<String> {
    let Some(ours) = results.peers.iter().find(|peer| peer.name == OURS) else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    for job in JOBS.iter().filter(|job| job.processes > 1) {
        let median = |figure: fn(&Figures) -> f64| {
            let cell: Cell<'_> = results.plain(ours, job.name, figure);
            cell.spread().map(|spread| spread.median)
        };
        let title = job.title;
        if let Some(share) = median(|of| of.least_share)
            && share < LEAST_SHARE
        {
            broken.push(format!(
                "{title}: a process of {OURS} had {share:.2} of its share, less than {LEAST_SHARE}"
            ));
        }
        // Where holders share, most waits are near zero, and so is their median.
        if job.kind == "mutex"
            && let Some(longest) = median(Figures::longest_in_medians)
            && longest > LONGEST_WAIT
        {
            broken.push(format!(
                "{title}: the longest wait was {longest:.1} median waits, more than {LONGEST_WAIT}"
            ));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Turn;
    use crate::results::{Outcome, PeerResults};
    use crate::server::Cost;

    /// Two processes with one task each, with these numbers of grants and this last wait.
    fn results(grants: [usize; 2], last_wait: u64) -> Results {
        let tasks = grants.map(|grants| {
            let turns = (0..grants).map(|turn| {
                let wait = if turn + 1 == grants { last_wait } else { 100 };
                Turn {
                    asked: 0,
                    granted: wait,
                    worked: wait,
                    released: wait,
                }
            });
            turns.collect::<Vec<_>>()
        });
        let figures = Figures::of(&tasks, 2, 1.0, (0, 0), Cost::default());
        let mut ours = PeerResults::new(OURS);
        ours.jobs
            .insert("crowd4".to_owned(), Outcome::Rounds(vec![figures]));
        Results {
            facts: serde_json::from_str(
                r#"{"date":"d","commit":"c","cpu":"c","cores":2,"kernel":"k","server":"s","placement":"p"}"#,
            )
            .unwrap(),
            rounds: 1,
            seconds: 1.0,
            peers: vec![PeerResults::new("floor"), ours],
        }
    }

    #[test]
    fn a_process_with_less_than_its_part_is_told_of() {
        assert_eq!(broken(&results([10, 10], 200)), [""; 0]);
        assert_eq!(broken(&results([14, 8], 200)), [""; 0]);
        let told = broken(&results([15, 6], 200));
        assert!(
            matches!(&told[..], [one] if one.contains("0.57")),
            "{told:?}"
        );
    }

    #[test]
    fn a_wait_of_many_medians_is_told_of() {
        assert_eq!(broken(&results([10, 10], 2000)), [""; 0]);
        let told = broken(&results([10, 10], 2100));
        assert!(
            matches!(&told[..], [one] if one.contains("21.0")),
            "{told:?}"
        );
    }
}
