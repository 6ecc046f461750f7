//! The program as a process, other processes as they are seen from outside, and a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockset_testkit::{eventually, within};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// No step takes this long unless something is broken.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) const LOCKSET: &str = env!("CARGO_BIN_EXE_lockset");

/// `lockset` with these arguments.
pub(crate) fn lockset(url: &str, arguments: &[&str]) -> Command {
    program(LOCKSET, url, arguments)
}

/// A program that finds the server in its environment, and nothing else there that `lockset` reads. No signal
/// is ignored, even if this process was started in the background of a script.
pub(crate) fn program(program: &str, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("LOCKSET_"))
        {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env("LOCKSET_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The status and the output of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs it to its end.
pub(crate) async fn ended(command: &mut Command) -> Ended {
    let output = within(BOUND, command.output()).await.expect("it starts");
    Ended {
        status: status(output.status),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Below zero: the signal that ended the program itself.
fn status(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| -status.signal().expect("a signal"))
}

/// One that runs.
pub(crate) struct Running {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, out }
    }

    /// Its next line.
    pub(crate) async fn line(&mut self) -> String {
        let line = within(BOUND, self.out.next_line()).await.unwrap();
        line.expect("a line, not the end")
    }

    /// The numbers on its next line.
    pub(crate) async fn pids(&mut self) -> Vec<i32> {
        let line = self.line().await;
        line.split(' ')
            .map(|pid| pid.parse().expect(&line))
            .collect()
    }

    /// The end of its input.
    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id().expect("it runs")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits until it has a handler for the signal, which would end it before.
    pub(crate) async fn listens_for(&self, signal: Signal) {
        let status = format!("/proc/{}/status", self.pid());
        eventually(BOUND, "it has a handler", async || {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status
                .split("SigCgt:\t")
                .nth(1)
                .and_then(|rest| rest.lines().next());
            let caught = u64::from_str_radix(caught.expect("what it catches"), 16).unwrap();
            caught >> (signal.as_raw() - 1) & 1 == 1
        })
        .await;
    }

    /// As [`ended`](Self::ended), without reading its output any further.
    pub(crate) async fn ended_unread(self) -> Ended {
        drop(self.out);
        let output = within(BOUND, self.child.wait_with_output()).await.unwrap();
        Ended {
            status: status(output.status),
            out: String::new(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// As [`ended`](Self::ended), with the input left open.
    pub(crate) async fn ended_with_input_open(mut self) -> Ended {
        let input = self.child.stdin.take();
        let ended = self.ended().await;
        drop(input);
        ended
    }

    /// Its status and what it wrote to standard error.
    pub(crate) async fn ended(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        let status = within(BOUND, self.child.wait()).await.unwrap();
        while let Ok(Some(line)) = within(BOUND, self.out.next_line()).await {
            out += &line;
            out += "\n";
        }
        if let Some(mut stream) = self.child.stderr.take() {
            within(BOUND, stream.read_to_string(&mut err))
                .await
                .unwrap();
        }
        Ended {
            status: self::status(status),
            out,
            err,
        }
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    try_send(pid, signal).expect("it is there");
}

/// As [`send`], to a process that may be gone.
pub(crate) fn try_send(pid: i32, signal: Signal) -> rustix::io::Result<()> {
    kill_process(Pid::from_raw(pid).unwrap(), signal)
}

/// State and parent, as the kernel shows them.
fn look(pid: i32) -> Option<(char, i32)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything.
    let mut fields = line.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process may still do something: neither gone nor a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    look(pid).is_some_and(|(state, _)| !"ZX".contains(state))
}

pub(crate) fn is_stopped(pid: i32) -> bool {
    look(pid).is_some_and(|(state, _)| state == 'T')
}

pub(crate) fn parent(pid: i32) -> i32 {
    look(pid).expect("it is there").1
}

/// What `ps` shows of it.
pub(crate) fn arguments(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

pub(crate) async fn all_gone(pids: &[i32]) {
    eventually(BOUND, "the command is gone", async || {
        !pids.iter().any(|pid| is_alive(*pid))
    })
    .await;
}

/// A terminal with an interactive shell in it.
pub(crate) struct Terminal {
    /// Killed with this value.
    _shell: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen was read.
    read: usize,
}

impl Terminal {
    /// A shell whose variable `$L` is the program.
    pub(crate) async fn open(url: &str) -> Self {
        Self::open_shell(url, "bash --norc --noprofile -i").await
    }

    /// A terminal with another shell.
    pub(crate) async fn open_shell(url: &str, shell: &str) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new())
            .unwrap()
            .into_string()
            .unwrap();
        // The first terminal that the leader of a session opens becomes its own.
        let script = format!("exec {shell} <{name} >{name} 2>&1");
        let shell = program("setsid", url, &["sh", "-c", &script])
            .env("TERM", "dumb")
            .env("PS1", "")
            .env("L", LOCKSET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("setsid and sh");
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        // It ends with the shell, when the last process has closed the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                to.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        let mut terminal = Self {
            _shell: shell,
            keyboard,
            screen,
            read: 0,
        };
        terminal.enter("PS1=; echo rea''dy to begin");
        terminal.shows("ready to begin").await;
        terminal
    }

    /// Types these characters.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line. The output has to differ from the line, because the terminal echoes the line.
    pub(crate) fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// Waits until the screen shows `text` after what was waited for last, and returns what it shows between them.
    pub(crate) async fn shows(&mut self, text: &str) -> String {
        let (screen, read) = (Arc::clone(&self.screen), self.read);
        let find = || screen.lock().unwrap()[read..].find(text);
        let seen = eventually(BOUND, text, async || find().is_some());
        if tokio::time::timeout(BOUND - Duration::from_secs(1), seen)
            .await
            .is_err()
        {
            panic!("no {text:?} in {:?}", &screen.lock().unwrap()[read..]);
        }
        let end = read + find().unwrap();
        let between = self.screen.lock().unwrap()[read..end].to_owned();
        self.read = end + text.len();
        between
    }

    /// Stops the job until the shell has the terminal: a key is lost while no process has the terminal. The
    /// word `Stopped` is no proof: bash does not always print it for a job that stops right after `fg`.
    pub(crate) async fn stop_job(&mut self) {
        const AGAIN: Duration = Duration::from_millis(300);
        for key in 0..10 {
            self.press("\x1a");
            self.enter(&format!("echo ba''ck{key}"));
            let (screen, read) = (Arc::clone(&self.screen), self.read);
            let is_back = || screen.lock().unwrap()[read..].contains("back");
            let seen = eventually(BOUND, "the shell is back", async || is_back());
            if tokio::time::timeout(AGAIN, seen).await.is_ok() {
                break;
            }
        }
        self.shows("back").await;
    }

    /// The screen after the text that was waited for last.
    pub(crate) fn rest(&self) -> String {
        self.screen.lock().unwrap()[self.read..].to_owned()
    }
}
