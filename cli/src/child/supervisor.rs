//! The supervisor: starts the command, passes signals on, and ends the group before the end of the lock or when
//! the runner is gone. The decisions are in `watch.rs`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::clock::{Due, Moment};
use super::command::{BECOME, this_program};
use super::control::{self, Order, Report};
use super::group::Group;
use super::sender::Sender;
use super::signals::{Signals, is_ending};
use super::watch::{LOOK, Watch};
use crate::output::complain;
use crate::status::{self, Exit};

/// The clock is read at least this often: timers stand still while the machine is suspended.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// The number of orders that are read before the first of them is obeyed.
const ORDERS_MAX: usize = 1024;

/// Supervises the command in `arguments`, and returns when the command has ended.
pub(super) fn run(arguments: Vec<OsString>) -> Exit {
    // On this thread: the death signal of the command is tied to the thread that starts it.
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

/// A name other than the runner's: `killall lockset` must not kill the process that cleans up.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn prepare() {
    use rustix::process::{set_child_subreaper, set_parent_process_death_signal};
    use rustix::thread::set_name;
    let _ = set_name(c"lock-supervisor");
    // A stopped supervisor would not see the end of the runner, so the kernel continues it.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    // Orphans of the command become children of this process, which reaps them: a zombie would count as a
    // member of the group.
    let _ = set_child_subreaper(Some(getpid()));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn prepare() {}

async fn supervise(arguments: &[OsString]) -> io::Result<()> {
    prepare();
    let socket = control::take_socket()?;
    socket.set_nonblocking(true)?;
    let (orders, reports) = tokio::net::UnixStream::from_std(socket)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    let mut changes = signal(SignalKind::child())?;
    // A signal to all processes of a service reaches this one, too. The group gets the signal directly, and
    // from the runner.
    let mut asked = Signals::ending()?;
    // The default action of many other signals would end this process, and the command with it.
    asked.all()?;
    let mut supervisor = Supervisor::start(arguments, reports)?;
    let mut has_runner = true;
    loop {
        let pause = supervisor.pause();
        let mut told = Vec::new();
        tokio::select! {
            order = orders.next_line(), if has_runner => match order {
                Ok(Some(line)) => told.push(line),
                // The runner has ended, so the lock is not renewed.
                _ => {
                    has_runner = false;
                    supervisor.give_up();
                }
            },
            () = supervisor.reports.sent() => {}
            _ = changes.recv() => {}
            _ = asked.next_ending() => supervisor.watch.asked(),
            () = sleep(pause) => {}
        }
        // In any order: after a stop of this process the known end may have passed, although the lock was
        // renewed. After this the runtime has polled the socket.
        yield_now().await;
        while has_runner
            && told.len() < ORDERS_MAX
            && let Some(Ok(Some(line))) = orders.next_line().now_or_never()
        {
            told.push(line);
        }
        supervisor.obey_all(told.iter().filter_map(|line| Order::read(line)));
        supervisor.look_at_clock();
        supervisor.look_at_children()?;
        if let Some(report) = supervisor.look_at_group() {
            supervisor.reports.send(report);
            supervisor.reports.flush().await;
            return Ok(());
        }
    }
}

struct Supervisor {
    command: Pid,
    group: Group,
    reports: Sender<Report>,
    watch: Watch,
    has_begun: bool,
    /// Whether the group may be continued: it begins, or it got a signal that asks it to end.
    may_go_on: bool,
    /// Has something to read if the command could not be executed.
    failed: UnixStream,
}

impl Supervisor {
    fn start(arguments: &[OsString], reports: OwnedWriteHalf) -> io::Result<Self> {
        let (failed, theirs) = UnixStream::pair()?;
        control::send_file(&failed, rustix::stdio::stdin())?;
        failed.set_nonblocking(true)?;
        let child = Command::new(this_program())
            .arg0("lockset")
            .arg(BECOME)
            .arg(getpid().as_raw_pid().to_string())
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()?;
        let command = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let command = command.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            command,
            group: Group(command),
            reports: Sender::new(reports),
            watch: Watch::new(),
            has_begun: false,
            may_go_on: false,
            failed,
        })
    }

    /// Only the newest message about the lock counts, for earlier messages as well.
    fn obey_all(&mut self, orders: impl Iterator<Item = Order>) {
        let (ends, others): (Vec<_>, Vec<_>) =
            orders.partition(|order| matches!(order, Order::Until(_)));
        for order in ends.into_iter().chain(others) {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Until(until) => self.watch.renewed(until),
            Order::Kill => self.give_up(),
            Order::Go => {
                (self.has_begun, self.may_go_on) = (true, true);
                self.pass_on(Signal::CONT);
            }
            Order::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.pass_on(signal);
                }
            }
        }
    }

    /// Not after the end of the lock: a stopped command must not go on then. Nor does one begin that way.
    fn pass_on(&mut self, signal: Signal) {
        self.look_at_clock();
        if self.watch.is_killed() {
            return;
        }
        if is_ending(signal) {
            self.watch.asked();
            self.may_go_on = true;
        }
        if signal != Signal::CONT || self.may_go_on {
            self.group.signal(signal);
        }
    }

    fn look_at_clock(&mut self) {
        let due = self.watch.due(Moment::now());
        self.tell(due);
    }

    fn give_up(&mut self) {
        let due = self.watch.give_up(Moment::now());
        self.tell(due);
    }

    fn tell(&self, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Terminate => {
                self.group.signal(Signal::TERM);
                // A stopped process does not act on the signal.
                self.group.signal(Signal::CONT);
            }
            Due::Kill => self.group.kill(),
        }
    }

    fn pause(&self) -> Duration {
        let longest = if self.watch.has_ended() {
            LOOK
        } else {
            LOOK_MAX
        };
        self.watch.pause(Moment::now()).min(longest)
    }

    /// The state of the command, and of the rest of its group.
    fn look_at_children(&mut self) -> io::Result<()> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        loop {
            let (pid, changed) = match wait(options) {
                Ok(Some(change)) => change,
                Ok(None) | Err(Errno::CHILD) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let is_command = pid == self.command;
            match changed.stopping_signal() {
                Some(_) if !self.has_begun => {
                    self.reports.send(Report::Ready(self.command.as_raw_pid()));
                }
                // Once the command has ended, what it left is the job that a key has stopped.
                Some(signal) if is_command || self.watch.has_ended() && self.group.has(pid) => {
                    self.reports.send(Report::Stopped(signal));
                }
                None if is_command => self.watch.ended(Moment::now(), exit_of(changed)),
                _ => {}
            }
        }
    }

    /// The report of the ended command, and the processes of its group that have to end with it.
    fn look_at_group(&mut self) -> Option<Report> {
        if !self.watch.has_ended() {
            return None;
        }
        let is_empty = self.group.is_empty();
        let end = self.watch.end(Moment::now(), is_empty);
        if end.is_none() && self.watch.is_killed() {
            // Processes that began while the others were killed.
            self.group.kill();
        }
        let (exit, told) = end?;
        let has_failed = matches!((&self.failed).read(&mut [0]), Ok(1));
        Some(Report::Ended {
            exit,
            told,
            begun: self.has_begun && !has_failed,
        })
    }
}

/// The status as a shell has it: 128 + n for a command that a signal ended.
fn exit_of(changed: WaitStatus) -> Exit {
    let signal = changed.terminating_signal();
    let status = changed
        .exit_status()
        .or_else(|| signal.map(|signal| 128 + signal));
    Exit {
        status: status
            .and_then(|status| u8::try_from(status).ok())
            .unwrap_or(status::INTERNAL.status),
        by_signal: signal.is_some(),
    }
}
