//! The output for people.

use std::io::{IsTerminal as _, stdout};
use std::time::{Duration, Instant};

use crate::round::Round;
use crate::support::{millis, say};
use crate::{OFFICES, PEOPLE, SEATS};

pub(crate) fn opening(server: &str) {
    say(&format!(
        "
First come, first served: {SEATS} seats, {PEOPLE} people, {OFFICES} box offices.

Each box office is a process, and everybody comes at once. Each person looks how
many seats are sold, pays (1 to 5 ms), and then takes a seat if there was one.

Lock server: {server}

"
    ));
}

pub(crate) fn table(without: &Round, with: &Round) {
    let mut waits: Vec<_> = with.turns().map(|turn| turn.waited).collect();
    waits.sort_unstable();
    let wait = |percent| ["-".to_owned(), millis(percentile(&waits, percent))];
    let grants = with.served.len() as f64 / with.wall.as_secs_f64();
    let grants = ["-".to_owned(), format!("{grants:.0}")];
    let both = |of: fn(&Round) -> String| [of(without), of(with)];

    let rows = [
        ("", ["without a lock", "with the lock"].map(str::to_owned)),
        ("Seats sold", both(|round| round.sales.len().to_string())),
        ("Oversold by", both(|round| round.oversold().to_string())),
        ("People refused", both(|round| round.refused().to_string())),
        ("Wait for the lock, median", wait(50)),
        ("  99 of 100 waited at most", wait(99)),
        ("  longest", wait(100)),
        ("Locks granted per second", grants),
        ("Time to serve them all", both(|round| millis(round.wall))),
    ];
    say("\n");
    for (label, [without, with]) in rows {
        say(&format!("{label:<30}{without:>16}{with:>16}\n"));
    }
}

pub(crate) fn closing(with: &Round) {
    if let Some(befell) = with.befell {
        let lost: u32 = with.turns().map(|turn| turn.lost).sum();
        let too_late: u32 = with.turns().map(|turn| turn.too_late).sum();
        say(&format!(
            "
In the middle of the round with the lock {befell}.
So it happened that a holder was told of a lost lock: {lost} times; did not know it yet,
and was refused by the database for an old token: {too_late} times.
"
        ));
    }
    say(&format!(
        "
Exact: {SEATS} different people have a seat. Their fencing tokens grow from sale to
sale, and a sale that came late, with an old token, was refused by the database.

"
    ));
}

/// The smallest of `sorted` that is not exceeded by `percent` % of them.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    let found = sorted.get(rank.saturating_sub(1));
    found.copied().unwrap_or_default()
}

/// A progress bar: in place on a terminal, otherwise a few lines per second.
pub(crate) struct Progress {
    title: &'static str,
    shown: Instant,
}

impl Progress {
    pub(crate) fn start(title: &'static str) -> Self {
        Self {
            title,
            shown: Instant::now(),
        }
    }

    pub(crate) fn show(&mut self, served: usize) {
        const WIDTH: usize = 36;
        const PAUSE: Duration = Duration::from_millis(250);

        let in_place = stdout().is_terminal();
        let done = served == PEOPLE;
        if !in_place && !done && self.shown.elapsed() < PAUSE {
            return;
        }
        self.shown = Instant::now();
        let start = if in_place { "\r" } else { "" };
        let end = if in_place && !done { "" } else { "\n" };
        let bar = "#".repeat(served * WIDTH / PEOPLE);
        let title = self.title;
        say(&format!(
            "{start}{title:<14}  [{bar:.<WIDTH$}]{served:>4} served{end}"
        ));
    }
}
