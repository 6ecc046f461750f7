//! The messages between runner and supervisor: one line each, over a socket that no other process has.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::Signal;

use super::clock::{Moment, Until};
use super::sender::Message;
use crate::status::Exit;

/// From the runner to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Let the command begin.
    Go,
    /// The lock is held until this time.
    Until(Until),
    /// Pass on a signal.
    Signal(i32),
    /// The lock is lost: kill the group.
    Kill,
}

/// From the supervisor to the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command waits for [`Order::Go`]. This is its process id and the id of its group.
    Ready(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended like this, whether the supervisor had asked it to end because of the lock, and whether the
    /// command had begun.
    Ended { exit: Exit, told: bool, begun: bool },
}

/// A signal that stops the group replaces an unsent SIGCONT, and the other way round.
const CONT: i32 = Signal::CONT.as_raw();
const STOPS: [i32; 3] = [
    Signal::TSTP.as_raw(),
    Signal::TTIN.as_raw(),
    Signal::TTOU.as_raw(),
];

impl Message for Order {
    fn line(self) -> String {
        match self {
            Self::Go => "go\n".to_owned(),
            Self::Until(until) => format!("until {} {}\n", until.terminate.0, until.kill.0),
            Self::Signal(signal) => format!("signal {signal}\n"),
            Self::Kill => "kill\n".to_owned(),
        }
    }

    /// The newest end of the lock counts. Each unsent signal is kept once, as in the kernel. After the kill
    /// nothing counts.
    fn join(self, waiting: &mut VecDeque<Self>) {
        let is_stop =
            |order: &Self| matches!(order, Self::Signal(signal) if STOPS.contains(signal));
        match self {
            Self::Kill => waiting.clear(),
            Self::Until(_) => {
                let older = waiting
                    .iter_mut()
                    .find(|order| matches!(order, Self::Until(_)));
                if let Some(older) = older {
                    *older = self;
                }
            }
            Self::Signal(CONT) => waiting.retain(|order| !is_stop(order)),
            Self::Signal(_) if is_stop(&self) => {
                waiting.retain(|order| *order != Self::Signal(CONT));
            }
            Self::Signal(_) | Self::Go => {}
        }
        if !waiting.contains(&self) && !waiting.contains(&Self::Kill) {
            waiting.push_back(self);
        }
    }
}

impl Order {
    pub(super) fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match *words {
            ["go"] => Self::Go,
            ["kill"] => Self::Kill,
            ["signal", signal] => Self::Signal(signal.parse().ok()?),
            ["until", terminate, kill] => Self::Until(Until {
                terminate: Moment(terminate.parse().ok()?),
                kill: Moment(kill.parse().ok()?),
            }),
            _ => return None,
        })
    }
}

impl Message for Report {
    fn line(self) -> String {
        match self {
            Self::Ready(pid) => format!("ready {pid}\n"),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
            Self::Ended { exit, told, begun } => {
                let Exit { status, by_signal } = exit;
                format!("ended {status} {by_signal} {told} {begun}\n")
            }
        }
    }

    /// Of several stops the last counts, and none once the command has ended.
    fn join(self, waiting: &mut VecDeque<Self>) {
        if !matches!(self, Self::Ready(_)) {
            waiting.retain(|report| !matches!(report, Self::Stopped(_)));
        }
        waiting.push_back(self);
    }
}

impl Report {
    pub(super) fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match *words {
            ["ready", pid] => Self::Ready(pid.parse().ok()?),
            ["stopped", signal] => Self::Stopped(signal.parse().ok()?),
            ["ended", status, by_signal, told, begun] => Self::Ended {
                exit: Exit {
                    status: status.parse().ok()?,
                    by_signal: by_signal.parse().ok()?,
                },
                told: told.parse().ok()?,
                begun: begun.parse().ok()?,
            },
            _ => return None,
        })
    }
}

/// Sends a file over the socket: the supervisor's own standard input is the socket.
pub(super) fn send_file(socket: &UnixStream, file: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let file = [file.as_fd()];
    files.push(SendAncillaryMessage::ScmRights(&file));
    sendmsg(
        socket,
        &[IoSlice::new(b"f")],
        &mut files,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// The socket that is this process's standard input. What [`send_file`] sends over it takes its place.
pub(super) fn take_socket() -> io::Result<UnixStream> {
    let socket: UnixStream = rustix::stdio::stdin().try_clone_to_owned()?.into();
    rustix::stdio::dup2_stdin(receive_file(&socket)?)?;
    Ok(socket)
}

fn receive_file(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut into, &mut files, RecvFlags::CMSG_CLOEXEC)?;
    let received = files.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    received.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status;

    fn waiting<M: Message>(messages: &[M]) -> Vec<M> {
        let mut waiting = VecDeque::new();
        for message in messages {
            message.join(&mut waiting);
        }
        waiting.into()
    }

    #[test]
    fn only_messages_that_still_matter_are_kept() {
        use Order::{Go, Kill, Signal as Pass};
        let until = |moment| {
            Order::Until(Until {
                terminate: Moment(moment),
                kill: Moment(moment),
            })
        };
        let (term, usr, tstp) = (Pass(15), Pass(10), Pass(Signal::TSTP.as_raw()));
        let cont = Pass(CONT);
        let cases: [(&[Order], &[Order]); 8] = [
            (&[until(1), Go], &[until(1), Go]),
            // At its old place, so that the supervisor knows the newest end before it passes on the signals
            // behind it.
            (
                &[until(1), usr, until(2), until(3), term],
                &[until(3), usr, term],
            ),
            (&[usr, term, usr, usr], &[usr, term]),
            (&[tstp, usr, cont], &[usr, cont]),
            (&[term, cont, tstp], &[term, tstp]),
            (&[tstp, cont, tstp, cont], &[cont]),
            (&[until(1), Go, usr, Kill], &[Kill]),
            (&[Kill, until(1), usr, cont, Kill], &[Kill]),
        ];
        for (sent, expected) in cases {
            assert_eq!(waiting(sent), expected, "{sent:?}");
        }
        let ended = Report::Ended {
            exit: status::OK,
            told: false,
            begun: true,
        };
        let (ready, stopped) = (Report::Ready(7), Report::Stopped);
        for (sent, expected) in [
            (vec![ready, stopped(20)], vec![ready, stopped(20)]),
            (
                vec![ready, stopped(20), stopped(21)],
                vec![ready, stopped(21)],
            ),
            (vec![stopped(20), ended], vec![ended]),
        ] {
            assert_eq!(waiting(&sent), expected, "{sent:?}");
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let until = Until {
            terminate: Moment(12),
            kill: Moment(34),
        };
        for order in [
            Order::Go,
            Order::Until(until),
            Order::Signal(15),
            Order::Kill,
        ] {
            assert_eq!(Order::read(order.line().trim_end()), Some(order));
        }
        let ended = Report::Ended {
            exit: status::signalled(Signal::TERM),
            told: true,
            begun: false,
        };
        for report in [Report::Ready(77), Report::Stopped(20), ended] {
            assert_eq!(Report::read(report.line().trim_end()), Some(report));
        }
        assert_eq!(Order::read("until 12"), None);
        assert_eq!(Report::read("ended x false true true"), None);
    }
}
