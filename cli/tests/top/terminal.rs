//! A terminal, and what stands on its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use lockset_testkit::eventually;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use vt100::{Color, Parser};

/// No step takes this long unless something is broken.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Ends with its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for its end; below zero: the signal that ended it.
pub(crate) async fn ended(Running(child): &mut Running) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let mut status = None;
    eventually(SOON, "it has ended", async || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    let status = status.expect("it has ended");
    status
        .code()
        .unwrap_or_else(|| -status.signal().expect("a signal"))
}

/// Whether there is something to read, after a short wait.
fn is_readable(file: &File) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    let limit = Timespec::try_from(Duration::from_millis(50)).unwrap();
    poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// A terminal, of 80 by 24 at first.
pub(crate) struct Terminal {
    main: File,
    user: File,
    parser: Arc<Mutex<Parser>>,
    is_over: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let path = ptsname(&main, Vec::new()).unwrap();
        let path = path.into_string().unwrap();
        let user = File::options().read(true).write(true).open(path).unwrap();
        let main = File::from(main);
        let parser = Arc::new(Mutex::new(Parser::new(24, 80, 0)));
        let (mut reading, to) = (main.try_clone().unwrap(), Arc::clone(&parser));
        let is_over = Arc::<AtomicBool>::default();
        let reads_no_more = Arc::clone(&is_over);
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while !reads_no_more.load(Ordering::Acquire) {
                if !is_readable(&reading) {
                    continue;
                }
                let Ok(length @ 1..) = reading.read(&mut some) else {
                    return;
                };
                to.lock().unwrap().process(&some[..length]);
            }
        });
        let terminal = Self {
            main,
            user,
            parser,
            is_over,
            reader,
        };
        terminal.resize(24, 80);
        terminal
    }

    /// As when the window is closed.
    pub(crate) fn hang_up(self) {
        self.is_over.store(true, Ordering::Release);
        self.reader.join().unwrap();
    }

    /// As when the window is made smaller or larger.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let mut parser = self.parser.lock().unwrap();
        parser.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.main, size).unwrap();
    }

    pub(crate) fn run(&self, url: &str, arguments: &[&str]) -> Running {
        // No signal is ignored, even if this process was started in the background of a script.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_lockset")]);
        self.start(command.args(arguments), url)
    }

    pub(crate) fn start(&self, command: &mut Command, url: &str) -> Running {
        let stdio = || Stdio::from(self.user.try_clone().unwrap());
        let command = command.env("LOCKSET_URL", url).env("TERM", "xterm");
        let command = command.env_remove("NO_COLOR").stdin(stdio());
        Running(command.stdout(stdio()).stderr(stdio()).spawn().unwrap())
    }

    /// Types these characters.
    pub(crate) fn press(&self, keys: &str) {
        let mut keyboard = &self.main;
        keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn modes(&self) -> LocalModes {
        tcgetattr(&self.user).unwrap().local_modes
    }

    /// Its lines, as they stand there now.
    pub(crate) fn screen(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    /// The first line with this text, and the colour of each of its cells.
    pub(crate) fn line(&self, text: &str) -> Option<(String, Vec<Color>)> {
        let parser = self.parser.lock().unwrap();
        let screen = parser.screen();
        let (rows, columns) = screen.size();
        let cells = |row: u16| (0..columns).filter_map(move |column| screen.cell(row, column));
        (0..rows).find_map(|row| {
            let signs = cells(row).map(|cell| {
                if cell.has_contents() {
                    cell.contents()
                } else {
                    " "
                }
            });
            let line: String = signs.collect();
            let colours = || cells(row).map(|cell| cell.fgcolor()).collect();
            line.contains(text).then(|| (line, colours()))
        })
    }

    /// Whether the program's screen is shown, and not the shell's.
    pub(crate) fn is_taken(&self) -> bool {
        self.parser.lock().unwrap().screen().alternate_screen()
    }

    /// Waits until the shell has its screen back, and its cursor.
    pub(crate) async fn is_given_back(&self) {
        eventually(SOON, "given back", async || {
            let parser = self.parser.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        })
        .await;
    }

    pub(crate) async fn shows(&self, what: &str) {
        let seen = async || self.screen().contains(what);
        let seen = tokio::time::timeout(SOON, eventually(SOON * 2, what, seen));
        assert!(seen.await.is_ok(), "no {what:?} in\n{}", self.screen());
    }

    pub(crate) async fn shows_no(&self, what: &str) {
        let gone = async || !self.screen().contains(what);
        let gone = tokio::time::timeout(SOON, eventually(SOON * 2, what, gone));
        assert!(gone.await.is_ok(), "still {what:?} in\n{}", self.screen());
    }
}
