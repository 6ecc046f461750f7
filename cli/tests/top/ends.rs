//! However it ends, the terminal is left as it was.

use std::process::Command;

use lockset::Client;
use lockset_testkit::Server;
use rustix::process::{Pid, Signal, kill_process};

use crate::terminal::{Terminal, ended};

/// How to end it.
enum End {
    Key(&'static str),
    Signal(Signal),
}

async fn ends(end: End, status: i32) {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("seats-show-1").lock().await.unwrap();
    let terminal = Terminal::new();
    let before = terminal.modes();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("seats-show-1").await;
    assert_ne!(terminal.modes(), before, "keys come one by one");
    assert!(terminal.is_taken());
    match end {
        End::Key(key) => terminal.press(key),
        End::Signal(signal) => {
            let pid = Pid::from_raw(i32::try_from(top.0.id()).unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }
    assert_eq!(ended(&mut top).await, status);
    assert_eq!(terminal.modes(), before);
    terminal.is_given_back().await;
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_q() {
    ends(End::Key("q"), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_ctrl_c() {
    ends(End::Key("\x03"), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_signals() {
    for (signal, status) in [
        (Signal::TERM, 143),
        (Signal::INT, -2),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        ends(End::Signal(signal), status).await;
    }
}

/// No signal tells of it: the program does not belong to the session of the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn by_the_end_of_its_terminal() {
    let server = Server::start();
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("0 locks").await;
    terminal.hang_up();
    // It may fail to draw first.
    let status = ended(&mut top).await;
    assert!(status >= 0, "it ends by itself: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_told_before_the_screen_is_taken() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let terminal = Terminal::new();
    let mut top = terminal.run(&url, &["top"]);
    assert_eq!(ended(&mut top).await, 69);
    terminal.shows("lockset: ").await;
    assert!(!terminal.is_taken());
}

/// A server that goes away later is named on the screen, and found again when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_is_told_on_the_screen() {
    let server = Server::start();
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("rtt").await;
    server.kill();
    terminal.shows_no("rtt").await;
    let (line, colours) = terminal.line("lockset top").unwrap();
    let told = line.rfind("  ").unwrap_or_default() + 2;
    assert!(colours[told..].contains(&vt100::Color::Idx(1)), "{line}");
    server.restart();
    terminal.shows("rtt").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
}

/// Without colours where they are not wanted: the words say it all.
#[tokio::test(flavor = "multi_thread")]
async fn without_colours() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("plain").lock().await.unwrap();
    let terminal = Terminal::new();
    let mut command = Command::new("env");
    command.args(["NO_COLOR=1", env!("CARGO_BIN_EXE_lockset"), "top"]);
    let mut top = terminal.start(&mut command, &server.url());
    terminal.shows("plain").await;
    let (line, colours) = terminal.line("plain").unwrap();
    let default = |colour: &vt100::Color| *colour == vt100::Color::Default;
    assert!(colours.iter().all(default), "{line}");
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
    drop(guard);
}
