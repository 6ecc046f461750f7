//! The received bytes of a stream.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::sync::Notify;

/// Bytes that have arrived for a client and are unread.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<Arrived>,
    /// Told when the connection is made, or is over.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Arrived {
    bytes: VecDeque<u8>,
    is_open: bool,
    is_over: bool,
    reader: Option<Waker>,
}

impl Inbox {
    fn change(&self, change: impl FnOnce(&mut Arrived)) {
        let reader = {
            let mut state = self.state.lock();
            change(&mut state);
            state.reader.take()
        };
        self.changed.notify_one();
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    pub(super) fn receive(&self, bytes: &[u8]) {
        self.change(|state| state.bytes.extend(bytes));
    }

    pub(super) fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    pub(super) async fn opened(&self) -> io::Result<()> {
        loop {
            {
                let state = self.state.lock();
                if state.is_over {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                if state.is_open {
                    return Ok(());
                }
            }
            self.changed.notified().await;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    pub(super) fn poll_read(
        &self,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if state.bytes.is_empty() && !state.is_over {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = state.bytes.len().min(to.remaining());
        let bytes: Vec<u8> = state.bytes.drain(..count).collect();
        to.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}
