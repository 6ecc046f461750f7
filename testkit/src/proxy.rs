//! A TCP proxy that stands between a client and its server and misbehaves on demand.
//!
//! Invariant: a fault is in force when the call that asks for it returns. No byte that reaches the
//! proxy after that is treated by the old rules, because both sides decide under one lock.
//!
//! The proxy runs on a thread and a runtime of its own: a test may pause the time of its runtime, block
//! it or shut it down, and the network between client and server does not change.

mod pump;
mod rules;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{ports, rights};
use rules::{Flow, Rules};

/// A fault-injecting TCP proxy on a port of 127.0.0.1, in front of one server.
///
/// Requests are the bytes from a client to the server, replies those from the server to a client. A
/// chunk is what one read of a socket gives: for small commands, usually all that the other side wrote
/// at once, which may be part of a command, one command or many.
///
/// A connection gets its faults from the moment the proxy accepts it. A client may believe it is
/// connected slightly earlier, but not that it has had an answer.
///
/// Dropping the value closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    rules: SharedRules,
    ended: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `target` that passes everything.
    ///
    /// # Panics
    ///
    /// If there is no port or no thread to be had.
    pub async fn start(target: SocketAddr) -> Self {
        ports::listen()
            .and_then(|listener| Self::try_start(listener, target))
            .unwrap_or_else(|error| panic!("no proxy: {error}"))
    }

    /// A proxy behind a listener that is there already.
    pub(crate) fn try_start(listener: TcpListener, target: SocketAddr) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;

        let rules = SharedRules::default();
        let ended = CancellationToken::new();
        let work = pump::serve(listener, target, rules.clone());
        let stop = ended.clone();
        let thread = thread::Builder::new()
            .name("lockset-proxy".to_owned())
            // The runtime ends with this closure, and with it every task and socket.
            .spawn(move || {
                runtime.block_on(stop.run_until_cancelled(work));
            })?;
        Ok(Self {
            addr,
            rules,
            ended,
            thread: Some(thread),
        })
    }

    /// Where the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT/` of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}/", rights::login(), self.addr)
    }

    /// Passes everything from now on: delivers what [`hold_replies`](Self::hold_replies),
    /// [`hold_requests`](Self::hold_requests) and [`delay_replies`](Self::delay_replies) kept back, ends
    /// [`refuse`](Self::refuse), and disarms one-shot faults that have not fired.
    ///
    /// It does not bring back what was discarded or blackholed, and does not release what
    /// [`hold_request_containing`](Self::hold_request_containing) has caught.
    pub fn pass(&self) {
        self.rules.lock().pass();
    }

    /// Reads and discards all replies from now on, and those held. The closing of a connection still
    /// goes through.
    ///
    /// A connection that has lost a reply gets no more of them, not even after [`pass`](Self::pass): a
    /// stream with a hole is nothing a network delivers, and would pair replies with wrong requests.
    /// New connections, and old ones that lost nothing, pass then.
    pub fn drop_replies(&self) {
        self.rules.lock().set_replies(Flow::Drop);
    }

    /// How many chunks of replies [`drop_replies`](Self::drop_replies) has discarded on their arrival.
    /// What the server has executed may not have been answered yet: a test that goes on to
    /// [`pass`](Self::pass) waits for the loss first.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.rules.lock().dropped
    }

    /// Reads and discards all requests from now on, and those held. The closing of a connection still
    /// goes through. As with [`drop_replies`](Self::drop_replies), a loss is final for its connection.
    pub fn drop_requests(&self) {
        self.rules.lock().set_requests(Flow::Drop);
    }

    /// Keeps back all replies from now on, and a closing by the server, until [`pass`](Self::pass).
    pub fn hold_replies(&self) {
        self.rules.lock().set_replies(Flow::Hold);
    }

    /// Keeps back all requests from now on, and a closing by the client, until [`pass`](Self::pass).
    pub fn hold_requests(&self) {
        self.rules.lock().set_requests(Flow::Hold);
    }

    /// Delivers each chunk of replies this much later than it came, in order.
    pub fn delay_replies(&self, delay: Duration) {
        self.rules.lock().delay_replies(delay);
    }

    /// Makes all connections that exist now go silent both ways for ever, as if the network between
    /// them was gone: no byte passes, and neither side learns when the other closes. New ones pass.
    pub fn blackhole_existing(&self) {
        self.rules.lock().blackhole_existing();
    }

    /// Closes all existing connections on both sides, with all they held.
    ///
    /// One thing survives: requests caught by
    /// [`hold_request_containing`](Self::hold_request_containing). They are in the network, out of
    /// reach of whoever sent them, so they keep the server's side of their connection.
    pub fn cut(&self) {
        self.rules.lock().cut();
    }

    /// Leads new connections to another server, as an address does that has failed over.
    pub fn lead_to(&self, target: SocketAddr) {
        self.rules.lock().target = Some(target);
    }

    /// With `true`, new connections are accepted and closed at once. Existing ones go on.
    pub fn refuse(&self, refuse: bool) {
        self.rules.lock().refuse = refuse;
    }

    /// One-shot: the next chunk of replies on any connection is discarded, and that connection is cut
    /// on both sides. Everything else passes.
    pub fn swallow_next_reply_then_cut(&self) {
        self.rules.lock().swallow_next = true;
    }

    /// One-shot: once a chunk of requests that completes `marker` has been forwarded, the next chunk of
    /// replies on that connection is discarded, and the connection is cut on both sides.
    ///
    /// So the server has executed the command, and the client cannot know. Replies are not matched with
    /// requests: if an earlier request on the same connection is still unanswered, its reply counts.
    ///
    /// # Panics
    ///
    /// If `marker` is empty.
    #[track_caller]
    pub fn swallow_reply_to(&self, marker: &[u8]) {
        assert!(!marker.is_empty(), "an empty marker is in every request");
        self.rules.lock().swallow_marker = Some(marker.to_vec());
    }

    /// How many replies the two swallowing faults have swallowed so far.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.rules.lock().fired
    }

    /// One-shot: the first chunk of requests that completes `marker`, and all later requests on that
    /// connection, are kept back until [`release_held`](Self::release_held).
    ///
    /// They are delivered even if the client has closed its side by then, or the connection was
    /// [`cut`](Self::cut): a late command of a client that is gone.
    ///
    /// # Panics
    ///
    /// If `marker` is empty.
    #[track_caller]
    pub fn hold_request_containing(&self, marker: &[u8]) {
        assert!(!marker.is_empty(), "an empty marker is in every request");
        self.rules.lock().hold_marker = Some(marker.to_vec());
    }

    /// How many connections have requests that
    /// [`hold_request_containing`](Self::hold_request_containing) has caught and not released.
    #[must_use]
    pub fn held(&self) -> usize {
        self.rules.lock().held()
    }

    /// Delivers all requests that [`hold_request_containing`](Self::hold_request_containing) has caught,
    /// and lets later ones pass. On a blackholed connection they stay lost.
    pub fn release_held(&self) {
        self.rules.lock().release_held();
    }

    /// How many connections are open now, seen from the clients: neither closed by the client nor by
    /// the proxy. Blackholed ones count until their client closes them.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.rules.lock().open()
    }

    /// How many connections clients have asked for so far, those included that were
    /// [refused](Self::refuse).
    #[must_use]
    pub fn asked_for(&self) -> u64 {
        self.rules.lock().asked_for
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.cancel();
        if let Some(thread) = self.thread.take() {
            // It only fails if the thread has panicked, which has been printed already.
            let _ = thread.join();
        }
    }
}

/// The rules, shared by the test's thread and the proxy's own.
#[derive(Clone, Debug, Default)]
struct SharedRules(Arc<Mutex<Rules>>);

impl SharedRules {
    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
