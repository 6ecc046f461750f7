//! The runner's side: starts the supervisor, tells it how long the lock is held, and passes signals on.
//!
//! Invariant: it never waits for the supervisor. At the end of the lock it kills the group itself if the
//! supervisor is stopped.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_current_process_group, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::clock::{Due, Moment, Until};
use super::command::{SUPERVISE, this_program};
use super::control::{self, Order, Report};
use super::group::Group;
use super::sender::Sender;
use super::signals::{Signals, is_ending};
use super::terminal::Terminal;
use crate::status::Exit;

/// The time that killed processes may take to disappear.
const DEATH_MAX: Duration = Duration::from_secs(2);

/// What an outer `run` has told its command. It is not true of the lock of this one.
const TOLD: [&str; 4] = [
    "LOCKSET_NAME",
    "LOCKSET_HOLDER",
    "LOCKSET_DEADLINE",
    "LOCKSET_TOKEN",
];

/// How the command is ended before the end of its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The time from SIGTERM until the local end of the lock.
    pub(crate) grace: Duration,
    /// The time from SIGKILL until the local end of the lock.
    pub(crate) margin: Duration,
    /// The time between two checks of the remaining lease.
    pub(crate) look: Duration,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, or by a signal that was passed on.
    Command(Exit),
    /// It could not be executed, or was ended before it began.
    NotBegun(Exit),
    /// The command was ended because of the lock.
    Lost,
    /// The supervisor was killed, so the command was too.
    Unsupervised,
}

/// A command and its supervisor.
pub(crate) struct Child {
    supervisor: std::process::Child,
    orders: Sender<Order>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    terminal: Option<Terminal>,
    group: Option<Group>,
    limits: Limits,
    told: Option<Until>,
    /// A stop signal came through this process.
    stop_passed_on: bool,
    /// The command has stopped and was not continued since.
    is_stopped: bool,
}

impl Child {
    /// Starts the supervisor of `command`; the command begins in [`run`](Self::run).
    pub(crate) fn start(
        command: &[OsString],
        environment: Vec<(&'static str, String)>,
        limits: Limits,
    ) -> io::Result<Self> {
        reap_for_supervisor();
        let (ours, theirs) = UnixStream::pair()?;
        control::send_file(&ours, rustix::stdio::stdin())?;
        let mut supervisor = Command::new(this_program());
        for name in TOLD {
            supervisor.env_remove(name);
        }
        let supervisor = supervisor
            .arg0("lockset")
            .arg(SUPERVISE)
            .args(command)
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // A signal to the runner's group is not meant for the supervisor.
            .process_group(0)
            .spawn()?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours)?.into_split();
        Ok(Self {
            supervisor,
            orders: Sender::new(orders),
            reports: BufReader::new(reports).lines(),
            terminal: Terminal::of_this_process(),
            group: None,
            limits,
            told: None,
            stop_passed_on: false,
            is_stopped: false,
        })
    }

    /// Runs the command to its end. `remaining` returns how long the lock is still held, `lost` completes when
    /// it is lost.
    pub(crate) async fn run(
        mut self,
        signals: &mut Signals,
        remaining: impl Fn() -> Duration,
        lost: impl Future<Output = ()>,
    ) -> io::Result<Ended> {
        signals.all()?;
        let mut ticks = interval(self.limits.look);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lost = std::pin::pin!(lost);
        let mut is_lost = false;
        loop {
            let until_overdue = self.until_overdue();
            tokio::select! {
                report = self.reports.next_line() => {
                    let Some(line) = report.ok().flatten() else {
                        return Ok(self.unsupervised().await);
                    };
                    match Report::read(&line) {
                        Some(Report::Ready(pid)) => self.begin(pid, remaining()),
                        Some(Report::Stopped(signal)) => self.stop(signal),
                        Some(Report::Ended { exit, told, begun }) => {
                            return Ok(self.ended(exit, told || is_lost, begun));
                        }
                        None => {}
                    }
                }
                signal = signals.next() => {
                    self.renew(remaining());
                    self.pass_on(signal);
                }
                () = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.lose();
                }
                () = self.orders.sent() => {}
                () = sleep(until_overdue) => self.kill_overdue(remaining()),
                _ = ticks.tick() => self.renew(remaining()),
            }
        }
    }

    /// The command waits: gives it the terminal, and lets it begin.
    fn begin(&mut self, pid: i32, remaining: Duration) {
        self.group = Pid::from_raw(pid).map(Group);
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.offer_to(group);
        }
        self.renew(remaining);
        self.orders.send(Order::Go);
    }

    /// Sends the supervisor the end of the lock if that has changed, and kills the group if the supervisor
    /// fails to.
    fn renew(&mut self, remaining: Duration) {
        let (now, limits) = (Moment::now(), self.limits);
        let until = Until::of(now, remaining, limits.grace, limits.margin);
        if self.told.is_none_or(|told| until.is_news_after(told)) && !remaining.is_zero() {
            self.told = Some(until);
            self.orders.send(Order::Until(until));
        }
        self.kill_overdue(remaining);
    }

    /// Kills the group half of the margin after the supervisor should have done so.
    fn kill_overdue(&mut self, remaining: Duration) {
        let is_over = remaining.is_zero() || self.is_overdue(self.limits.margin / 2);
        if let (Some(group), true) = (self.group, is_over) {
            group.kill();
        }
        if self.is_overdue(DEATH_MAX) {
            // The supervisor is stopped, or it would have reported. Without it, this process kills the rest of
            // the group.
            let _ = self.supervisor.kill();
        }
    }

    /// The time until the runner has to check that the supervisor has killed the group.
    fn until_overdue(&self) -> Duration {
        let overdue = self
            .told
            .map(|told| told.kill.after(self.limits.margin / 2));
        let now = Moment::now();
        match overdue {
            Some(overdue) if overdue > now => now.until(overdue),
            _ => Duration::MAX,
        }
    }

    /// Whether the command should have been killed this long ago.
    fn is_overdue(&self, since: Duration) -> bool {
        let now = Moment::now().before(since);
        self.told.is_some_and(|told| told.due(now) == Due::Kill)
    }

    /// The lock is gone, even if the last message to the supervisor says otherwise.
    fn lose(&mut self) {
        let now = Moment::now();
        self.told = Some(Until {
            terminate: now,
            kill: now,
        });
        self.orders.send(Order::Kill);
        self.wake_supervisor();
        if let Some(group) = self.group {
            group.kill();
        }
    }

    /// A stopped supervisor reads no messages, so it is continued.
    fn wake_supervisor(&self) {
        let supervisor = i32::try_from(self.supervisor.id()).ok();
        if let Some(supervisor) = supervisor.and_then(Pid::from_raw) {
            // The number of an ended child stays reserved until this process has waited for it.
            let _ = kill_process(supervisor, Signal::CONT);
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::TSTP && self.is_stopped && self.has_foreground() {
            // The key came before SIGCONT was seen here, and a stop signal takes away a SIGCONT that is still
            // to be delivered. The command would not notice it, and the shell waits to see this job stop.
            let _ = kill_current_process_group(Signal::STOP);
            return;
        }
        let stops = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        self.stop_passed_on |= stops.contains(&signal);
        if signal == Signal::CONT {
            self.stop_passed_on = false;
            self.is_stopped = false;
            if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
                terminal.offer_to(group);
            }
        }
        self.orders.send(Order::Signal(signal.as_raw()));
        // One of these signals to a stopped command asks it to end now.
        if is_ending(signal) {
            self.is_stopped = false;
            self.wake_supervisor();
            self.orders.send(Order::Signal(Signal::CONT.as_raw()));
        }
    }

    /// Whether the keys of the terminal come to this process.
    fn has_foreground(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_ours)
    }

    /// The command was stopped. Where a shell waits for this process, it has to see that.
    fn stop(&mut self, signal: i32) {
        self.is_stopped = true;
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else {
            if self.stop_passed_on {
                stop_this_process();
            }
            return;
        };
        let is_of_terminal = [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&signal);
        if is_of_terminal && terminal.is_for(group) {
            // The command stopped just before this job came to the foreground, or has yet to get the terminal.
            self.is_stopped = false;
            terminal.give_to(group);
            self.orders.send(Order::Signal(Signal::CONT.as_raw()));
            return;
        }
        let had_terminal = terminal.take_from(group);
        // The command continues with the SIGCONT that is passed on.
        if had_terminal || is_of_terminal {
            let _ = kill_current_process_group(Signal::STOP);
        } else if self.stop_passed_on {
            stop_this_process();
        }
    }

    fn ended(&self, exit: Exit, lost: bool, begun: bool) -> Ended {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            let had = terminal.take_from(group);
            if lost || exit.status > 128 {
                terminal.restore_modes();
            }
            // Ctrl-C is meant for the script that waits for this process, too.
            let keys = [Signal::INT, Signal::QUIT];
            let key = keys
                .into_iter()
                .find(|key| i32::from(exit.status) == 128 + key.as_raw());
            if let (true, true, Some(key)) = (had, terminal.is_shared(), key) {
                let _ = kill_current_process_group(key);
            }
        }
        match (lost, begun) {
            (true, _) => Ended::Lost,
            (false, true) => Ended::Command(exit),
            (false, false) => Ended::NotBegun(exit),
        }
    }

    /// The supervisor is gone, so the runner kills the rest of the group.
    async fn unsupervised(self) -> Ended {
        if let Some(group) = self.group {
            if !group.is_empty() {
                group.kill();
            }
            reap_orphans(group).await;
            if let Some(terminal) = &self.terminal {
                terminal.take_from(group);
                terminal.restore_modes();
            }
        }
        if self.is_overdue(Duration::ZERO) {
            return Ended::Lost;
        }
        Ended::Unsupervised
    }
}

/// Waits until nothing is left of a group whose parent is gone.
async fn reap_orphans(group: Group) {
    let empty = group.wait_empty(DEATH_MAX);
    let reaped = async {
        loop {
            let _ = rustix::process::waitpgid(group.0, WaitOptions::NOHANG);
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = empty => {}
        () = reaped => {}
    }
}

/// A command whose supervisor was killed becomes a child of this process, which sees it end.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn reap_for_supervisor() {
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn reap_for_supervisor() {}

fn stop_this_process() {
    let _ = kill_process(getpid(), Signal::STOP);
}
