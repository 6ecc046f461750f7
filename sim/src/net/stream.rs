//! A client's end of a connection, which carries bytes as a socket does.
//!
//! Above it is the library as it is: its handshake, its links, its topologies.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lockset::simulated::Network;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::event::{Direction, What};
use super::inbox::Inbox;
use super::resp;
use super::state::Net;
use super::wire::WireId;
use crate::process::Process;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The network as one client of a process finds it.
#[derive(Debug)]
pub(crate) struct Sockets {
    net: Arc<Net>,
    pub(crate) client: usize,
    process: Arc<Process>,
}

impl Sockets {
    pub(crate) fn new(net: &Arc<Net>, process: Arc<Process>) -> Self {
        let client = net.add_peer();
        Self {
            net: Arc::clone(net),
            client,
            process,
        }
    }

    async fn opened(&self, host: &str, port: u16) -> io::Result<Stream> {
        let address = format!("{host}:{port}");
        let inbox = Arc::<Inbox>::default();
        let stream = self.net.with(|state| {
            let server = state
                .slots
                .iter()
                .position(|slot| slot.address == address)?;
            Some(Stream {
                net: Arc::clone(&self.net),
                wire: state.dial(self.client, server, &inbox),
                inbox: Arc::clone(&inbox),
                written: Vec::new(),
            })
        });
        let stream = stream.ok_or(io::ErrorKind::HostUnreachable)?;
        inbox.opened().await?;
        Ok(stream)
    }
}

impl Network for Sockets {
    fn connect<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<lockset::simulated::Stream>> {
        Box::pin(async move { Ok(Box::new(self.opened(host, port).await?) as _) })
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.process.wrap(task)
    }
}

/// It is closed when it is dropped.
#[derive(Debug)]
struct Stream {
    net: Arc<Net>,
    wire: WireId,
    inbox: Arc<Inbox>,
    /// A command that is not complete.
    written: Vec<u8>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.net.with(|state| state.close(self.wire));
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inbox.poll_read(context, to)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.inbox.is_over() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.written.extend(bytes);
        let commands = resp::take_commands(&mut self.written);
        if !commands.is_empty() {
            let wire = self.wire;
            let sent = What::Commands(wire, commands);
            self.net
                .with(|state| state.post(wire, Direction::ToServer, sent));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
