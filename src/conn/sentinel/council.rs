//! The sentinels, with one small connection to each: they are asked, and heard.
//!
//! Invariant: whatever a sentinel announces means no more than: ask again. A sentinel that is away
//! costs an attempt to connect a round and nothing else. One that is reached in two ways has one vote.
//! Who was learnt from others is forgotten when nobody who is heard names it any more, and it is none
//! of those itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};

use super::view::{Answer, Heard, Known, Other, Said, View, is_shared_by_most, of_one_deployment};
use crate::clock::{Clock, Tick};
use crate::conn::nodes::{Address, connect_to};
use crate::conn::single::tcp_settings;
use crate::conn::{AddressMap, Setup, tls};
use crate::hint::Hint;

/// Announced when a replica was promoted, by the sentinel that did it, and by each when it has moved
/// over to that.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// When most sentinels are of one mind, the others are given this long to be ahead of them.
const GRACE: Duration = Duration::from_millis(100);

/// Sentinels that are asked at most. There are three or five; each is a connection.
const SENTINELS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Council {
    model: ConnectionInfo,
    clock: Clock,
    /// The longest wait for a sentinel that was never heard, and for one that was.
    limits: [Duration; 2],
    label: String,
    addresses: AddressMap,
    server_name: Option<Arc<str>>,
    /// `SENTINEL ..`, about one primary, and who it is that answers.
    questions: [Cmd; 4],
    /// Given when a sentinel announces a change.
    announced: Arc<Hint>,
    seats: Vec<Seat>,
    /// Those that were heard so far.
    known: Known,
}

#[derive(Debug)]
struct Seat {
    address: Address,
    /// Named by the URL.
    is_given: bool,
    /// How long it took to answer last, with the connection if that was made; `None` until it does.
    took: Option<Duration>,
    /// Its own, if it told.
    id: Option<String>,
    line: Option<MultiplexedConnection>,
}

/// What came of asking all sentinels.
#[derive(Debug)]
pub(super) struct Round {
    /// One of each sentinel.
    pub(super) heard: Vec<Heard>,
    /// How many sentinels were asked.
    pub(super) asked: usize,
    /// The view that was acted on last.
    last: Option<View>,
    /// Those that were heard before.
    known: Known,
}

impl Round {
    /// Those whose views count; `None` if several deployments are asked and it cannot be told which is
    /// the one.
    fn counted(&self) -> Option<Vec<&Heard>> {
        of_one_deployment(&self.heard, &self.known, self.last.as_ref())
    }

    pub(super) fn is_of_several_deployments(&self) -> bool {
        self.counted().is_none()
    }

    pub(super) fn views(&self) -> Vec<&View> {
        let counted = self.counted().unwrap_or_default().into_iter();
        let views = counted.filter_map(|heard| match &heard.answer.said {
            Said::Names(view) => Some(view),
            _ => None,
        });
        views.collect()
    }
}

impl Council {
    pub(super) fn new(
        addresses: Vec<Address>,
        primary: &str,
        model: ConnectionInfo,
        setup: &Setup,
    ) -> Self {
        // Messages come on the connection that asked for them only in the newer protocol.
        let settings = model
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let model = model
            .set_tcp_settings(tcp_settings())
            .set_redis_settings(settings);
        let ask = |verb: &str| {
            let mut question = redis::cmd("SENTINEL");
            question.arg(verb).arg(primary);
            question
        };
        let given = addresses
            .into_iter()
            .map(|address| Seat::new(address, true));
        Self {
            model,
            clock: setup.clock,
            limits: [setup.step_timeout, setup.reply_timeout],
            label: format!("lockset-sentinel-{}", setup.client_id),
            addresses: setup.address_map.clone(),
            server_name: setup.server_name.clone(),
            questions: [
                ask("MASTER"),
                ask("GET-MASTER-ADDR-BY-NAME"),
                ask("SENTINELS"),
                redis::cmd("SENTINEL").arg("MYID").to_owned(),
            ],
            announced: Arc::default(),
            seats: given.collect(),
            known: Known::default(),
        }
    }

    pub(super) fn announced(&self) -> &Arc<Hint> {
        &self.announced
    }

    /// Asks all at once. Who is in a hurry, or hears of a change meanwhile, does not wait for a few
    /// that are slow when most are of one mind.
    pub(super) async fn ask(&mut self, hurried: bool, last: Option<&View>) -> Round {
        let began = self.clock.now();
        let asked = self.voters();
        let line = Line {
            model: &self.model,
            label: &self.label,
            server_name: self.server_name.as_deref(),
            questions: &self.questions,
            announced: &self.announced,
        };
        let (clock, limits) = (self.clock, self.limits);
        let addresses = &self.addresses;
        let mut asking: FuturesUnordered<_> = self
            .seats
            .iter_mut()
            .map(|seat| async move {
                let limit = seat.patience(limits);
                let asked = clock.now();
                let answer = match clock.within(limit, seat.ask(line)).await {
                    Some(Ok(answer)) => {
                        seat.took = Some(asked.until(clock.now()));
                        seat.id.clone_from(&answer.id);
                        answer
                    }
                    failed => {
                        (seat.line, seat.id) = (None, None);
                        match failed {
                            Some(Err(error)) if is_refusal(&error) => Answer {
                                said: Said::Refused(error),
                                id: None,
                                others: None,
                            },
                            Some(Err(error)) => Answer::silent(error),
                            _ => Answer::silent(format!("no answer within {limit:?}")),
                        }
                    }
                };
                (seat.address.clone(), answer)
            })
            .collect();
        let mark = self.announced.mark();
        let mut is_hurried = hurried;
        let mut round = Round {
            heard: Vec::new(),
            asked,
            last: last.cloned(),
            known: self.known.clone(),
        };
        loop {
            let is_clear = is_hurried && is_shared_by_most(&round.views(), asked);
            let until = match is_clear {
                true => began.after(GRACE),
                false => Tick::NEVER,
            };
            tokio::select! {
                answered = asking.next() => {
                    let Some((address, answer)) = answered else {
                        break;
                    };
                    let answer = answer.led(|told| addresses.lead(told));
                    let same = |heard: &Heard| answer.id.is_some() && heard.answer.id == answer.id;
                    if !round.heard.iter().any(same) {
                        round.heard.push(Heard { address, answer });
                    }
                }
                () = clock.sleep_until(until), if is_clear => break,
                () = self.announced.past(mark), if !is_hurried => is_hurried = true,
            }
        }
        drop(asking);
        round.asked = self.voters();
        self.learn(&round);
        round
    }

    /// How many sentinels there are to agree: one that is reached in two ways counts once.
    fn voters(&self) -> usize {
        let mut ids = BTreeSet::new();
        let seats = self.seats.iter().filter(|seat| seat.counts());
        seats
            .filter(|seat| seat.id.as_ref().is_none_or(|id| ids.insert(id)))
            .count()
    }

    /// Takes up the sentinels that were named by those who are heard, and forgets those that are
    /// neither.
    fn learn(&mut self, round: &Round) {
        let Some(counted) = round.counted().filter(|counted| !counted.is_empty()) else {
            return;
        };
        self.known.note(&counted);
        let others = counted
            .iter()
            .flat_map(|heard| heard.answer.others.iter().flatten());
        let others: Vec<&Other> = others.collect();
        let given = self.seats.iter().filter(|seat| seat.is_given);
        let given: Vec<String> = given.filter_map(|seat| seat.id.clone()).collect();
        self.seats.retain(|seat| {
            let is_given_too = seat.id.as_ref().is_some_and(|id| given.contains(id));
            let is_heard = counted.iter().any(|heard| heard.address == seat.address);
            let is_named = others.iter().any(|other| seat.is(other));
            seat.is_given || !is_given_too && (is_heard || is_named)
        });
        for other in others {
            if self.seats.len() < SENTINELS_MAX && !self.seats.iter().any(|seat| seat.is(other)) {
                self.seats.push(Seat::new(other.address.clone(), false));
            }
        }
    }
}

/// What every connection to a sentinel is made and used with.
#[derive(Clone, Copy)]
struct Line<'a> {
    model: &'a ConnectionInfo,
    label: &'a str,
    server_name: Option<&'a str>,
    questions: &'a [Cmd],
    announced: &'a Arc<Hint>,
}

impl Seat {
    fn new(address: Address, is_given: bool) -> Self {
        Self {
            address,
            is_given,
            took: None,
            id: None,
            line: None,
        }
    }

    fn is(&self, other: &Other) -> bool {
        self.address == other.address || self.id.is_some() && self.id == other.id
    }

    /// Whether it is one of those of which most have to agree. The others may name a sentinel by an
    /// address at which it cannot be reached from here.
    fn counts(&self) -> bool {
        self.is_given || self.took.is_some()
    }

    /// One that was named by another sentinel may never be reached from here.
    fn patience(&self, [stranger, usual]: [Duration; 2]) -> Duration {
        match self.took {
            Some(took) => stranger.min(usual.max(took * 4)),
            None if self.is_given => stranger,
            None => stranger.min(usual),
        }
    }

    async fn ask(&mut self, line: Line<'_>) -> Result<Answer, RedisError> {
        let mut connection = match &self.line {
            Some(connection) => connection.clone(),
            None => {
                let made = line.dial(&self.address).await?;
                self.line.insert(made).clone()
            }
        };
        // A pipeline: one round trip, and error replies come as values.
        let mut pipe = redis::pipe();
        for question in line.questions {
            pipe.add_command(question.clone());
        }
        let replies = connection.send_packed_commands(&pipe, 0, pipe.len());
        Ok(Answer::of_replies(replies.await?))
    }
}

impl Line<'_> {
    async fn dial(self, address: &Address) -> Result<MultiplexedConnection, RedisError> {
        let announced = Arc::clone(self.announced);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Message {
                    announced.give();
                }
                Ok::<(), std::convert::Infallible>(())
            });
        let info = self.model.clone().set_addr(connect_to(self.model, address));
        let (info, config) = tls::under_name(info, self.server_name, config);
        let client = redis::Client::open(info)?;
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(self.label);
        let subscribe = |channel| redis::cmd("SUBSCRIBE").arg(channel).to_owned();
        let [promoted, switched] = CHANNELS.map(subscribe);
        // A user without the right to one of these goes without: it costs time, nothing else.
        let sent = [name, promoted, switched].map(|command| {
            let mut connection = connection.clone();
            async move { connection.send_packed_command(&command).await }
        });
        try_join_all(sent).await?;
        Ok(connection)
    }
}

/// Whether it was answered, and with an error.
fn is_refusal(error: &RedisError) -> bool {
    error.code().is_some() || error.kind() == redis::ErrorKind::AuthenticationFailed
}
