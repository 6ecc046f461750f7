//! The connections of one client, as the library asks for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockset::simulated::{Connections, Events, Failure, Lane, Replies, Run, mark_sent};
use redis::{Arg, Cmd};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::net::{LaneId, Net, Submission};
use crate::process::Process;
use crate::words::Words;

/// A client's part of the network.
#[derive(Debug)]
pub(crate) struct Peer {
    net: Arc<Net>,
    pub(crate) client: usize,
    server: usize,
    address: String,
    process: Arc<Process>,
    /// Told when an attempt to connect has ended.
    dialed: Arc<Notify>,
}

impl Peer {
    pub(crate) fn new(
        net: &Arc<Net>,
        events: Events,
        server: usize,
        process: Arc<Process>,
    ) -> Self {
        let (client, dialed) = net.add_peer(Some(events));
        let address = net.with(|state| state.slots[server].address.clone());
        Self {
            net: Arc::clone(net),
            client,
            server,
            address,
            process,
            dialed,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.net.forget(self.client, true);
    }
}

fn words(command: &Cmd) -> Words {
    let args = command.args_iter().map(|arg| match arg {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let bytes = args.clone().map(<[u8]>::len).sum();
    let mut words = Words::with_capacity(args.clone().count(), bytes);
    args.for_each(|word| words.push(word));
    words
}

impl Peer {
    fn lane(&self, lane: Lane) -> LaneId {
        let server = self.server;
        LaneId { server, lane }
    }

    async fn exchange(
        &self,
        lane: Lane,
        mut commands: Vec<Words>,
        limit: Duration,
    ) -> Result<Vec<redis::Value>, Failure> {
        let end = Instant::now() + limit;
        let lane = self.lane(lane);
        let mut waited = None;
        let (wire, answer) = loop {
            // Before it is asked for: an attempt that ends in between is not missed.
            let dialed = self.dialed.notified();
            match self.net.submit(self.client, lane, &mut commands, waited) {
                Submission::Sent(wire, answer) => break (wire, answer),
                Submission::Failed(failure) => return Err(failure),
                Submission::Wait(attempt) => {
                    waited = Some(attempt);
                    if timeout_at(end, dialed).await.is_err() {
                        return Err(Failure::Unsent(format!("no connection within {limit:?}")));
                    }
                }
            }
        };
        mark_sent();
        match timeout_at(end, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Failure::Unknown("the connection was closed".to_owned())),
            Err(_) => {
                self.net.silent(wire, limit);
                Err(Failure::Unknown(format!("no reply within {limit:?}")))
            }
        }
    }
}

impl Connections for Peer {
    fn send<'a>(&'a self, lane: Lane, commands: &'a [&'a Cmd], limit: Duration) -> Replies<'a> {
        Box::pin(async move {
            let commands = commands.iter().copied().map(words).collect();
            self.exchange(lane, commands, limit).await
        })
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn last_reply_at(&self, lane: Lane) -> Option<Instant> {
        self.net.last_reply(self.client, self.lane(lane))
    }

    fn run(&self, lane: Lane) -> Option<Run> {
        self.net.run_of(self.client, self.lane(lane))
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.process.spawn(task);
    }
}
