//! The sentinels, with one small connection to each for polls and announcements.
//!
//! Invariant: an announcement only means "poll again". A sentinel that is down costs one connection attempt per round
//! and nothing else. A sentinel that is reached at two addresses has one vote. A sentinel learned from others is
//! forgotten when it does not reply and no replying sentinel names it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, ConnectionInfo, RedisError, Value};

use super::reply::{
    KnownSentinels, Peer, Reply, SentinelAnswer, View, of_one_deployment, shared_by_most, views,
};
use crate::conn::address::{Address, count};
use crate::conn::link::{Socket, WireParams, check_greeting, greeting};
use crate::conn::setup::{Setup, with_pushes};
use crate::conn::transport::{EventHandler, command};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

/// Announced by the sentinel that promoted a replica, and by each sentinel that has switched over to it.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The time that a sentinel with a newer epoch has once a majority agrees.
const GRACE: Duration = Duration::from_millis(100);

/// The largest number of polled sentinels. There are usually three or five, with one connection each.
const SENTINELS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Sentinels {
    settings: Settings,
    all: Vec<Sentinel>,
    /// The sentinels that have replied so far.
    known: KnownSentinels,
}

/// The settings of all connections to sentinels.
#[derive(Debug)]
struct Settings {
    model: ConnectionInfo,
    setup: Setup,
    /// `SENTINEL` queries about one primary, and for the id of the sentinel.
    questions: [Cmd; 4],
    /// Given when a sentinel announces a change.
    announced: Arc<Hint>,
}

/// Takes announcements. They are hints, so a missed announcement does no harm.
#[derive(Debug)]
struct Announcements(Arc<Hint>);

impl EventHandler for Announcements {
    fn message(&self, _channel: &[u8], _message: &[u8]) {
        self.0.notify();
    }

    fn gap(&self) {}

    fn moved(&self) {}
}

#[derive(Debug)]
struct Sentinel {
    address: Address,
    /// Named by the URL.
    is_seed: bool,
    /// How long its last reply took, including connecting; `None` before the first reply.
    took: Option<Duration>,
    /// Its id, if it reports one.
    id: Option<String>,
    connection: Option<Socket>,
    /// The time of the first question since its last reply. Its round may have ended without one.
    waits_since: Option<Tick>,
}

/// The result of polling all sentinels.
#[derive(Debug)]
pub(super) struct Round {
    /// One reply of each sentinel.
    pub(super) replies: Vec<Reply>,
    /// The number of sentinels that were asked.
    pub(super) asked: usize,
    /// The views that count; `None` if several deployments replied and none is known to be the right one.
    pub(super) views: Option<Vec<View>>,
}

impl Sentinels {
    pub(super) fn new(
        seeds: Vec<Address>,
        primary: &str,
        model: ConnectionInfo,
        setup: &Setup,
    ) -> Self {
        let seeds = seeds.into_iter().map(|seed| Sentinel::new(seed, true));
        Self {
            settings: Settings::new(primary, model, setup),
            all: seeds.collect(),
            known: KnownSentinels::default(),
        }
    }

    pub(super) fn announced(&self) -> &Arc<Hint> {
        &self.settings.announced
    }

    /// Polls all sentinels at once. In an urgent round, or after an announcement, slow sentinels are not awaited once a
    /// majority agrees.
    pub(super) async fn poll(&mut self, mut is_urgent: bool, last: Option<&View>) -> Round {
        let (settings, known, asked) = (&self.settings, &self.known, self.voters());
        let clock = settings.setup.clock;
        let grace_ends = clock.now().after(GRACE);
        let mark = settings.announced.mark();
        let all = self.all.iter_mut();
        let mut polls: FuturesUnordered<_> = all.map(|one| one.poll(settings)).collect();
        let mut replies: Vec<Reply> = Vec::new();
        loop {
            let counted = of_one_deployment(&replies, known, last).unwrap_or_default();
            let is_clear = is_urgent && shared_by_most(&views(&counted), asked).is_some();
            let until = if is_clear { grace_ends } else { Tick::NEVER };
            tokio::select! {
                biased;
                reply = polls.next() => {
                    let Some(reply) = reply else { break };
                    // The sentinel may have replied at another address.
                    let is_new = |id| replies.iter().all(|other| other.id.as_ref() != Some(id));
                    if reply.id.as_ref().is_none_or(is_new) {
                        replies.push(reply);
                    }
                }
                () = clock.sleep_until(until), if is_clear => break,
                () = settings.announced.changed_since(mark), if !is_urgent => is_urgent = true,
            }
        }
        drop(polls);
        let counted = of_one_deployment(&replies, known, last);
        let views = counted.as_deref().map(views);
        self.learn(&counted.unwrap_or_default());
        Round {
            asked: self.voters(),
            views,
            replies,
        }
    }

    /// Returns the number of sentinels with a vote.
    fn voters(&self) -> usize {
        let voters = self.all.iter().filter(|sentinel| sentinel.has_vote());
        count(voters.map(|sentinel| sentinel.id.as_ref()))
    }

    /// Adds the sentinels that others name, and forgets sentinels that neither reply nor are named.
    fn learn(&mut self, counted: &[&Reply]) {
        if counted.is_empty() {
            return;
        }
        self.known.record(counted);
        let peers = counted
            .iter()
            .flat_map(|reply| reply.peers.iter().flatten());
        let peers: Vec<&Peer> = peers.collect();
        let seeds = self.all.iter().filter(|sentinel| sentinel.is_seed);
        let seeds: Vec<String> = seeds.filter_map(|seed| seed.id.clone()).collect();
        self.all.retain(|sentinel| {
            let is_seed_too = sentinel.id.as_ref().is_some_and(|id| seeds.contains(id));
            let has_replied = counted.iter().any(|reply| reply.from == sentinel.address);
            let is_named = peers.iter().any(|peer| sentinel.is(peer));
            sentinel.is_seed || !is_seed_too && (has_replied || is_named)
        });
        for peer in peers {
            let is_known = self.all.iter().any(|sentinel| sentinel.is(peer));
            if self.all.len() < SENTINELS_MAX && !is_known {
                self.all.push(Sentinel::new(peer.address.clone(), false));
            }
        }
    }
}

impl Sentinel {
    fn new(address: Address, is_seed: bool) -> Self {
        Self {
            address,
            is_seed,
            took: None,
            id: None,
            connection: None,
            waits_since: None,
        }
    }

    fn is(&self, peer: &Peer) -> bool {
        self.address == peer.address || self.id.is_some() && self.id == peer.id
    }

    /// Whether the sentinel's vote counts. A peer may be named by an address that cannot be reached from here, so it
    /// counts once it has replied.
    fn has_vote(&self) -> bool {
        self.is_seed || self.took.is_some()
    }

    /// Returns the time that the sentinel has for a reply. A peer may never be reachable from here.
    fn limit(&self, setup: &Setup) -> Duration {
        let (new, usual) = (setup.step_timeout, setup.reply_timeout);
        match self.took {
            Some(took) => new.min(usual.max(took * 4)),
            None if self.is_seed => new,
            None => new.min(usual),
        }
    }

    async fn poll(&mut self, settings: &Settings) -> Reply {
        let clock = settings.setup.clock;
        let limit = self.limit(&settings.setup);
        let asked = clock.now();
        if self.waits_since.get_or_insert(asked).until(asked) > limit {
            // Drops the connection, because it would otherwise keep a question of each round.
            (self.connection, self.id, self.waits_since) = (None, None, Some(asked));
        }
        let answered = clock.within(limit, self.ask(settings)).await;
        self.waits_since = None;
        let outcome = match answered {
            Some(Ok(replies)) => {
                self.took = Some(asked.until(clock.now()));
                let map = &settings.setup.address_map;
                let reply = Reply::of(self.address.clone(), replies, map);
                self.id.clone_from(&reply.id);
                return reply;
            }
            Some(Err(error)) if is_refusal(&error) => SentinelAnswer::Refused(error),
            Some(Err(error)) => SentinelAnswer::NoReply(error.to_string()),
            None => SentinelAnswer::NoReply(format!("no answer within {limit:?}")),
        };
        (self.connection, self.id) = (None, None);
        Reply::bare(self.address.clone(), outcome)
    }

    async fn ask(&mut self, settings: &Settings) -> Result<Vec<Value>, RedisError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(settings.connect(&self.address).await?),
        };
        let limit = settings.setup.step_timeout;
        connection.wire.ask(&settings.questions, limit).await
    }
}

impl Settings {
    fn new(primary: &str, model: ConnectionInfo, setup: &Setup) -> Self {
        let announced = Arc::<Hint>::default();
        let ask = |verb: &str| command(&["SENTINEL", verb, primary]);
        Self {
            model: with_pushes(model),
            setup: Setup {
                events: Arc::new(Announcements(Arc::clone(&announced))),
                silence: setup.step_timeout,
                // The end of a connection to a sentinel says nothing about a server.
                disconnected: Arc::default(),
                ..setup.clone()
            },
            questions: [
                ask("MASTER"),
                ask("GET-MASTER-ADDR-BY-NAME"),
                ask("SENTINELS"),
                command(&["SENTINEL", "MYID"]),
            ],
            announced,
        }
    }

    async fn connect(&self, address: &Address) -> Result<Socket, RedisError> {
        let info = address.with_settings_of(&self.model);
        let setup = &self.setup;
        let limit = setup.step_timeout;
        let wire = WireParams::new(&info, setup, Some(Arc::clone(&setup.events)));
        let socket = Socket::connect(&info, setup, limit, wire).await?;
        let greeting = greeting(info.redis_settings());
        let name = format!("lockset-sentinel-{}", setup.client_id);
        let name = command(&["CLIENT", "SETNAME", &name]);
        let [promoted, switched] = CHANNELS.map(|channel| command(&["SUBSCRIBE", channel]));
        // The user may lack the right to one of these commands. That only costs time.
        let (greeted, named, subscribed) = join3(
            socket.wire.ask(greeting.as_slice(), limit),
            socket.wire.ask(&[name, promoted], limit),
            socket.wire.ask(&[switched], limit),
        )
        .await;
        check_greeting(greeted?.first())?;
        named.and(subscribed)?;
        Ok(socket)
    }
}

/// Whether the sentinel replied with an error.
fn is_refusal(error: &RedisError) -> bool {
    error.code().is_some() || error.kind() == redis::ErrorKind::AuthenticationFailed
}
