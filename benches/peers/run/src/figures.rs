//! Numbers of one job of one peer in one round: pure.

use serde::{Deserialize, Serialize};

use crate::server::Cost;

/// One turn with a lock, in microseconds since the job's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) worked: u64,
    pub(crate) released: u64,
}

impl Turn {
    /// `asked,granted,worked,released`.
    pub(crate) fn read(word: &str) -> Option<Self> {
        let mut numbers = word.split(',').map(|number| number.parse().ok());
        let turn = Self {
            asked: numbers.next()??,
            granted: numbers.next()??,
            worked: numbers.next()??,
            released: numbers.next()??,
        };
        numbers.next().is_none().then_some(turn)
    }

    fn wait(&self) -> u64 {
        self.granted - self.asked
    }
}

/// A task that asked this much later, in microseconds, certainly came later: for shorter differences, threads and
/// connections may change the order.
const CERTAINLY_LATER: u64 = 5000;

/// Times in microseconds: to be shown as ratios only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) grants: usize,
    /// Grants a second; those after the end of the time do not count.
    pub(crate) rate: f64,
    /// Of asking, work and release together.
    pub(crate) cycle_p50: f64,
    /// Waits under way at the end are waited out, and count.
    pub(crate) wait_p50: f64,
    pub(crate) wait_p99: f64,
    pub(crate) wait_max: f64,
    /// The duration of a task's "1 ms of work".
    pub(crate) work_p50: f64,
    /// How evenly the grants went to the tasks: 1 if all got the same, 1/n if one got all.
    pub(crate) jain: f64,
    /// The grants of the process that got least, as a part of an equal share: 1 if all got equal shares.
    #[serde(default)]
    pub(crate) least_share: f64,
    /// Share of the grants that passed over an earlier waiter.
    pub(crate) overtook: f64,
    /// Calls that gave up, and were made again.
    pub(crate) failures: u64,
    /// How often two were inside.
    pub(crate) violations: u64,
    /// The server's cost per grant.
    pub(crate) cost: Cost,
}

impl Figures {
    /// The tasks of one of the processes stand together. `cost` covers all turns. `None` if there were none.
    pub(crate) fn of(
        tasks: &[Vec<Turn>],
        processes: usize,
        seconds: f64,
        (failures, violations): (u64, u64),
        cost: Cost,
    ) -> Option<Self> {
        let turns: Vec<Turn> = tasks.iter().flatten().copied().collect();
        if turns.is_empty() {
            return None;
        }
        let end = (seconds * 1e6) as u64;
        let in_time = |turns: &[Turn]| turns.iter().filter(|turn| turn.granted <= end).count();
        let shares: Vec<usize> = tasks.iter().map(|turns| in_time(turns)).collect();
        let waits = sorted(turns.iter().map(Turn::wait));
        let cycles = sorted(turns.iter().map(|turn| turn.released - turn.asked));
        let works = sorted(turns.iter().map(|turn| turn.worked - turn.granted));
        let grants = turns.len();
        Some(Self {
            grants,
            rate: in_time(&turns) as f64 / seconds,
            cycle_p50: quantile(&cycles, 0.5),
            wait_p50: quantile(&waits, 0.5),
            wait_p99: quantile(&waits, 0.99),
            wait_max: quantile(&waits, 1.0),
            work_p50: quantile(&works, 0.5),
            jain: jain(&shares),
            least_share: least_share(&shares, processes),
            overtook: overtook(turns),
            failures,
            violations,
            cost: cost.each(grants),
        })
    }
}

impl Figures {
    /// The longest wait in median waits. Not below a microsecond, as nothing shorter is measured.
    pub(crate) fn longest_in_medians(&self) -> f64 {
        self.wait_max / self.wait_p50.max(1.0)
    }
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// Of values in order.
fn quantile(values: &[u64], share: f64) -> f64 {
    let last = values.len() - 1;
    values[(last as f64 * share).round() as usize] as f64
}

fn jain(shares: &[usize]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    if squares > 0.0 {
        sum * sum / (shares.len() as f64 * squares)
    } else {
        1.0
    }
}

fn least_share(shares: &[usize], processes: usize) -> f64 {
    let of_processes = shares.chunks(shares.len().div_ceil(processes));
    let least = of_processes.map(|tasks| tasks.iter().sum::<usize>()).min();
    let all: usize = shares.iter().sum();
    if all > 0 {
        (least.unwrap_or(0) * processes) as f64 / all as f64
    } else {
        1.0
    }
}

fn overtook(mut turns: Vec<Turn>) -> f64 {
    turns.sort_unstable_by_key(|turn| turn.granted);
    let count = turns.len() as f64;
    // The first to ask of those granted later.
    let mut earliest = u64::MAX;
    let mut overtakers = 0;
    for turn in turns.iter().rev() {
        overtakers += u32::from(turn.asked > earliest.saturating_add(CERTAINLY_LATER));
        earliest = earliest.min(turn.asked);
    }
    f64::from(overtakers) / count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(asked: u64, granted: u64) -> Turn {
        Turn {
            asked,
            granted,
            worked: granted,
            released: granted + 10,
        }
    }

    #[test]
    fn who_goes_first_without_having_asked_first_overtakes() {
        assert_eq!(overtook(vec![turn(0, 10_000), turn(6000, 20_000)]), 0.0);
        assert_eq!(overtook(vec![turn(0, 20_000), turn(6000, 10_000)]), 0.5);
        // Too close to tell.
        assert_eq!(overtook(vec![turn(0, 20_000), turn(4000, 10_000)]), 0.0);
    }

    #[test]
    fn the_process_with_the_least_is_what_counts() {
        assert_eq!(least_share(&[3, 1, 2, 2], 2), 1.0);
        assert_eq!(least_share(&[6, 0, 1, 1], 2), 0.5);
        assert_eq!(least_share(&[4, 4, 0], 3), 0.0);
        assert_eq!(least_share(&[0, 0], 2), 1.0);
    }

    #[test]
    fn a_grant_after_the_end_is_a_wait_but_no_grant() {
        let tasks = [
            vec![turn(0, 100), turn(100, 600_000)],
            vec![turn(0, 700_000)],
        ];
        let figures = Figures::of(&tasks, 1, 0.5, (1, 0), Cost::default()).unwrap();
        assert_eq!(figures.rate, 2.0);
        assert_eq!(figures.jain, 0.5);
        assert_eq!(figures.wait_max, 700_000.0);
        assert_eq!(figures.grants, 3);
    }
}
