//! Decides what the proxy does with each chunk: pure state, no I/O.
//!
//! Every byte passes through here twice. On arrival it is discarded or queued in its lane, and it
//! leaves its lane when no rule holds it back. A queue keeps its order. The end of a side is queued
//! behind its bytes, so held bytes outlive the side that sent them.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
// Not tokio's clock: a test's thread calls in here too, and its runtime may have paused or moved
// its clock.
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The rule for all bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Drop,
    Hold,
}

/// One of the two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// An entry of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    End,
}

/// The answer to the question for the next entry of a lane.
#[derive(Debug)]
pub(super) enum Next {
    Item(Item),
    /// Nothing may leave before this time, unless the lane is woken.
    At(Instant),
    /// Nothing may leave until the lane is woken.
    Later,
    /// The connection is gone.
    Never,
}

/// The faults in force, and all connections.
#[derive(Debug, Default)]
pub(super) struct Rules {
    requests: Flow,
    replies: Flow,
    reply_delay: Duration,
    pub(super) refuse: bool,
    /// The target of new connections, if it is not the original.
    pub(super) target: Option<SocketAddr>,
    pub(super) swallow_next: bool,
    pub(super) swallow_marker: Option<Vec<u8>>,
    pub(super) hold_marker: Option<Vec<u8>>,
    pub(super) cut_marker: Option<Vec<u8>>,
    pub(super) fired: u64,
    pub(super) dropped: u64,
    pub(super) dropped_requests: usize,
    pub(super) asked_for: u64,
    links: BTreeMap<u64, Link>,
    next_id: u64,
}

/// One connection: a client's socket and the server's socket for it.
#[derive(Debug, Default)]
struct Link {
    requests: Lane,
    replies: Lane,
    /// Cancelled to close the client's socket.
    client: CancellationToken,
    /// Cancelled to close the server's socket.
    server: CancellationToken,
    client_gone: bool,
    blackholed: bool,
    /// Requests wait for `release_held`.
    held: bool,
    /// The next reply will be discarded.
    swallow: bool,
    /// The last requests to arrive, to find a marker that is spread over two chunks.
    arrived: Vec<u8>,
    /// The last requests to be forwarded, for the same purpose.
    forwarded: Vec<u8>,
}

/// The queue of one direction of a connection.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<(Instant, Item)>,
    ended: bool,
    /// Bytes were discarded, so none may follow: a network delivers no stream with gaps, and each
    /// side would match replies to the wrong requests.
    lossy: bool,
    wake: Arc<Notify>,
}

/// The handles for the tasks of a new connection.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) id: u64,
    pub(super) client: CancellationToken,
    pub(super) server: CancellationToken,
    pub(super) requests: Arc<Notify>,
    pub(super) replies: Arc<Notify>,
}

impl Rules {
    /// Registers a connection, or returns `None` to refuse it.
    pub(super) fn open_link(&mut self) -> Option<Handles> {
        self.asked_for += 1;
        if self.refuse {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let link = self.links.entry(id).or_default();
        Some(Handles {
            id,
            client: link.client.clone(),
            server: link.server.clone(),
            requests: link.requests.wake.clone(),
            replies: link.replies.wake.clone(),
        })
    }

    /// Removes a connection and closes both of its sides.
    pub(super) fn close_link(&mut self, id: u64) {
        if let Some(link) = self.links.remove(&id) {
            link.close();
        }
    }

    /// Decides about a chunk on arrival.
    pub(super) fn arrive(&mut self, id: u64, direction: Direction, bytes: Vec<u8>) {
        match direction {
            Direction::Requests => self.request_arrives(id, bytes),
            Direction::Replies => self.reply_arrives(id, bytes),
        }
    }

    fn request_arrives(&mut self, id: u64, bytes: Vec<u8>) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if link.blackholed {
            return;
        }
        // Requests caught by a marker are out of reach of other faults.
        if link.requests.lossy || (self.requests == Flow::Drop && !link.held) {
            self.dropped_requests += 1;
            link.requests.lossy = true;
            return;
        }
        if completes(self.cut_marker.as_deref(), &link.arrived, &bytes) {
            self.fired += 1;
            self.close_link(id);
            return;
        }
        if fires(&mut self.hold_marker, &mut link.arrived, &bytes) {
            link.held = true;
        }
        link.requests.push(Instant::now(), Item::Bytes(bytes));
    }

    fn reply_arrives(&mut self, id: u64, bytes: Vec<u8>) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if link.blackholed {
            return;
        }
        if link.swallow || mem::take(&mut self.swallow_next) {
            self.fired += 1;
            self.close_link(id);
            return;
        }
        if link.replies.lossy || self.replies == Flow::Drop {
            self.dropped += 1;
            link.replies.lossy = true;
            return;
        }
        let due = Instant::now() + self.reply_delay;
        link.replies.push(due, Item::Bytes(bytes));
    }

    /// Records that the sender of this direction has closed its side.
    pub(super) fn end(&mut self, id: u64, direction: Direction) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        match direction {
            Direction::Requests => {
                link.client_gone = true;
                if !link.blackholed {
                    link.requests.end(Instant::now());
                }
            }
            Direction::Replies => {
                if !link.blackholed {
                    link.replies.end(Instant::now() + self.reply_delay);
                }
            }
        }
    }

    /// Takes the next entry that may leave this lane.
    pub(super) fn next(&mut self, id: u64, direction: Direction) -> Next {
        let Some(link) = self.links.get_mut(&id) else {
            return Next::Never;
        };
        let (lane, flow, held) = match direction {
            Direction::Requests => (&mut link.requests, self.requests, link.held),
            Direction::Replies => (&mut link.replies, self.replies, false),
        };
        if link.blackholed || held || flow == Flow::Hold {
            return Next::Later;
        }
        match lane.queue.front() {
            None => return Next::Later,
            Some((due, _)) if *due > Instant::now() => return Next::At(*due),
            Some(_) => {}
        }
        let Some((_, item)) = lane.queue.pop_front() else {
            return Next::Later;
        };
        if let (Direction::Requests, Item::Bytes(bytes)) = (direction, &item)
            && fires(&mut self.swallow_marker, &mut link.forwarded, bytes)
        {
            link.swallow = true;
        }
        Next::Item(item)
    }

    pub(super) fn pass(&mut self) {
        self.requests = Flow::Pass;
        self.replies = Flow::Pass;
        self.reply_delay = Duration::ZERO;
        self.refuse = false;
        self.swallow_next = false;
        self.swallow_marker = None;
        self.hold_marker = None;
        self.cut_marker = None;
        let now = Instant::now();
        for link in self.links.values_mut() {
            // Armed by a forwarded marker, but not fired.
            link.swallow = false;
            link.replies.hurry(now);
            link.wake();
        }
    }

    pub(super) fn set_requests(&mut self, flow: Flow) {
        self.requests = flow;
        for link in self.links.values_mut() {
            if flow == Flow::Drop && !link.held {
                self.dropped_requests += link.requests.discard();
            }
            link.wake();
        }
    }

    pub(super) fn set_replies(&mut self, flow: Flow) {
        self.replies = flow;
        for link in self.links.values_mut() {
            if flow == Flow::Drop {
                link.replies.discard();
            }
            link.wake();
        }
    }

    pub(super) fn delay_replies(&mut self, delay: Duration) {
        self.reply_delay = delay;
    }

    pub(super) fn blackhole_existing(&mut self) {
        for link in self.links.values_mut() {
            link.blackholed = true;
        }
    }

    pub(super) fn cut(&mut self) {
        self.links.retain(|_, link| {
            let survives = link.held && !link.blackholed;
            if survives {
                link.client_gone = true;
                link.requests.end(Instant::now());
                link.client.cancel();
            } else {
                link.close();
            }
            survives
        });
    }

    pub(super) fn held(&self) -> usize {
        self.links.values().filter(|link| link.held).count()
    }

    pub(super) fn release_held(&mut self) {
        for link in self.links.values_mut() {
            link.held = false;
            link.wake();
        }
    }

    pub(super) fn open(&self) -> usize {
        self.links.values().filter(|link| !link.client_gone).count()
    }
}

impl Link {
    fn close(&self) {
        self.client.cancel();
        self.server.cancel();
        self.wake();
    }

    fn wake(&self) {
        self.requests.wake.notify_one();
        self.replies.wake.notify_one();
    }
}

impl Lane {
    fn push(&mut self, due: Instant, item: Item) {
        self.queue.push_back((due, item));
        self.wake.notify_one();
    }

    fn end(&mut self, due: Instant) {
        if !mem::replace(&mut self.ended, true) {
            self.push(due, Item::End);
        }
    }

    /// Drops all bytes but keeps the end. Returns the number of chunks.
    fn discard(&mut self) -> usize {
        let before = self.queue.len();
        self.queue.retain(|(_, item)| *item == Item::End);
        let dropped = before - self.queue.len();
        self.lossy |= dropped > 0;
        dropped
    }

    fn hurry(&mut self, now: Instant) {
        for (due, _) in &mut self.queue {
            *due = (*due).min(now);
        }
    }
}

/// Whether `chunk`, after the bytes in `before`, completes the armed marker. Disarms the marker if
/// so.
///
/// Keeps in `before` the possible beginning of a marker armed later.
fn fires(marker: &mut Option<Vec<u8>>, before: &mut Vec<u8>, chunk: &[u8]) -> bool {
    /// Longer than any marker.
    const KEPT: usize = 1024;

    let found = completes(marker.as_deref(), before, chunk);
    if found {
        *marker = None;
    }
    before.extend_from_slice(chunk);
    before.drain(..before.len().saturating_sub(KEPT));
    found
}

/// Whether `chunk`, after the bytes in `before`, completes the marker, if any.
fn completes(marker: Option<&[u8]>, before: &[u8], chunk: &[u8]) -> bool {
    marker.is_some_and(|marker| {
        // One byte shorter than the marker, so that the marker cannot be entirely before the chunk.
        let start = before.len().saturating_sub(marker.len() - 1);
        let text = [&before[start..], chunk].concat();
        text.windows(marker.len()).any(|window| window == marker)
    })
}
