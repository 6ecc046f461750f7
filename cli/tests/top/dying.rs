//! What `make top-demo` shows: a holder is killed, its lease drains, and a late write is refused.

use std::process::Command;
use std::time::{Duration, Instant};

use lockset_testkit::Server;
use tokio::time::sleep;
use vt100::Color;

use crate::terminal::{Terminal, ended};

const RED: Color = Color::Idx(1);
const GREEN: Color = Color::Idx(2);
const YELLOW: Color = Color::Idx(3);

/// All of it, on a slow machine.
const BOUND: Duration = Duration::from_secs(60);

/// Of the row of a lock: how many cells of its bar are full, and their colour.
fn bar(terminal: &Terminal, name: &str) -> Option<(usize, Color)> {
    let (line, colours) = terminal.line(&format!("{name} "))?;
    let full = line.chars().filter(|sign| *sign == '█').count();
    let at = line.chars().position(|sign| "█·".contains(sign))?;
    Some((full, colours[at]))
}

#[track_caller]
fn is_red(terminal: &Terminal, text: &str) {
    let (line, colours) = terminal.line(text).expect(text);
    assert!(colours.contains(&RED), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_is_seen_to_die_and_its_late_write_is_refused() {
    let server = Server::start();
    let terminal = Terminal::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/top-demo");
    let mut demo = Command::new("env");
    demo.args(["--default-signal", "setsid", "--ctty", script]);
    demo.envs([
        ("LOCKSET", env!("CARGO_BIN_EXE_lockset")),
        ("REDIS_URL", &server.url()),
        ("SECONDS_SHOWN", "120"),
        ("KILL_AFTER", "4"),
    ]);
    let mut demo = terminal.start(&mut demo, &server.url());

    let (began, mut bars, mut was_late) = (Instant::now(), Vec::new(), false);
    while !terminal.screen().contains("ran out, now") {
        assert!(began.elapsed() < BOUND, "{bars:?}\n{}", terminal.screen());
        let now = bar(&terminal, "report");
        bars.extend(now.filter(|now| bars.last() != Some(now)));
        // Later, what happens to other locks takes its place on the screen.
        if !was_late && now.is_some_and(|(_, colour)| colour == YELLOW) {
            terminal.shows("has not renewed").await;
            is_red(&terminal, "has not renewed");
            was_late = true;
        }
        sleep(Duration::from_millis(20)).await;
    }
    is_red(&terminal, "ran out, now");
    assert_eq!(bars[0].1, GREEN, "{bars:?}");
    // The last looks may have seen the next holder.
    let is_green = |(_, colour): &(usize, Color)| *colour == GREEN;
    let last = bars.iter().rposition(|bar| !is_green(bar)).expect("late");
    let first = bars[..last].iter().rposition(is_green);
    let late = &bars[first.map_or(0, |at| at + 1)..=last];
    let late: Vec<usize> = late.iter().map(|(full, _)| *full).collect();
    assert!(late.len() >= 4 && late[0] >= 3, "it drains: {bars:?}");
    assert!(*late.last().unwrap() <= 1, "to its end: {bars:?}");

    terminal.press("q");
    terminal.shows("refused: a late write of the first").await;
    assert_eq!(ended(&mut demo).await, 0);
    terminal.is_given_back().await;
}
