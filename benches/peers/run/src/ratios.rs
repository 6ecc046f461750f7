//! Ratios of two peers in the same round, and what the rounds make of them: pure.

use crate::figures::Figures;
use crate::results::{Outcome, PeerResults, Results};

/// The middle of some rounds and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        Some(Self {
            median: *values.get(values.len() / 2)?,
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}

/// The result of one peer at one job.
#[derive(Debug, PartialEq)]
pub(crate) enum Cell<'a> {
    Value(Spread),
    /// It has no such lock.
    Lacks(&'a str),
    NotRun,
}

impl<'a> Cell<'a> {
    pub(crate) fn spread(&self) -> Option<Spread> {
        match self {
            Self::Value(spread) => Some(*spread),
            _ => None,
        }
    }

    fn of<T>(outcome: Option<&'a Outcome<T>>, figure: impl Fn(usize, &T) -> Option<f64>) -> Self {
        match outcome {
            Some(Outcome::Lacks(what)) => Self::Lacks(what),
            Some(Outcome::Rounds(rounds)) => {
                let rounds = rounds.iter().enumerate();
                let values = rounds.filter_map(|(index, round)| figure(index, round.as_ref()?));
                Spread::of(values.collect()).map_or(Self::NotRun, Self::Value)
            }
            None => Self::NotRun,
        }
    }
}

impl Results {
    /// The floor of all ratios.
    fn floor(&self) -> Option<&PeerResults> {
        self.peers.iter().find(|peer| peer.name == "floor")
    }

    /// A figure of a peer by another of the floor, round by round.
    pub(crate) fn ratio<'a>(
        &'a self,
        peer: &'a PeerResults,
        job: &str,
        of: impl Fn(&Figures) -> f64,
        by: impl Fn(&Figures) -> f64,
    ) -> Cell<'a> {
        let floor = self.floor().and_then(|floor| floor.jobs.get(job));
        let floor = floor.map_or(&[][..], Outcome::rounds);
        Cell::of(peer.jobs.get(job), |round, figures| {
            Some(of(figures) / by(floor.get(round)?.as_ref()?))
        })
    }

    /// A figure that has no unit.
    pub(crate) fn plain<'a>(
        &self,
        peer: &'a PeerResults,
        job: &str,
        of: impl Fn(&Figures) -> f64,
    ) -> Cell<'a> {
        Cell::of(peer.jobs.get(job), |_, figures| Some(of(figures)))
    }

    /// How long a dead holder keeps others out, in leases.
    pub(crate) fn takeover<'a>(&self, peer: &'a PeerResults, after_end: bool) -> Cell<'a> {
        Cell::of(peer.failover.as_ref(), |_, takeover| {
            Some(if after_end {
                takeover.after_end
            } else {
                takeover.after_kill
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_what_was_measured() {
        let spread = Spread::of(vec![3.0, f64::NAN, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.most), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(vec![]), None);
    }
}
