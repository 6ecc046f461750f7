//! The actions of the keys, and the view in a small window.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Server, eventually};

use crate::terminal::{SOON, Terminal, ended};

const LEFT: &str = "\x1b";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_lock_opens_and_closes() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let first = client.lock("first").fenced().lock().await.unwrap();
    let second = client.fair_lock("second").lock().await.unwrap();
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("first").await;
    terminal.shows("second").await;
    // Sorted by name, so that the cursor is where it is expected: by waiters, age, rate, name.
    for by in ["by age", "by rate", "by name"] {
        terminal.press("s");
        terminal.shows(by).await;
    }
    terminal.press("k\r");
    terminal.shows("held by").await;
    let token = first.fencing_token().unwrap().get().to_string();
    terminal.shows(&format!("token    {token}")).await;
    terminal.press(LEFT);
    terminal.shows("LEASE").await;
    terminal.press("j\r");
    terminal.shows("token    none").await;
    terminal.press(LEFT);
    terminal.shows("LEASE").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_mark_shows_the_keys() {
    let server = Server::start();
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("? help").await;
    terminal.press("?");
    terminal.shows("filter by name or holder").await;
    terminal.press("?");
    terminal.shows("LEASE").await;
    terminal.shows_no("filter by name or holder").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_hides_what_does_not_match() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guards = [
        client.lock("order:7").lock().await.unwrap(),
        client.lock("quota").lock().await.unwrap(),
    ];
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("order:7").await;
    terminal.shows("quota").await;
    // While a filter is typed, a letter is a letter.
    terminal.press("/q");
    terminal.shows("/q_").await;
    terminal.shows_no("order:7").await;
    terminal.press("\x7f");
    terminal.shows("order:7").await;
    terminal.press("order");
    terminal.shows_no("quota").await;
    terminal.press("\r");
    terminal.shows("[order]").await;
    terminal.press(LEFT);
    terminal.shows("quota").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
    drop(guards);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_view_does_not_change() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("before").lock().await.unwrap();
    let terminal = Terminal::new();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("before").await;
    terminal.press(" ");
    terminal.shows("frozen").await;
    let mut frozen = terminal.screen();
    eventually(SOON, "all of it is drawn", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = std::mem::replace(&mut frozen, terminal.screen());
        before == frozen
    })
    .await;
    let later = client.lock("later").lock().await.unwrap();
    guard.release().await.unwrap();
    // The view keeps looking while it is frozen: three more times.
    let asked = async || -> u64 {
        let mut admin = server.admin().await;
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut admin)
            .await
            .unwrap();
        let line = info
            .lines()
            .find(|line| line.starts_with("cmdstat_hgetall:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok());
        calls.unwrap_or(0)
    };
    let until = asked().await + 3;
    eventually(SOON, "it looks", async || asked().await >= until).await;
    assert_eq!(terminal.screen(), frozen);
    terminal.press(" ");
    terminal.shows("later").await;
    terminal.shows_no("frozen").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
    drop(later);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_follows_the_size_of_the_window() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("seats-show-1").lock().await.unwrap();
    let terminal = Terminal::new();
    terminal.resize(50, 132);
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("seats-show-1").await;
    let last = |rows: u16| terminal.screen().lines().count() <= usize::from(rows);
    for (rows, columns) in [
        (24, 80),
        (24, 40),
        (10, 80),
        (5, 20),
        (2, 2),
        (1, 1),
        (24, 80),
    ] {
        terminal.resize(rows, columns);
        // The name is what has room to the end; the header is what a small window has first.
        match (rows, columns) {
            (24, _) => terminal.shows("seats-sh").await,
            (5.., _) => terminal.shows("lockset top").await,
            _ => terminal.shows("l").await,
        }
        assert!(last(rows), "{}", terminal.screen());
    }
    terminal.shows("q quit").await;
    terminal.press("q");
    assert_eq!(ended(&mut top).await, 0);
    drop(guard);
}
