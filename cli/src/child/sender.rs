//! The messages of one side, as lines on the socket: written as soon as the other side reads.
//!
//! Invariant: neither side blocks on the other, which may be stopped for any time. The number of unsent
//! messages is bounded by their kinds: a newer message replaces the older ones that it makes void.

use std::collections::VecDeque;
use std::future::pending;
use std::io;

use tokio::net::unix::OwnedWriteHalf;

/// The unsent messages.
pub(super) trait Message: Copy {
    /// With the end of the line.
    fn line(self) -> String;

    /// Adds a message to the unsent ones.
    fn join(self, waiting: &mut VecDeque<Self>);
}

/// One end of the socket.
pub(super) struct Sender<M> {
    socket: OwnedWriteHalf,
    waiting: VecDeque<M>,
    /// The rest of a line that was written in part.
    rest: Vec<u8>,
}

impl<M: Message> Sender<M> {
    pub(super) fn new(socket: OwnedWriteHalf) -> Self {
        Self {
            socket,
            waiting: VecDeque::new(),
            rest: Vec::new(),
        }
    }

    /// Sends it now, or, while [`sent`](Self::sent) is polled, as soon as there is room.
    pub(super) fn send(&mut self, message: M) {
        message.join(&mut self.waiting);
        self.write();
    }

    /// Completes when all unsent messages are sent; never, if there are none. Cancel safe.
    pub(super) async fn sent(&mut self) {
        if self.is_idle() {
            return pending().await;
        }
        self.flush().await;
    }

    /// Sends all messages, however long it takes.
    pub(super) async fn flush(&mut self) {
        while !self.is_idle() {
            // An error shows at the next write.
            let _ = self.socket.writable().await;
            self.write();
        }
    }

    fn is_idle(&self) -> bool {
        self.rest.is_empty() && self.waiting.is_empty()
    }

    fn write(&mut self) {
        loop {
            if self.rest.is_empty() {
                let Some(message) = self.waiting.pop_front() else {
                    return;
                };
                self.rest = message.line().into_bytes();
            }
            match self.socket.try_write(&self.rest) {
                Ok(taken) => drop(self.rest.drain(..taken)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The other side is gone; the reader of the socket notices.
                Err(_) => {
                    self.rest.clear();
                    self.waiting.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::super::clock::{Moment, Until};
    use super::super::control::Order;
    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    fn until(moment: u64) -> Order {
        Order::Until(Until {
            terminate: Moment(moment),
            kill: Moment(moment),
        })
    }

    /// Nothing is awaited until the socket is full many times over.
    #[tokio::test]
    async fn a_reader_that_stands_still_gets_what_still_matters_when_it_goes_on() {
        const MANY: u64 = 10_000;
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_reports, socket) = ours.into_split();
        let mut sender = Sender::new(socket);
        for number in 1..=MANY {
            sender.send(until(number));
            sender.send(Order::Signal(10 + i32::from(number % 2 == 0)));
        }
        assert!(!sender.is_idle(), "the socket is not full");
        assert!(sender.waiting.len() <= 3, "{:?}", sender.waiting);
        let reading = async {
            let mut lines = BufReader::new(theirs).lines();
            let (mut last, mut signals) = (0, BTreeSet::new());
            while last < MANY || signals.len() < 2 {
                match Order::read(&lines.next_line().await.unwrap().unwrap()) {
                    Some(Order::Until(until)) => last = until.kill.0,
                    Some(Order::Signal(signal)) if last > 0 => _ = signals.insert(signal),
                    other => panic!("{other:?}"),
                }
            }
        };
        let both = async { tokio::join!(sender.flush(), reading) };
        timeout(BOUND, both).await.expect("all of it arrives");
        assert!(sender.is_idle());
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_reports, socket) = ours.into_split();
        let mut sender = Sender::new(socket);
        drop(theirs);
        sender.send(Order::Go);
        timeout(BOUND, sender.flush()).await.expect("it ends");
        let sent = timeout(Duration::from_millis(1), sender.sent()).await;
        assert!(sent.is_err(), "nothing waits");
    }
}
