//! The supervisor: starts the command, passes signals on, and ends its group when the lock has to be given
//! up or the runner is gone.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, waitpid};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::clock::{Due, Moment, Until};
use super::control::{self, Order, Report};
use super::group::Group;
use super::program::{BECOME, this_program};
use super::sender::Sender;
use crate::output::complain;
use crate::status;

/// The clock is read at least this often: timers stand still while the machine is suspended.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// How long what was killed may take to disappear.
const DEATH_MAX: Duration = Duration::from_secs(2);

/// Supervises the command in `arguments`, and ends when it has ended.
pub(super) fn run(arguments: Vec<OsString>) -> u8 {
    // On this thread, whose end is the one that the command is told of.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(supervise(&arguments))) {
        Ok(()) => status::OK,
        Err(error) => {
            complain(&format!("the supervisor of the command: {error}"));
            status::INTERNAL
        }
    }
}

/// Not the name of the runner: who kills that by name does not mean the one who cleans up behind it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn prepare() {
    use rustix::{process::set_parent_process_death_signal, thread::set_name};
    let _ = set_name(c"lock-supervisor");
    // If it is stopped when the runner ends, it has to go on to see that.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn prepare() {}

async fn supervise(arguments: &[OsString]) -> io::Result<()> {
    prepare();
    let socket: UnixStream = rustix::stdio::stdin().try_clone_to_owned()?.into();
    rustix::stdio::dup2_stdin(control::receive_file(&socket)?)?;
    socket.set_nonblocking(true)?;
    let (orders, reports) = tokio::net::UnixStream::from_std(socket)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    let mut changes = signal(SignalKind::child())?;
    let mut supervisor = Supervisor::start(arguments, reports)?;
    let mut has_runner = true;
    loop {
        let pause = supervisor.pause();
        tokio::select! {
            order = orders.next_line(), if has_runner => match order {
                Ok(Some(line)) => {
                    if let Some(order) = Order::read(&line) {
                        supervisor.obey(order);
                    }
                }
                // The runner has ended, and nobody renews the lock.
                _ => {
                    has_runner = false;
                    supervisor.tell(Due::Kill);
                }
            },
            () = supervisor.reports.sent() => {}
            _ = changes.recv() => {}
            () = sleep(pause) => {}
        }
        supervisor.look_at_clock();
        if let Some(status) = supervisor.look_at_command()? {
            return supervisor.end(status).await;
        }
    }
}

struct Supervisor {
    command: Pid,
    group: Group,
    reports: Sender<Report>,
    /// Unknown until the runner has said so.
    until: Option<Until>,
    /// The most that the group was told because of the lock.
    told: Due,
    has_begun: bool,
}

impl Supervisor {
    fn start(arguments: &[OsString], reports: OwnedWriteHalf) -> io::Result<Self> {
        let child = Command::new(this_program())
            .arg0("lockset")
            .arg(BECOME)
            .arg(getpid().as_raw_pid().to_string())
            .args(arguments)
            .process_group(0)
            .spawn()?;
        let command = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let command = command.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            command,
            group: Group(command),
            reports: Sender::new(reports),
            until: None,
            told: Due::Nothing,
            has_begun: false,
        })
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Until(until) => self.until = Some(until),
            Order::Kill => self.tell(Due::Kill),
            Order::Go => {
                self.has_begun = true;
                self.pass_on(Signal::CONT);
            }
            Order::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.pass_on(signal);
                }
            }
        }
    }

    /// Not beyond the moment at which the lock has to be given up: a stopped command must not go on then.
    fn pass_on(&mut self, signal: Signal) {
        self.look_at_clock();
        if self.told < Due::Kill {
            self.group.signal(signal);
        }
    }

    fn look_at_clock(&mut self) {
        if let Some(until) = self.until {
            self.tell(until.due(Moment::now()));
        }
    }

    /// Tells the group to end, each way once.
    fn tell(&mut self, due: Due) {
        if due <= self.told {
            return;
        }
        self.told = due;
        match due {
            Due::Nothing => {}
            Due::Terminate => {
                self.group.signal(Signal::TERM);
                // It cannot act on it while it is stopped.
                self.group.signal(Signal::CONT);
            }
            Due::Kill => self.group.kill(),
        }
    }

    fn pause(&self) -> Duration {
        let pause = self.until.map(|until| until.pause(Moment::now()));
        pause.unwrap_or(LOOK_MAX).min(LOOK_MAX)
    }

    /// What became of the command; its status if it has ended.
    fn look_at_command(&mut self) -> io::Result<Option<u8>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Some((_, changed)) = waitpid(Some(self.command), options)? {
            if let Some(signal) = changed.stopping_signal() {
                let report = if self.has_begun {
                    Report::Stopped(signal)
                } else {
                    Report::Ready(self.command.as_raw_pid())
                };
                self.reports.send(report);
            } else {
                return Ok(Some(status_of(changed)));
            }
        }
        Ok(None)
    }

    /// The command has ended. If that was because of the lock, so does the rest of its group.
    async fn end(mut self, status: u8) -> io::Result<()> {
        if self.told == Due::Terminate {
            let until = self.until.map(|until| until.pause(Moment::now()));
            self.group.wait_empty(until.unwrap_or_default()).await;
        }
        if self.told > Due::Nothing {
            if !self.group.is_empty() {
                self.group.kill();
            }
            self.group.wait_empty(DEATH_MAX).await;
        }
        let told = self.told > Due::Nothing;
        self.reports.send(Report::Ended { status, told });
        self.reports.flush().await;
        Ok(())
    }
}

/// As a shell has it: 128 + n for a command that a signal ended.
fn status_of(changed: WaitStatus) -> u8 {
    let signalled = || Some(128 + changed.terminating_signal()?);
    let status = changed.exit_status().or_else(signalled);
    status
        .and_then(|status| u8::try_from(status).ok())
        .unwrap_or(status::INTERNAL)
}
