//! `top` on a pseudo-terminal and in a pipe.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Redisson, Server, eventually, within};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

/// Ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A terminal of 80 by 24, and what was written to it.
struct Terminal {
    main: File,
    user: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let path = ptsname(&main, Vec::new()).unwrap();
        let path = path.into_string().unwrap();
        let user = File::options().read(true).write(true).open(path).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&main, size).unwrap();
        let main = File::from(main);
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut reading, to) = (main.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(length @ 1..) = reading.read(&mut some) {
                to.lock().unwrap().extend_from_slice(&some[..length]);
            }
        });
        Self {
            main,
            user,
            written,
        }
    }

    fn run(&self, url: &str, args: &[&str]) -> Running {
        let stdio = || Stdio::from(self.user.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockset"));
        command
            .args(args)
            .env("LOCKSET_URL", url)
            .env("TERM", "xterm");
        let command = command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        Running(command.spawn().unwrap())
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(&self.user).unwrap().local_modes
    }

    /// What stands on the screen: only cells that change are written, each behind a move of the cursor.
    fn screen(&self) -> String {
        let text = self.text();
        let mut screen = vec![vec![' '; 80]; 24];
        let (mut row, mut column) = (0, 0);
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter != '\x1b' {
                if let Some(cell) = screen.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = letter;
                }
                column += 1;
            } else if letters.next_if_eq(&'[').is_some() {
                let mut words = String::new();
                let end = letters.by_ref().find(|letter| {
                    let is_end = letter.is_ascii_alphabetic();
                    words.extend((!is_end).then_some(*letter));
                    is_end
                });
                if end == Some('H') {
                    let mut places = words.split(';').map(|number| number.parse().unwrap_or(1));
                    row = places.next().unwrap_or(1) - 1;
                    column = places.next().unwrap_or(1) - 1;
                }
            }
        }
        let rows = screen.into_iter().map(String::from_iter);
        rows.collect::<Vec<_>>().join("\n")
    }

    /// All that was written.
    fn text(&self) -> String {
        let written = self.written.lock().unwrap();
        String::from_utf8_lossy(&written).into_owned()
    }

    async fn shows(&self, what: &str) {
        eventually(SOON, what, async || self.screen().contains(what)).await;
    }
}

async fn ended(Running(child): &mut Running) -> i32 {
    let mut code = None;
    eventually(SOON, "it has ended", async || {
        code = child.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    })
    .await;
    code.flatten().expect("a status")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_draws_answers_keys_and_leaves_the_terminal_as_it_was() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("seats-show-1").lock().await.unwrap();
    let terminal = Terminal::new();
    let before = terminal.modes();
    let mut top = terminal.run(&server.url(), &["top"]);
    terminal.shows("seats-show-1").await;
    assert_ne!(terminal.modes(), before, "keys come one by one");
    let mut keys = &terminal.main;
    keys.write_all(b"\r").unwrap();
    terminal.shows("held by").await;
    keys.write_all(b"\x1b").unwrap();
    keys.write_all(b" ").unwrap();
    terminal.shows("frozen").await;
    keys.write_all(b"q").unwrap();
    assert_eq!(ended(&mut top).await, 0);
    assert_eq!(terminal.modes(), before);
    let text = terminal.text();
    let (enter, leave) = (text.find("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
    assert!(enter.is_some() && leave > enter, "the screen is given back");
    assert!(
        text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"),
        "and the cursor"
    );
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_told_before_the_screen_is_taken() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let terminal = Terminal::new();
    let mut top = terminal.run(&url, &["top"]);
    assert_eq!(ended(&mut top).await, 69);
    assert!(
        !terminal.text().contains("\x1b[?1049h"),
        "{}",
        terminal.text()
    );
}

/// Lines as they are written.
fn lines(url: &str) -> (Running, tokio::sync::mpsc::UnboundedReceiver<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockset"));
    command
        .arg("top")
        .env("LOCKSET_URL", url)
        .stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (Running(child), receiver)
}

/// One lease is renewed, the other is not: its holder has died.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_pipe_it_writes_a_line_a_second_and_a_dying_holder_is_told_from_a_live_one() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).lease(Duration::from_secs(6));
    let client = builder.build().await.unwrap();
    let guard = client.lock("alive").lock().await.unwrap();
    let peer = Redisson::connect(&server).await;
    assert_eq!(
        peer.lock_acquire("dying", 1, Duration::from_secs(6)).await,
        None
    );
    let (mut child, mut lines) = lines(&server.url());
    let mut states: Vec<String> = Vec::new();
    let began = Instant::now();
    while states.last().is_none_or(|state| state != "expired") {
        let line = within(SOON, lines.recv()).await.expect("a line");
        let top = line["top"].as_array().unwrap();
        let state = |name: &str| {
            let lock = top.iter().find(|lock| lock["name"] == name);
            lock.map(|lock| lock["state"].as_str().unwrap().to_owned())
        };
        if let Some(alive) = state("alive") {
            assert_eq!(alive, "held", "{line}");
        }
        states.extend(state("dying").filter(|state| states.last() != Some(state)));
        assert!(began.elapsed() < SOON, "{states:?}");
    }
    assert_eq!(states, ["held", "late", "expired"]);
    // Nobody reads on.
    drop(lines);
    let status = ended(&mut child).await;
    assert_eq!(status, 0);
    drop(guard);
}
