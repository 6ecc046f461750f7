//! A TCP proxy between a client and its server that causes faults on demand.
//!
//! Invariant: a fault is in force when the call that requests it returns. Both sides decide under
//! one lock, so the old rules do not apply to any byte that arrives later.
//!
//! The proxy has its own thread and runtime, so the network between client and server does not
//! change when a test pauses, blocks or shuts down its runtime.

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
/// Requests are the bytes from a client to the server, and replies those from the server to a
/// client. A chunk is the result of one read of a socket: for small commands, usually everything
/// that the other side wrote at once, which may be part of a command, one command or many.
///
/// Faults apply to a connection as soon as the proxy accepts it. A client may consider itself
/// connected slightly earlier, but has no answer by then.
///
/// Dropping the value closes all connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    rules: SharedRules,
    ended: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `target` that forwards everything.
    ///
    /// # Panics
    ///
    /// If no port or no thread is available.
    pub async fn start(target: SocketAddr) -> Self {
        ports::listen()
            .and_then(|listener| Self::try_start(listener, target))
            .unwrap_or_else(|error| panic!("no proxy: {error}"))
    }

    /// Starts a proxy on an existing listener.
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
            // The runtime and its tasks and sockets end with this closure.
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

    /// The proxy's address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT/` of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}/", rights::login(), self.addr)
    }

    /// Forwards everything: delivers what [`hold_replies`](Self::hold_replies),
    /// [`hold_requests`](Self::hold_requests) and [`delay_replies`](Self::delay_replies) held back,
    /// ends [`refuse`](Self::refuse), and disarms one-shot faults that have not fired.
    ///
    /// Does not restore discarded bytes or blackholed connections, nor release requests caught by
    /// [`hold_request_containing`](Self::hold_request_containing).
    pub fn pass(&self) {
        self.rules.lock().pass();
    }

    /// Discards all replies, including held ones. Closing a connection still works.
    ///
    /// A connection that has lost a reply receives no further replies, even after
    /// [`pass`](Self::pass): a network delivers no stream with gaps, which would match replies to
    /// the wrong requests. New connections and connections without a loss continue after `pass`.
    pub fn drop_replies(&self) {
        self.rules.lock().set_replies(Flow::Drop);
    }

    /// The number of chunks that [`drop_replies`](Self::drop_replies) has discarded on arrival. The
    /// server may not have answered an executed command yet, so a test that goes on to
    /// [`pass`](Self::pass) first waits for the loss.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.rules.lock().dropped
    }

    /// Discards all requests, including held ones. Closing a connection still works. As with
    /// [`drop_replies`](Self::drop_replies), a loss is final for its connection.
    pub fn drop_requests(&self) {
        self.rules.lock().set_requests(Flow::Drop);
    }

    /// The number of chunks that [`drop_requests`](Self::drop_requests) has discarded, on arrival or
    /// while they were held. A test that goes on to [`pass`](Self::pass) first waits for the loss.
    #[must_use]
    pub fn dropped_requests(&self) -> usize {
        self.rules.lock().dropped_requests
    }

    /// Holds back all replies, and closes by the server, until [`pass`](Self::pass).
    pub fn hold_replies(&self) {
        self.rules.lock().set_replies(Flow::Hold);
    }

    /// Holds back all requests, and closes by the client, until [`pass`](Self::pass).
    pub fn hold_requests(&self) {
        self.rules.lock().set_requests(Flow::Hold);
    }

    /// Delivers each chunk of replies this much later than it arrived, in order.
    pub fn delay_replies(&self, delay: Duration) {
        self.rules.lock().delay_replies(delay);
    }

    /// Silences all existing connections in both directions forever, as if the network had failed:
    /// no byte passes, and neither side notices when the other closes. New connections work.
    pub fn blackhole_existing(&self) {
        self.rules.lock().blackhole_existing();
    }

    /// Closes all existing connections on both sides, with everything they held.
    ///
    /// Requests caught by [`hold_request_containing`](Self::hold_request_containing) survive: they
    /// are in the network, out of the sender's reach, so they keep the server's side of their
    /// connection open.
    pub fn cut(&self) {
        self.rules.lock().cut();
    }

    /// Connects new clients to another server, like an address that has failed over.
    pub fn lead_to(&self, target: SocketAddr) {
        self.rules.lock().target = Some(target);
    }

    /// With `true`, new connections are accepted and closed at once. Existing connections continue.
    pub fn refuse(&self, refuse: bool) {
        self.rules.lock().refuse = refuse;
    }

    /// One-shot: discards the next chunk of replies on any connection, and cuts that connection on
    /// both sides. Everything else passes.
    pub fn swallow_next_reply_then_cut(&self) {
        self.rules.lock().swallow_next = true;
    }

    /// One-shot: after a chunk of requests that completes `marker` has been forwarded, discards the
    /// next chunk of replies on that connection and cuts the connection on both sides.
    ///
    /// So the server has executed the command, and the client cannot know. Replies are not matched
    /// with requests: the reply to an earlier unanswered request on the same connection counts.
    ///
    /// # Panics
    ///
    /// If `marker` is empty.
    #[track_caller]
    pub fn swallow_reply_to(&self, marker: &[u8]) {
        assert!(!marker.is_empty(), "an empty marker is in every request");
        self.rules.lock().swallow_marker = Some(marker.to_vec());
    }

    /// Cuts each connection on both sides once its requests complete `marker`, until [`pass`](Self::pass).
    /// The completing chunk is not delivered.
    ///
    /// # Panics
    ///
    /// If `marker` is empty.
    #[track_caller]
    pub fn cut_at(&self, marker: &[u8]) {
        assert!(!marker.is_empty(), "an empty marker is in every request");
        self.rules.lock().cut_marker = Some(marker.to_vec());
    }

    /// How many replies the two swallowing faults have discarded, and how many connections
    /// [`cut_at`](Self::cut_at) has cut.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.rules.lock().fired
    }

    /// One-shot: holds back the first chunk of requests that completes `marker`, and all later
    /// requests on that connection, until [`release_held`](Self::release_held).
    ///
    /// They are delivered even if the client has closed its side, or the connection was
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

    /// The number of connections with requests that
    /// [`hold_request_containing`](Self::hold_request_containing) has caught and not released.
    #[must_use]
    pub fn held(&self) -> usize {
        self.rules.lock().held()
    }

    /// Delivers all requests caught by [`hold_request_containing`](Self::hold_request_containing),
    /// and forwards later ones. On a blackholed connection they stay lost.
    pub fn release_held(&self) {
        self.rules.lock().release_held();
    }

    /// The number of connections that neither the client nor the proxy has closed. Blackholed
    /// connections count until their client closes them.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.rules.lock().open()
    }

    /// The number of connections that clients have requested, including [refused](Self::refuse)
    /// ones.
    #[must_use]
    pub fn asked_for(&self) -> u64 {
        self.rules.lock().asked_for
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.cancel();
        if let Some(thread) = self.thread.take() {
            // Joining fails only if the thread has panicked, which has been printed already.
            let _ = thread.join();
        }
    }
}

/// The rules, shared by the test's thread and the proxy's.
#[derive(Clone, Debug, Default)]
struct SharedRules(Arc<Mutex<Rules>>);

impl SharedRules {
    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
