//! The subscriptions of a process: one connection, and one entry per channel for all its waiting
//! threads.
//!
//! Messages are counted, not addressed. An unused message lets a later waiter through at once, and
//! a message for all only reaches current waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, PushInfo, PushKind};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// Lets one waiter of the channel through.
const FREED: i64 = 0;

/// Lets all waiters of the channel through.
const FREED_BY_WRITER: i64 = 1;

/// The subscriptions of one process. The background task ends with the last clone.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    requests: UnboundedSender<Request>,
    undecodable: Arc<Mutex<Vec<String>>>,
}

/// A thread's share of a subscription, released on drop.
#[derive(Debug)]
pub(super) struct Subscription {
    wakeups: Arc<Wakeups>,
    _share: Share,
}

#[derive(Debug)]
struct Share {
    channel: String,
    requests: UnboundedSender<Request>,
}

#[derive(Debug)]
enum Request {
    Join(String, oneshot::Sender<Result<Arc<Wakeups>, String>>),
    Leave(String),
}

#[derive(Debug)]
struct Wakeups {
    permits: Semaphore,
    parked: AtomicUsize,
}

impl Channels {
    /// Takes a RESP3 connection and the receiver of its push messages.
    pub(super) fn new(
        connection: MultiplexedConnection,
        pushes: UnboundedReceiver<PushInfo>,
    ) -> Self {
        let (requests, incoming) = unbounded_channel();
        let undecodable = Arc::default();
        let table = Table {
            connection,
            entries: HashMap::new(),
            undecodable: Arc::clone(&undecodable),
        };
        tokio::spawn(table.serve(incoming, pushes));
        Self {
            requests,
            undecodable,
        }
    }

    /// Returns once the server has confirmed the subscription.
    pub(super) async fn join(&self, channel: &str) -> Subscription {
        let (reply, answer) = oneshot::channel();
        let join = Request::Join(channel.to_owned(), reply);
        // If the task is gone, the answer shows it.
        let _ = self.requests.send(join);
        // Created before the wait, so that a caller dropped during the wait also leaves.
        let share = Share {
            channel: channel.to_owned(),
            requests: self.requests.clone(),
        };
        match answer.await {
            Ok(Ok(wakeups)) => Subscription {
                wakeups,
                _share: share,
            },
            Ok(Err(error)) => panic!("Redisson peer: SUBSCRIBE {channel}: {error}"),
            Err(_) => panic!("Redisson peer: SUBSCRIBE {channel}: its runtime has ended"),
        }
    }

    pub(super) fn undecodable(&self) -> Vec<String> {
        let list = self.undecodable.lock();
        list.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Subscription {
    /// Waits for a message that lets this thread through.
    pub(super) async fn wakeup(&self) {
        let permits = &self.wakeups.permits;
        if let Ok(permit) = permits.try_acquire() {
            permit.forget();
            return;
        }
        let _parked = Parked::new(&self.wakeups.parked);
        let permit = permits.acquire().await;
        permit.expect("it is never closed").forget();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let channel = std::mem::take(&mut self.channel);
        // If the task is gone, so is the connection.
        let _ = self.requests.send(Request::Leave(channel));
    }
}

struct Parked<'a>(&'a AtomicUsize);

impl<'a> Parked<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Entry {
    wakeups: Arc<Wakeups>,
    users: usize,
}

struct Table {
    connection: MultiplexedConnection,
    entries: HashMap<String, Entry>,
    undecodable: Arc<Mutex<Vec<String>>>,
}

impl Table {
    async fn serve(
        mut self,
        mut requests: UnboundedReceiver<Request>,
        mut pushes: UnboundedReceiver<PushInfo>,
    ) {
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(Request::Join(channel, reply)) => {
                        // A caller that was dropped has sent a `Leave` after the join.
                        let _ = reply.send(self.join(channel).await);
                    }
                    Some(Request::Leave(channel)) => self.leave(&channel).await,
                    None => return,
                },
                Some(push) = pushes.recv() => self.deliver(&push),
            }
        }
    }

    async fn join(&mut self, channel: String) -> Result<Arc<Wakeups>, String> {
        if let Some(entry) = self.entries.get_mut(&channel) {
            entry.users += 1;
            return Ok(Arc::clone(&entry.wakeups));
        }
        let subscribed = self.connection.subscribe(&channel).await;
        subscribed.map_err(|error| error.to_string())?;
        let wakeups = Arc::new(Wakeups {
            permits: Semaphore::new(0),
            parked: AtomicUsize::new(0),
        });
        let entry = Entry {
            wakeups: Arc::clone(&wakeups),
            users: 1,
        };
        self.entries.insert(channel, entry);
        Ok(wakeups)
    }

    async fn leave(&mut self, channel: &str) {
        // A refused subscription has no entry.
        let Some(entry) = self.entries.get_mut(channel) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            self.entries.remove(channel);
            // An error means that the connection and its subscriptions are gone.
            let _ = self.connection.unsubscribe(channel).await;
        }
    }

    fn deliver(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let [channel, payload] = &push.data[..] else {
            return;
        };
        let text = |value: &redis::Value| {
            let bytes = Vec::<u8>::from_redis_value_ref(value).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (channel, payload) = (text(channel), text(payload));
        let Some(entry) = self.entries.get(&channel) else {
            return;
        };
        let wakeups = &entry.wakeups;
        match payload.parse() {
            Ok(FREED) => wakeups.permits.add_permits(1),
            Ok(FREED_BY_WRITER) => {
                let parked = wakeups.parked.load(Ordering::Relaxed);
                wakeups.permits.add_permits(parked);
            }
            Ok(_) => {}
            Err(_) => {
                let list = self.undecodable.lock();
                let mut list = list.unwrap_or_else(PoisonError::into_inner);
                list.push(format!("{channel} {payload:?}"));
            }
        }
    }
}
